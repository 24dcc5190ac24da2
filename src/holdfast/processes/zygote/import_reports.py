"""What a worker imports after it has begun, told to its agent, which has it imported ahead.

It is seen by a finder of ours, the first on `sys.meta_path`, which finds nothing itself: no frame
of it is on the stack while a module is loaded, and what imports nothing pays nothing. (An audit
hook is called at every `id()`.) In the zygote the same watch sees the folders that modules make:
one for a single process no module may make for all workers at once.

Told is the outermost: if `a` imports `b`, that is `a`. One packet each, as `worker.channel` has it;
one that cannot be sent at once is not sent. Standard library only: for the zygote.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_SEQPACKET, socket

from holdfast.processes.stdlib_only import private_names
from holdfast.processes.zygote import process_state, reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

IMPORT_SYSTEM = "_frozen_importlib", "importlib._bootstrap"
MKDIR = os.mkdir
MOST = 2000
"""How many modules a worker tells of at most."""
MOST_CHANGED = 100
"""And how much that the program has set, with each."""


class ImportFinder:
    """Has `begins` called before a module is loaded, wherever it is imported; finds nothing."""

    def __init__(self, begins: Callable[[str], None]) -> None:
        self._begins = begins

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self._is_import(sys._getframe(1)):
            self._begins(name)

    def _is_import(self, asking: FrameType) -> bool:
        """Whether it is asked in order to import, not by `importlib.util.find_spec` or others.

        Then its caller was called from within the import system, too.
        """
        above = asking.f_back
        names = asking.f_globals
        is_within = above is not None and above.f_globals is names
        return is_within and names.get("__name__") in IMPORT_SYSTEM


class Watch:
    """The one watch over imports, of a zygote and of the workers that come of it."""

    def __init__(self) -> None:
        self._ask: Callable[[str], None] | None = None
        self._tell: Callable[[str], None] | None = None
        self.uses: dict[str, set[str]] = {}
        """What was imported ahead of its time, with the variables that it has used."""
        self.tell_too_early: Callable[[], None] = lambda: None
        """In a worker: tell of such that it has changed since."""
        self._finder = ImportFinder(self._begins)
        sys.meta_path.insert(0, self._finder)

    def guard(self, ask: Callable[[str], None] | None) -> None:
        """In the zygote: have it asked about folders that a module makes; None: no longer."""
        self._ask = ask
        os.mkdir = MKDIR if ask is None else self._mkdir

    def end(self) -> None:
        """In a worker: see nothing any more."""
        self.guard(None)
        # A new list: the import system may be going through this one, and would pass over a finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self._finder]

    def report(
        self, channel: str, passed_over: list[str], set_ahead: dict[str, str | None]
    ) -> None:
        """In a worker: tell what is imported from now on.

        `passed_over` are packages that cannot be imported ahead: told is what they import.
        `set_ahead` are the variables that the program is known to set; None: to remove.
        """
        self.guard(None)
        sys.meta_path.remove(self._finder)
        sys.meta_path.insert(0, self._finder)  # Others may have put theirs before it.
        told: set[str] = set()
        at_first = process_state.Settings(set_ahead)
        places = ("site-packages", "dist-packages")
        folders = tuple(entry + os.sep for entry in sys.path if entry.endswith(places))
        inside = tuple(name + "." for name in passed_over)

        def tell(name: str) -> None:
            root = outermost(name, folders, inside)
            if root in told or root.partition(".")[0] in sys.stdlib_module_names:
                return
            told.add(root)
            try:
                changed = at_first.changed()
            except Exception:  # noqa: BLE001 - nothing of ours may show in the program
                changed = [process_state.ALL]
            if len(changed) > MOST_CHANGED:
                changed = [process_state.ALL]
            send(channel, {"imported": root, "changed": ",".join(changed)})
            if len(told) == MOST:
                self._tell = None

        self._tell = tell if folders else None
        if self.uses:
            self.tell_too_early = too_early(channel, at_first, self.uses)

    def _begins(self, name: str) -> None:
        self.tell_too_early()
        if self._tell is not None and name not in sys.modules:
            self._tell(name)

    def _mkdir(self, path: Any, *more: Any, **options: Any) -> None:
        if self._ask is not None:
            if sys._getframe(1).f_globals.get("__name__") == "tempfile":
                self._ask(reasons.MAKES_TEMPORARY_FOLDER)
            elif is_named_after_its_process(path):
                self._ask(reasons.MAKES_FOLDER_OF_PROCESS)
        MKDIR(path, *more, **options)


def is_named_after_its_process(path: Any) -> bool:
    """Whether the number of this process is in it."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    before, found, after = text.partition(str(os.getpid()))
    return bool(found) and not before[-1:].isdigit() and not after[:1].isdigit()


def outermost(name: str, folders: tuple[str, ...], passed_over: tuple[str, ...]) -> str:
    """The installed module that is being imported and in whose course this one is, or it itself.

    Nobody imports `__main__`: that is the program, or the zygote below it, wherever they lie.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(folders):
            module = str(frame.f_globals.get("__name__"))
            if module != "__main__" and not (module + ".").startswith(passed_over):
                name = module
        frame = frame.f_back
    return name


def too_early(
    channel: str, at_first: process_state.Settings, uses: dict[str, set[str]]
) -> Callable[[], None]:
    """Returns what tells the agent of variables that were used ahead, and have changed since."""
    seen = dict(at_first.variables)
    told: set[tuple[str, str]] = set()

    def look() -> None:
        now = private_names.variables()
        if now == seen:
            return
        seen.clear()
        seen.update(now)
        changed = set(at_first.changed_variables())
        for root, used in uses.items():
            for name in sorted(used & changed):
                if (root, name) not in told:
                    told.add((root, name))
                    send(channel, {"imported_too_early": root, "changed": name})

    return look


def send(channel: str, message: dict[str, str | float]) -> None:
    """Say something to the agent, if that is possible at once."""
    words = [f'"{key}": {_as_json(value)}' for key, value in message.items()]
    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdecimal():
        words.append(f'"local_rank": {int(local_rank)}')
    try:
        with_agent = socket(AF_UNIX, SOCK_SEQPACKET)
        try:
            with_agent.setblocking(False)
            with_agent.connect("\0" + channel[1:] if channel.startswith("@") else channel)
            with_agent.send(("{" + ", ".join(words) + "}").encode(), MSG_DONTWAIT | MSG_NOSIGNAL)
        finally:
            with_agent.close()
    except OSError:
        pass  # It is behind, or gone. Nothing depends on it.


def _as_json(value: str | float) -> str:
    if isinstance(value, str):
        return '"' + "".join(c for c in value if c.isprintable() and c not in '"\\') + '"'
    return repr(value)
