"""Warm start of a node's workers: from a zygote, which gets better with time.

Rules
1. A zygote is a help, never a condition: one that is late, unfit or lost means cold workers.
2. A step that cannot be done ahead is left out, and the rest is tried again.
3. Late imports of workers are part of what the next round needs. A better zygote is
   prepared beside the one that serves, while the round runs, and replaces it. It takes time
   from the workers, and would be outdated at once if it were begun in the middle of their imports:
   so it waits until nothing new was learned for a part of the time in which a zygote is made. One
   at a time, and a limited number: imports that never settle are not learned for ever.
4. Late imports that turn out to be unfit are avoided from then on, with the modules
   around them. The rest is tried again; findings are remembered for the next job.
5. The imports left to each worker are reported once, with their cost.

The node's machine hears only two things of all this: `ready_to_start`, and `zygote_lost`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import ClassVar

from msgspec import field

from holdfast.core.node import NodeState, Phase, StartMode, ready_to_start, unstarted, zygote_lost
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import (
    DropZygote,
    ImportLeft,
    ImportsLearned,
    KillZygote,
    ModuleRejected,
    ModulesUnfit,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    Remember,
    Say,
    StartZygote,
    WakeNode,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import ToNode
from holdfast.core.protocol.preload_steps import brought_by, module_of, packages_of, without

PRELOAD_TIMER = "preload"
NOTICE_TIMER = "preload notice"
FORK_TIMER = "fork"
IMPROVE_TIMER = "improve"
NOTICE_S = 1.5
"""An import that takes longer than this is reported, to explain the wait."""
MOST_IMPROVEMENTS = 12
"""Zygotes that are prepared beside another one, in the life of a node."""
MOST_LATE = 2000
SETTLED_AFTER = 0.25
"""Part of the time in which a zygote is made: the quiet time before a better one is begun."""
SETTLED_LEAST_S, SETTLED_MOST_S = 0.5, 15.0


class ZygoteStage(StrEnum):
    NONE = "none"
    PREPARING = "preparing"
    SERVING = "serving"


class NodeWarmStart(NodeFeature):
    TAKES: ClassVar = (
        ZygoteReady,
        ZygoteLost,
        ModuleRejected,
        ModulesUnfit,
        ImportsLearned,
        ImportLeft,
        PRELOAD_TIMER,
        NOTICE_TIMER,
        FORK_TIMER,
        IMPROVE_TIMER,
    )
    zygote: ZygoteStage = ZygoteStage.NONE
    preload: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    """Late imports of the workers, as far as known."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Modules that cannot be imported ahead, and why."""
    remembered: frozenset[str] = frozenset()
    """The unfit modules that are kept for the next job."""
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some late imports, the variables that the program has set by then."""
    stopped_in: tuple[str, ...] = ()
    """The imports in which the zygote stopped, to go on in a worker, innermost first."""
    left_out_announced: bool = False
    took_s: float = 0.0
    """How long the last zygote took to make."""
    improving: bool = False
    """A better one is being prepared beside the one that serves."""
    improvements: int = 0
    """How many better ones were begun."""
    has_more_to_learn: bool = False

    def started(self, state: NodeState, event: NodeStarted) -> Effects:
        self.preload, self.late = event.preload, event.late
        self.avoid, self.under = dict(event.avoid), dict(event.under)
        self.remembered = frozenset(event.avoid)
        if event.cold:
            return ready_to_start(state, StartMode())
        self.zygote = ZygoteStage.PREPARING
        limit = WakeNode(PRELOAD_TIMER, state.config.timeouts.preload_s)
        return [self._start(), limit, WakeNode(NOTICE_TIMER, NOTICE_S)]

    def round_started(self, state: NodeState) -> Effects:
        if self.zygote is not ZygoteStage.SERVING:
            return []
        limit = WakeNode(FORK_TIMER, state.config.timeouts.preload_s)
        return [limit, *self._improve_soon(state)]

    def finishing(self, state: NodeState) -> Effects:
        """If another zygote was not ready in time, the next job may try the late imports."""
        return [self._remember()] if self.improving or self.has_more_to_learn else []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        if state.phase is Phase.CLOSING:
            # Nothing is prepared any more; but workers that cannot be forked are not waited for.
            return zygote_lost(state) if isinstance(event, ZygoteLost) else []
        match event:
            case NodeTimerFired():
                return self._timer(state, event.name)
            case ZygoteReady():
                return self._ready(state, event)
            case ZygoteLost(beside=True):
                self.improving = False
                return []
            case ZygoteLost():
                return self._lost(state, event.reason)
            case ModuleRejected():
                return self._rejected(state, event)
            case ModulesUnfit():
                self.avoid.update(event.unfit)
                return self._try_again(state, event.beside)
            case ImportsLearned():
                return self._learned(state, event)
            case ImportLeft():
                return self._import_left(event)
        raise AssertionError(f"not about warm start: {event}")

    def _timer(self, state: NodeState, name: str) -> Effects:
        if name == IMPROVE_TIMER:
            return self._improve(state)
        if name == FORK_TIMER:
            is_late = state.phase is Phase.RUNNING and bool(unstarted(state))
            if not is_late or self.zygote is not ZygoteStage.SERVING:
                return []
            return [Say(sentences.ZYGOTE_SILENT), KillZygote()]
        if self.zygote is not ZygoteStage.PREPARING:
            return []
        if name == PRELOAD_TIMER:
            return self._lost(state, sentences.preload_too_late(state.config.timeouts.preload_s))
        packages = packages_of((*self.preload, *self.late))
        named = [one for one in packages if one not in sys.stdlib_module_names]
        return [Say(sentences.importing(named))]

    def _start(self, *, beside: bool = False) -> StartZygote:
        """Start a zygote with everything known to be useful."""
        late, under = self._fit()
        return StartZygote(self.preload, late, tuple(self.avoid), under, beside)

    def _ready(self, state: NodeState, event: ZygoteReady) -> Effects:
        """Note where it stopped; keep findings for the next job."""
        is_first = self.zygote is ZygoteStage.PREPARING
        if not (is_first or event.beside):
            return []
        self.stopped_in, self.took_s = event.stopped_in, event.took_s
        for module in event.stopped_in:
            self.avoid.setdefault(module, event.reason)
        effects: Effects = []
        if event.beside or self.avoid.keys() - self.remembered:
            effects.append(self._remember())
            self.remembered = frozenset(self.avoid)
        mode = StartMode(warm=True, has_torch=event.has_torch)
        if is_first:
            self.zygote = ZygoteStage.SERVING
            return effects + ready_to_start(state, mode)
        self.improving = False
        if self.zygote is ZygoteStage.SERVING:
            state.start_mode = mode
        return effects + self._improve_soon(state)

    def _lost(self, state: NodeState, reason: str) -> Effects:
        was, self.zygote = self.zygote, ZygoteStage.NONE
        if was is ZygoteStage.NONE:
            return []  # Told twice: a request had crossed the news.
        effects: Effects = [DropZygote()]
        if state.leaving.draining_by is None:  # Else none will start here; it got the same signal.
            effects.append(Say(sentences.cold_start(reason)))
        if was is ZygoteStage.PREPARING:
            return effects + ready_to_start(state, StartMode())
        return effects + zygote_lost(state)

    def _rejected(self, state: NodeState, event: ModuleRejected) -> Effects:
        """Go on without that step; if it was none of ours, start cold."""
        module = module_of(event.module) or event.module
        rest = without(self.preload, event.module)
        if rest == self.preload and event.beside:
            self.improving = False
            return []
        if rest == self.preload:
            reason = f"{event.module}: {event.reason}"
            return self._lost(state, f"it cannot be left out: {reason}")
        self.preload = rest
        self.avoid.setdefault(module, event.reason)
        said = sentences.imported_by_each(module, event.cost_s, event.reason)
        return [Say(said), *self._try_again(state, event.beside)]

    def _try_again(self, state: NodeState, beside: bool) -> Effects:
        """With these modules avoided, another zygote may do."""
        if beside:
            self.improving, self.has_more_to_learn = False, True
            return self._improve(state)
        return [self._start()] if self.zygote is ZygoteStage.PREPARING else []

    def _learned(self, state: NodeState, event: ImportsLearned) -> Effects:
        """Workers have imported more than the zygote had."""
        known = brought_by((*self.preload, *self.late))
        new = [m for m in event.modules if m not in known and not self._is_avoided(m)]
        self.late = (*self.late, *new)[:MOST_LATE]
        for module in set(new) & event.under.keys():
            self.under[module] = event.under[module]
        said = self._too_early(event.too_early)
        if not (new or said):
            return []
        self.has_more_to_learn = True
        return [*said, *self._improve_soon(state)]

    def _too_early(self, used: dict[str, tuple[str, ...]]) -> Effects:
        """Note the variables that the program sets before its already imported modules."""
        said: Effects = []
        for module in self.late:
            known = self.under.get(module, ())
            new = [name for name in used.get(module, ()) if name not in known]
            if new:
                self.under[module] = (*known, *new)
                name = module_of(module) or module
                said.append(Say(sentences.imported_too_early(name, new[0])))
        return said

    def _improve_soon(self, state: NodeState) -> Effects:
        """Prepare a better zygote once nothing new has come for a while; begins that while anew."""
        if not self._can_improve(state):
            return []
        settled_s = SETTLED_AFTER * self.took_s
        return [WakeNode(IMPROVE_TIMER, min(max(settled_s, SETTLED_LEAST_S), SETTLED_MOST_S))]

    def _improve(self, state: NodeState) -> Effects:
        """Prepare a better zygote, if there is one to be had and nothing else to do."""
        if not self._can_improve(state):
            return []
        self.improving, self.has_more_to_learn = True, False
        self.improvements += 1
        return [self._start(beside=True)]

    def _can_improve(self, state: NodeState) -> bool:
        can_begin = not self.improving and self.improvements < MOST_IMPROVEMENTS
        serves = self.zygote is ZygoteStage.SERVING and state.phase is Phase.RUNNING
        return can_begin and self.has_more_to_learn and serves

    def _import_left(self, event: ImportLeft) -> Effects:
        """A worker went on with an import that the zygote could not finish: say what it costs."""
        is_cheap = event.took_s < sentences.WORTH_SAYING_S
        if self.left_out_announced or not self.stopped_in or is_cheap:
            return []
        self.left_out_announced = True
        reason = self.avoid.get(self.stopped_in[0], "")
        said = sentences.imported_by_each(self.stopped_in[-1], event.took_s, reason)
        return [Say(said)]

    def _remember(self) -> Remember:
        late, under = self._fit()
        return Remember(late, dict(self.avoid), under)

    def _fit(self) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Late imports that need not be avoided, and the variables for each."""
        late = tuple(module for module in self.late if not self._is_avoided(module))
        return late, {module: names for module, names in self.under.items() if module in late}

    def _is_avoided(self, module: str) -> bool:
        name = module_of(module) or module
        return any((name + ".").startswith(avoided + ".") for avoided in self.avoid)
