"""How the workers of a node come to start warm: from a zygote, which gets better with time.

Rules
1. A zygote is a help, never a condition: one that is late, unfit or lost means cold workers.
2. A step that cannot be done ahead is left out, and the rest is tried again.
3. What workers import after they began is part of what the next round needs. A better zygote is
   prepared beside the one that serves, while the round runs, and takes its place. It takes time
   from the workers, and would be behind at once if it were begun in the middle of their imports:
   so it waits until nothing new was learned for a part of the time in which a zygote is made. One
   at a time, and only so often: what never settles is not learned for ever.
4. Of what is imported late, the modules that turn out to be unfit are avoided from then on, with
   those around them. The rest is tried again; what was found out is remembered for the next job.
5. What each worker has to import by itself is said once, with what it costs.

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
from holdfast.core.protocol.messages import ToNode
from holdfast.core.protocol.preload_steps import brought_by, module_of, packages_of, without

PRELOAD_TIMER = "preload"
NOTICE_TIMER = "preload notice"
FORK_TIMER = "fork"
IMPROVE_TIMER = "improve"
NOTICE_S = 1.5
"""An import that takes longer than this is worth a line, so that nobody wonders."""
MOST_IMPROVEMENTS = 12
"""Zygotes that are prepared beside another one, in the life of a node."""
MOST_LATE = 2000
SETTLED_AFTER = 0.25
"""Of the time in which a zygote is made: so long is waited for something new before one is."""
SETTLED_LEAST_S, SETTLED_MOST_S = 0.5, 15.0
WORTH_SAYING_S = 0.2
"""What costs each worker less than this is not worth a line."""


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
    """What workers import after they began, as far as it is known."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Modules that cannot be imported ahead, and why."""
    remembered: frozenset[str] = frozenset()
    """Those of them that are kept for the next job."""
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some of what is late, what the program has set by then."""
    stopped_in: tuple[str, ...] = ()
    """What the zygote was importing when it could not go on but in a worker, innermost first."""
    left_out_announced: bool = False
    took_s: float = 0.0
    """How long the last zygote was made."""
    improving: bool = False
    """A better one is being prepared beside the one that serves."""
    improvements: int = 0
    """How many of them were begun."""
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
        """If another zygote was not ready in time, the next job may try what was learned."""
        return [self._remember()] if self.improving or self.has_more_to_learn else []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        if state.phase is Phase.CLOSING:
            # Nothing is prepared any more; but nobody waits for workers that cannot be forked.
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
            said = "the process that forks warm workers does not answer: killing it"
            return [Say(said), KillZygote()]
        if self.zygote is not ZygoteStage.PREPARING:
            return []
        if name == PRELOAD_TIMER:
            limit = f"{state.config.timeouts.preload_s:g} s"
            return self._lost(state, f"preloading took more than {limit}")
        packages = packages_of((*self.preload, *self.late))
        named = ", ".join(one for one in packages if one not in sys.stdlib_module_names)
        return [Say(f"importing {named or 'modules'} once for all workers of this node")]

    def _start(self, *, beside: bool = False) -> StartZygote:
        """A zygote that does all that is known to be of use."""
        late, under = self._fit()
        return StartZygote(self.preload, late, tuple(self.avoid), under, beside)

    def _ready(self, state: NodeState, event: ZygoteReady) -> Effects:
        """Note what it stopped in; keep what was found out for the next job."""
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
            effects.append(Say(f"workers start cold: {reason}"))
        if was is ZygoteStage.PREPARING:
            return effects + ready_to_start(state, StartMode())
        return effects + zygote_lost(state)

    def _rejected(self, state: NodeState, event: ModuleRejected) -> Effects:
        """Go on without that step; if it was none of ours, there is no way on."""
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
        said = _left_out(module, event.cost_s, event.reason)
        return [said, *self._try_again(state, event.beside)]

    def _try_again(self, state: NodeState, beside: bool) -> Effects:
        """With what is known now, another zygote may do."""
        if beside:
            self.improving, self.has_more_to_learn = False, True
            return self._improve(state)
        return [self._start()] if self.zygote is ZygoteStage.PREPARING else []

    def _learned(self, state: NodeState, event: ImportsLearned) -> Effects:
        """Workers have imported more than was there."""
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
        """Note what the program sets before it comes to modules that have been imported ahead."""
        said: Effects = []
        for module in self.late:
            known = self.under.get(module, ())
            new = [name for name in used.get(module, ()) if name not in known]
            if new:
                self.under[module] = (*known, *new)
                name = module_of(module) or module
                words = "from the next round on, each worker imports"
                why = f"the program sets {new[0]} before it does so"
                said.append(Say(f"{words} {name} itself: {why}"))
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
        if self.left_out_announced or not self.stopped_in or event.took_s < WORTH_SAYING_S:
            return []
        self.left_out_announced = True
        reason = self.avoid.get(self.stopped_in[0], "")
        return [_left_out(self.stopped_in[-1], event.took_s, reason)]

    def _remember(self) -> Remember:
        late, under = self._fit()
        return Remember(late, dict(self.avoid), under)

    def _fit(self) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """What is imported late and need not be avoided, and under which variables."""
        late = tuple(module for module in self.late if not self._is_avoided(module))
        return late, {module: names for module, names in self.under.items() if module in late}

    def _is_avoided(self, module: str) -> bool:
        name = module_of(module) or module
        return any((name + ".").startswith(avoided + ".") for avoided in self.avoid)


def _left_out(module: str, cost_s: float, reason: str) -> Say:
    cost = f", about {cost_s:.1f} s" if cost_s >= WORTH_SAYING_S else ""
    hint = ""
    if " reads " in reason and "RANK" in reason:
        hint = f" (if that does not matter: --preload {module})"
    return Say(f"each worker imports {module} itself{cost}: {reason}{hint}")
