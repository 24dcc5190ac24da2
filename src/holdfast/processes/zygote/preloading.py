"""Importing ahead, step by step, and whether a module may be imported ahead at all.

Rules
1. The steps are what the program does first, in its order: imports, and what it sets before some
   of them. What was set ahead is taken back before the program runs, which sets it itself.
2. A step is rejected, with the reason, if importing it here is not what it is in a worker: if it
   raises, asks for what only a worker has (its rank, its arguments), needs a module that the
   program has a file for, warns about the line that imports it, makes a temporary folder, or leaves
   behind what workers would share or lose. Another zygote does without that step.
3. There are two exceptions. What a package keeps of its rank and is known can be put right in each
   worker (`fork_fixups.py`); and a module that the user named (`--preload`) may read what it likes.
4. What workers are known to import late is imported too, after the steps, if it makes no difference
   when it is: if nothing of it can show before its time, and if it neither reads nor sets what the
   program sets before it comes to it (`process_state.py`). A module that does not stop the others:
   it is named, with those around it, and another zygote leaves them out.
5. What was imported ahead serves as it is. Nothing is ever imported a second time: what a library
   has registered or opened would be there twice.

Standard library only: for the zygote.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.machinery import PathFinder

from holdfast.processes.stdlib_only import linux, private_names
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.processes.zygote import fork_fixups, process_state, reasons
from holdfast.processes.zygote.environment_watch import EnvironmentWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.processes.zygote import run_as_main

FOLDER = os.path.dirname(os.path.abspath(__file__))
HARMLESS_THREADS = frozenset({
    # It gives memory back to the kernel. jemalloc knows of forks; in a process that has lost it,
    # that is done by the thread that frees memory.
    "jemalloc_bg_thd",
})  # fmt: skip
HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "ptmx")


class OwnTree:
    """A finder, placed before the usual one, that notices what the program has a file for.

    In a worker, the program's own module would be found; but it is the user's code, may
    read its rank when imported, and must not be run here.
    """

    def __init__(
        self, folders: list[str], ask: Callable[[str], None], not_own: tuple[str, ...] = ()
    ) -> None:
        self.folders = folders
        self._ask = ask
        self._not_own = not_own
        """Packages that may lie in such a folder and are none of the program's."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self.hides(name, path):
            self._ask(reasons.imports_own(name))
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)

    def hides(self, name: str, path: Any = None) -> bool:
        """Whether the program has that module, at its top level or in its part of a package."""
        if name.partition(".")[0] in self._not_own:
            return False
        return any(self._has(folder, name, path) for folder in self.folders)

    def _has(self, folder: str, name: str, path: Any) -> bool:
        folder = os.path.join(folder, *name.split(".")[:-1])
        if path is not None and folder not in path:
            return False
        spec = PathFinder.find_spec(name, [folder])
        return spec is not None and spec.origin is not None


class LeftBehind:
    """How this process stood before an import: what the import may have left is seen by it."""

    def __init__(self) -> None:
        self.descriptors = linux.open_descriptors()
        self.folder = os.getcwd()
        self.shared_memory = linux.shared_mappings()

    def reason(self) -> str:
        """What was left behind that workers would share or lose; empty if nothing."""
        if os.getcwd() != self.folder:
            return reasons.CHANGES_FOLDER
        return (
            children_left()
            or timers_left()
            or threads_left()
            or descriptors_left(self.descriptors)
            or memory_left(self.shared_memory)
        )


def children_left() -> str:
    return reasons.LEAVES_CHILD if linux.has_children() else ""


