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
import stat
import sys
from collections.abc import Iterator

import msgspec

from holdfast import __version__

MOST_BYTES = 1 << 20
MOST_FILES = 200
"""Files that are kept; the oldest go first."""


class Memory(msgspec.Struct, frozen=True):
    """What is kept for one program."""

    late: tuple[str, ...] = ()
    avoid: dict[str, str] = {}
    under: dict[str, tuple[str, ...]] = {}


class Kept(msgspec.Struct, frozen=True):
    """What is in a file: the memory, and all that it holds for."""

    key: list[str]
    memory: Memory


def recall(program: str) -> Memory:
    """What is known of the program in this file; nothing, if nothing can be relied on."""
    try:
        with _folder() as folder:
            descriptor = os.open(_name(program), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        with open(descriptor, "rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return Memory()
            kept = msgspec.json.decode(file.read(MOST_BYTES), type=Kept)
            return kept.memory if kept.key == _key(program) else Memory()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Memory()


def keep(program: str, memory: Memory) -> None:
    """Write it down, whole or not at all."""
    text = msgspec.json.encode(Kept(_key(program), memory))
    if len(text) > MOST_BYTES:
        return
    with contextlib.suppress(OSError), _folder() as folder:
        name = _name(program)
        part = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(text)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        _forget_the_oldest(folder)


@contextlib.contextmanager
def _folder() -> Iterator[int]:
    """A descriptor of the folder, made if need be. Raises `OSError` where it is not ours alone."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(cache, "holdfast", "imports")
    os.makedirs(path, mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _is_ours(os.fstat(descriptor)):
            raise PermissionError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_ours(found: os.stat_result) -> bool:
    """Whether it belongs to this user, and nobody else can write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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
