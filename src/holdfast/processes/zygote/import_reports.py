"""What a worker imports after it has begun, told to its agent, which has it imported ahead.

It is seen where Python takes the lock of a module that it is about to load
(`private_names.watch_imports`), also in the middle of the work: the program does not notice, and
what imports nothing costs nothing. In the zygote the same watch tells when a module is loaded that
has to be watched itself: `tempfile` then says before it makes a folder or a file, which no module
may do for all workers at once.

Told is the outermost: if `a` imports `b`, that is `a`. One packet each, as `worker.channel` has it;
one that cannot be sent at once is not sent.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_SEQPACKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

    from holdfast.processes.bare import private_names
    from holdfast.processes.zygote import surroundings
else:
    import private_names
    import surroundings

MKDIR = os.mkdir
MOST = 2000
"""How many modules a worker tells of at most."""
MOST_CHANGED = 100
"""And how much that the program has set, with each."""
ASKED_OF_A_WORKER = {
    "tempfile.mkdtemp": "it makes a temporary folder when imported",
    "tempfile.mkstemp": "it makes a temporary file when imported",
}
"""What a module may do when a worker imports it, and must not do for all of them at once."""
NAMED_AFTER_ITS_PROCESS = "it makes a folder named after its process when imported"


class Watch:
    """The one watch over imports, of a zygote and of the workers that come of it."""

    def __init__(self) -> None:
        self._ask: Callable[[str], None] | None = None
        self._tell: Callable[[str], None] | None = None
        self._tempfile: ModuleType | None = None
        """Where it is made to say what it does; it may be on the shelf later."""
        self._when_loaded: dict[str, Callable[[ModuleType], None]] = {}
        self.uses: dict[str, set[str]] = {}
        """What was imported ahead of its time, with the variables that it has used."""
        self.look: Callable[[], None] = lambda: None
        """In a worker: tell of such that it has changed since."""
        private_names.watch_imports(self._begins, self._ends)

    def guard(
        self,
        ask: Callable[[str], None] | None,
        when_loaded: dict[str, Callable[[ModuleType], None]] | None = None,
    ) -> None:
        """In the zygote: have it asked about what a module does; None: no longer.

        `when_loaded` is to be done with modules of these names, once they are there.
        """
        self._ask = ask
        if ask is not None:
            os.mkdir = self._mkdir
            self._when_loaded = {"tempfile": self._watch_tempfile, **(when_loaded or {})}
            for name in list(self._when_loaded):
                self._ends(name)
            return
        os.mkdir = MKDIR
        self._when_loaded = {}
        if self._tempfile is not None:
            private_names.watch_temporary_files(self._tempfile, None)
            self._tempfile = None

    def report(
        self, channel: str, passed_over: list[str], set_ahead: dict[str, str | None]
    ) -> None:
        """In a worker: tell what is imported from now on.

        `passed_over` are packages that cannot be imported ahead: told is what they import.
        `set_ahead` are the variables that the program is known to set; None: to remove.
        """
        self.guard(None)
        told: set[str] = set()
        at_first = surroundings.Settings(set_ahead)
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
                changed = [surroundings.ALL]
            if len(changed) > MOST_CHANGED:
                changed = [surroundings.ALL]
            send(channel, {"imported": root, "changed": ",".join(changed)})
            if len(told) == MOST:
                self._tell = None

        self._tell = tell if folders else None
        if self.uses:
            self.look = too_early(channel, at_first, self.uses)

    def _begins(self, name: str) -> None:
        self.look()
        if self._tell is not None and name not in sys.modules:
            self._tell(name)

    def _ends(self, name: str) -> None:
        if name in self._when_loaded and name in sys.modules:
            self._when_loaded.pop(name)(sys.modules[name])

    def _watch_tempfile(self, module: ModuleType) -> None:
        self._tempfile = module
        private_names.watch_temporary_files(module, self._makes_temporary)

    def _makes_temporary(self, event: str) -> None:
        if self._ask is not None and event in ASKED_OF_A_WORKER:
            self._ask(ASKED_OF_A_WORKER[event])

    def _mkdir(self, path: Any, *more: Any, **options: Any) -> None:
        if self._ask is not None and is_named_after_its_process(path):
            self._ask(NAMED_AFTER_ITS_PROCESS)
        MKDIR(path, *more, **options)


def is_named_after_its_process(path: Any) -> bool:
    """Whether the number of this process is in it."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    before, found, after = text.partition(str(os.getpid()))
    return bool(found) and not before[-1:].isdigit() and not after[:1].isdigit()


def outermost(name: str, folders: tuple[str, ...], passed_over: tuple[str, ...]) -> str:
    """The installed module that is being imported and in whose course this one is, or it itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(folders):
            module = str(frame.f_globals.get("__name__"))
            name = name if (module + ".").startswith(passed_over) else module
        frame = frame.f_back
    return name


def too_early(
    channel: str, at_first: surroundings.Settings, uses: dict[str, set[str]]
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