def timers_left() -> str:
    """A fork would lose them."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        if signal.getitimer(timer) != (0.0, 0.0):
            return reasons.SETS_TIMER
    return ""


def memory_left(known: set[str]) -> str:
    """Say so if there is new memory that workers would share: a lock or a value, for instance.

    One of them that dies while it holds such a lock would hang all others, for ever.
    """
    return reasons.SHARES_MEMORY if linux.shared_mappings() - known else ""


def threads_left() -> str:
    """Say so if there are threads that a fork would lose.

    A library that ends its threads before a fork and starts them again later (as OpenBLAS
    does) is fine, and shows itself: after a fork its threads are gone from the parent too.
    """
    if linux.thread_count(HARMLESS_THREADS) == 1:
        return ""
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    linux.await_end(probe)
    left = linux.thread_count(HARMLESS_THREADS) > 1
    return reasons.LEAVES_THREAD if left else ""


def descriptors_left(known: dict[int, str]) -> str:
    """Say so if something was left open: workers would share it, offset and all."""
    for descriptor, path in linux.open_descriptors().items():
        device = path.removeprefix("/dev/")
        if descriptor not in known and not (device != path and device.startswith(HARMLESS_DEVICES)):
            return reasons.opens(path)
    return ""


def why_only_cold(own_tree: OwnTree) -> str:
    """Why no worker of this program can come from a zygote at all; usually empty."""
    if sys.flags.verbose or os.environ.get("PYTHONPROFILEIMPORTTIME"):
        return reasons.SHOWS_IMPORTS
    if lacking := private_names.why_not(private_names.WARM_START):
        return lacking
    if threads_left():
        return reasons.HAS_THREAD
    for name in sorted({name.partition(".")[0] for name in sys.modules}):
        if own_tree.hides(name):
            return reasons.hidden(name)
    return ""


LOOKED_AT = "locale", "logging", "random", "warnings"
"""Loaded first, so that it shows what an import does to them."""
READ_WHEN_LOADED = (
    "CUDA_", "GLOO_", "JAX_", "NCCL_", "PYTORCH_", "TORCH_",
)  # fmt: skip
"""Variables that libraries read by themselves when they are loaded, or when a device or a group is
first used, which no import does."""
READ_WHEN_COMPUTING = (
    "BLIS_", "GOMP_", "GRPC_", "KMP_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "TF_", "VECLIB_",
    "XLA_",
)  # fmt: skip
"""And those that they read when something is first computed, which any import may do."""
USED_UNSEEN = (*READ_WHEN_COMPUTING, process_state.MODULE, process_state.ALL)
"""Where the program sets one of these, no import is known to be without it."""


class LeftToWorkers(BaseException):
    """Leaves an import with which only a worker can go on."""


class Preloading:
    """One go at what a request asks for."""

    def __init__(self, request: messages.Preload, printed: run_as_main.KeptOutput) -> None:
        self.watch = EnvironmentWatch(request.per_worker_names, request.always_set, self._asked)
        self.own_tree = OwnTree(request.own_folders, self.ask, request.not_own)
        self.fixups = fork_fixups.ForkFixups()
        self.set: dict[str, str | None] = {}
        """Variables that were set as the program will set them; None: removed."""
        self.added_to_path: list[str] = []
        self._request = request
        self._printed = printed
        self._done: list[str] = []
        self._costs: dict[str, float] = {}
        self._unfit: dict[str, str] = {}
        self._late: list[str] = []
        self.uses: dict[str, set[str]] = {}
        """By what was imported late: what it reads and sets."""
        self._set_late: set[str] = set()
        """What modules have set that are imported late."""
        self._is_late = False
        self._left_behind = LeftBehind()
        self._step = ""
        self._asked_for = ""
        """Why only a worker can go on with the step."""

    def run(self) -> messages.OfZygote:
        """All of it; returns the answer."""
        finders = sys.meta_path
        finders.insert(finders.index(PathFinder), self.own_tree)
        self.watch.begin()
        try:
            answer = self._run()
        finally:
            self.end()
        return answer

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        self.watch.end()
        if self.own_tree in sys.meta_path:
            # Not taken out of the list: it may be the one who is being asked, and then the next
            # one would be passed over.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self.own_tree]
        for folder in self.own_tree.folders:
            sys.path_importer_cache.pop(folder, None)
        self.own_tree.folders = []

    def _run(self) -> messages.OfZygote:
        steps = list(self._request.steps)
        avoided = [step for step in steps if self._is_avoided(module_of(step))]
        first = steps.index(avoided[0]) if avoided else len(steps)
        reason = self._take_all(steps[:first])
        if not reason:
            self._take_late(steps[first:])
            reason = self._take_all([step for step in steps[first:] if step not in avoided])
        if reason:
            cost_s = self._costs.get(self._step, 0.0)
            return messages.StepRejected(step=self._step, reason=reason, cost_s=cost_s)
        if self._unfit:
            return messages.LateUnfit(reasons=dict(self._unfit))
        return messages.Preloaded(
            steps=tuple(self._done),
            late=tuple(self._late),
            has_torch="torch.distributed" in sys.modules,
        )

    # The steps.

    def _take_all(self, steps: list[str]) -> str:
        for step in steps:
            self._step = step
            reason = self._take(step)
            if reason:
                return reason
            self._done.append(step)
        return ""

    def _take(self, step: str) -> str:
        """Do one step; returns why it must be left out, empty if it need not."""
        verb, _, rest = step.partition(" ")
        if verb == "environ":
            self._set_variable(rest)
            return ""
        if verb == "path":
            place, _, folder = rest.partition(" ")
            sys.path.insert(0 if place == "0" else len(sys.path), folder)
            self.added_to_path.append(folder)
            return ""
        return self._import(step)

    def _set_variable(self, text: str) -> None:
        if text.startswith("-"):
            os.environ.pop(text[1:], None)
            self.set[text[1:]] = None
            return
        name, _, value = text.partition("=")
        if name.endswith("?"):
            name = name[:-1]
            if name in os.environ:
                return
        self.set[name] = os.environ[name] = value

    def _import(self, step: str) -> str:
        self._left_behind = LeftBehind()
        before, loaded, started = self._printed.measure(), len(sys.modules), time.monotonic()
        asked = len(self.fixups.modules)
        problem = ""
        try:
            import_as_program(step)
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
            problem = reasons.raised(error)
        problem = self._asked_for or problem
        self._costs[step] = time.monotonic() - started
        after = self._printed.measure()
        if os.fsencode(FOLDER) in self._printed.errors_since(before):
            problem = problem or reasons.WARNS_ABOUT_LINE
        if after != before and len(self.fixups.modules) > asked:
            problem = problem or reasons.PRINTS_FOR_RANK
        if loaded != len(sys.modules) or problem:
            problem = self._asked_for or self._left_behind.reason() or problem
            if not problem and self.watch.kept_elsewhere():
                problem = reasons.COPIES_ENVIRONMENT
        self._printed.cut(after)  # What has been printed since is our own doing.
        return problem

    # What only a worker has.

    def _asked(self, verb: str, what: str) -> None:
        self.ask(reasons.asks(verb, what), may_be_allowed=verb == "reads")

    def ask(self, reason: str, *, may_be_allowed: bool = False) -> None:
        """Somebody needs what only a worker has. Returns where it may go on."""
        frame = sys._getframe(1)
        modules = fork_fixups.modules_being_imported(frame)
        if not modules:
            return  # It is not an import that asks.
        if may_be_allowed and (self._is_trusted(modules) or self.fixups.covers(frame)):
            return
        if self._is_late:
            for module in modules:
                self._unfit.setdefault(module, reason)
            return
        self._asked_for = self._asked_for or reason
        raise LeftToWorkers(reason)

    def _is_trusted(self, modules: list[str]) -> bool:
        trusted = self._request.trusted
        return any(is_inside(module, name) for module in modules for name in trusted)

    # What is imported late.

    def _take_late(self, steps_after: list[str]) -> None:
        """Import what workers import late; `steps_after` are those that are still to come."""
        to_be_set = {variable_of(step) for step in steps_after}
        self._is_late = True
        for root in self._request.late:
            if self._is_avoided(module_of(root) or root) or root in sys.modules:
                continue
            changed = (self._changed_before(root) | to_be_set) - self._set_late
            if not _any_begins(changed, USED_UNSEEN):
                self._late += [root] if self._import_early(root, changed) else []
        self._is_late = False

    def _changed_before(self, root: str) -> set[str]:
        """What the program sets before it imports this, beside the steps, as far as is known."""
        sets = set(self._request.sets)
        if root in self._request.in_order:
            sets = {name for name in sets if name.startswith(process_state.LOGGER)}
        return sets.union(self._request.under.get(root, ()))

    def _import_early(self, root: str, changed: set[str]) -> bool:
        """Returns whether anything of it was imported; it is unfit if that makes a difference."""
        for module in LOOKED_AT:
            import_as_program(f"import {module}")
        left_behind, loaded = LeftBehind(), len(sys.modules)
        before, printed = process_state.State(), self._printed.measure()
        libraries = linux.mapped_libraries()
        self.watch.names_read = set()
        problem = ""
        said = process_state.Noticed()
        try:
            with said:
                import_as_program(root if module_of(root) else f"import {root}")
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
            problem = reasons.raised(error)
        is_shown = said.is_shown or self._printed.measure() != printed
        if problem and len(sys.modules) == loaded and not is_shown:
            return False  # It is nowhere to be found.
        uses = self.watch.names_read | said.by | before.set_by()
        both = {n for n in uses if n in changed or n.startswith(beginnings(changed))}
        both |= before.concerned_by(changed)
        problem = problem or self._difference(before.broken(), is_shown, both)
        if _any_begins(changed, READ_WHEN_LOADED):
            problem = problem or reads_unseen(linux.mapped_libraries() - libraries)
        problem = problem or left_behind.reason()
        if problem:
            self._unfit.setdefault(module_of(root) or root, problem)
        self._set_late |= before.set_by()
        self.uses[root] = uses
        self._printed.cut(printed)
        return True

    def _difference(self, broken: str, is_shown: bool, both: set[str]) -> str:
        """Why it is not the same when it is imported early; else empty."""
        if broken:
            return reasons.changes(broken)
        if is_shown:
            return reasons.SHOWS_SOMETHING
        if both:
            return reasons.uses_set(min(both))
        if self.watch.kept_elsewhere():
            return reasons.COPIES_ENVIRONMENT
        return ""

    def _is_avoided(self, module: str) -> bool:
        return any(is_inside(module, name) for name in self._request.avoid)


def _any_begins(names: set[str], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in names)


def beginnings(names: set[str]) -> tuple[str, ...]:
    """Those of which the rest is put together: `f"NCCL_{name}"`."""
    return tuple(name for name in names if name.endswith("_"))


def reads_unseen(libraries: set[str]) -> str:
    """Say so if one of these files may ask for variables by itself."""
    for path in sorted(libraries):
        try:
            with open(path, "rb") as file:
                if b"getenv" in file.read():
                    return reasons.loads_reader(os.path.basename(path))
        except OSError:
            return reasons.loads_missing(path)
    return ""


def variable_of(step: str) -> str:
    """The variable that a step sets or removes; empty if it does neither."""
    verb, _, rest = step.partition(" ")
    return rest.partition("=")[0].strip("-?") if verb == "environ" else ""


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def module_of(step: str) -> str:
    """The module that a step imports; empty if it imports none."""
    words = step.split(" ", 2)
    return words[1] if words[0] in ("import", "from") else ""


def import_as_program(statement: str) -> None:
    """Import from code that is `__main__`, as the program does: warnings depend on it."""
    exec(compile(statement, __file__, "exec"), {"__name__": "__main__"})
