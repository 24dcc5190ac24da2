"""What was found out about a program's imports, kept for the next time it is launched.

Rules
1. It only saves time. Whatever is read here is tried again, and judged again, by every zygote.
2. It holds for one program in one environment: interpreter, Holdfast, module path, the folders
   of installed packages as they were last changed, and the program's own file. If any of these
   differs, it is as if nothing had been kept.
3. It lies in the user's own cache folder (`$XDG_CACHE_HOME/holdfast`, `~/.cache/holdfast`), in a
   folder that nobody else can write to, and is believed from no other place.
4. Nothing depends on it: what cannot be read or written is done without. No values of variables
   are in it, only names.
"""

from __future__ import annotations

import binascii  # `hashlib` takes longer to import than all of this takes to run.
import contextlib
import os
import sys

import msgspec

from holdfast import __version__
from holdfast.runtime.private_folder import private_folder, read_file, write_file

MOST_BYTES = 1 << 20
MOST_FILES = 200
"""Files that are kept; the oldest go first."""


class WarmMemory(msgspec.Struct, frozen=True):
    """What is kept for one program."""

    late: tuple[str, ...] = ()
    avoid: dict[str, str] = {}
    under: dict[str, tuple[str, ...]] = {}


class Kept(msgspec.Struct, frozen=True):
    """What is in a file: the memory, and all that it holds for."""

    key: list[str]
    memory: WarmMemory


def recall(program: str) -> WarmMemory:
    """What is known of the program in this file; nothing, if nothing can be relied on."""
    try:
        with private_folder(_folder()) as folder:
            content, _ = read_file(folder, _name(program), MOST_BYTES)
        kept = msgspec.json.decode(content, type=Kept)
        return kept.memory if kept.key == _key(program) else WarmMemory()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WarmMemory()


def keep(program: str, memory: WarmMemory) -> None:
    """Write it down, whole or not at all."""
    text = msgspec.json.encode(Kept(_key(program), memory))
    if len(text) > MOST_BYTES:
        return
    with contextlib.suppress(OSError), private_folder(_folder()) as folder:
        write_file(folder, _name(program), text)
        _forget_the_oldest(folder)


def _folder() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "holdfast", "imports")


def _name(program: str) -> str:
    """The file for a program. That it is really for this one is seen by the key inside of it."""
    return f"{binascii.crc32(repr(_key(program)).encode()):08x}.json"


def _key(program: str) -> list[str]:
    """The program as it is now, in this environment as it is now."""
    key = [sys.executable, sys.version, __version__, os.path.realpath(program), _content(program)]
    key += [f"{path} {_changed(path)}" for path in sys.path]
    return [text.encode("utf-8", "backslashreplace").decode() for text in key]


def _changed(path: str) -> int:
    """When something was last installed into or removed from this folder."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _content(program: str) -> str:
    """What tells one state of a file from another."""
    try:
        with open(program, "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(MOST_BYTES)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns} {binascii.crc32(text):08x}"


def _forget_the_oldest(folder: int) -> None:
    names = [name for name in os.listdir(folder) if name.endswith(".json")]
    if len(names) <= MOST_FILES:
        return
    names.sort(key=lambda name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime)
    for name in names[:-MOST_FILES]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
