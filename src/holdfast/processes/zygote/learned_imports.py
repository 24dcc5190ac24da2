"""What workers import late: collected from what they say, and kept for the next launch.

Imports come in bursts, of all workers at once. What is new is told in one go, when nothing has
come for a while. Whether a module is installed is looked up on the disk, in a lane.

What was found out is kept in the user's own cache folder (`$XDG_CACHE_HOME/holdfast`,
`~/.cache/holdfast`), for one program in one environment: interpreter, Holdfast, module path, the
folders of installed packages as they were last changed, and the program's own file. It is believed
only from a folder that nobody else can write to. It only saves time: every zygote tries and judges
it again, and what cannot be read or written is done without. No values of variables are in it,
only names.
"""

from __future__ import annotations

import binascii  # `hashlib` takes longer to import than all of this takes to run.
import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast import __version__
from holdfast.core.node_io import ImportsLearned
from holdfast.processes.output.log_files import Lane
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.runtime.private_folder import private_folder, read_file, write_file

QUIET_S = 0.5
LONGEST_NAME = 200
MOST = 4000
"""Names of modules and of variables that are kept, whatever workers say."""


class ImportsSeen:
    """Takes what is said by any worker; `post` gets what is new."""

    def __init__(
        self,
        loop: Loop,
        lane: Lane,
        post: Callable[[ImportsLearned], None],
        is_installed: Callable[[str], bool],
    ) -> None:
        self._loop = loop
        self._lane = lane
        self._post = post
        self._is_installed = is_installed
        self._known: set[str] = set()
        self._modules: list[str] = []
        self._under: dict[str, tuple[str, ...]] = {}
        self._timer: Cancellable | None = None
        self._closed = False

    def take(self, module: object, changed: object) -> None:
        """A worker has imported it, after it had changed these variables (names, with commas)."""
        if not isinstance(module, str) or not module or len(module) > LONGEST_NAME:
            return
        if module in self._known or len(self._known) >= MOST:
            return
        self._known.add(module)
        look = partial(self._is_installed, module)
        self._lane.do(look, lambda found: self._add(module, changed) if found else None)

    def take_too_early(self, module: object, changed: object) -> None:
        """A worker has changed a variable that this one has used, which was imported ahead."""
        if isinstance(module, str) and isinstance(changed, str) and not self._closed:
            self._post(ImportsLearned((), too_early={module: (changed,)}))

    def _add(self, module: str, changed: object) -> None:
        if self._closed:
            return
        self._modules.append(module)
        if isinstance(changed, str) and changed:
            self._under[module] = tuple(changed.split(","))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(QUIET_S, self._tell)

    def _tell(self) -> None:
        learned = ImportsLearned(tuple(self._modules), self._under)
        self._modules, self._under, self._timer = [], {}, None
        self._post(learned)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


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
