"""How the workers of a node come to start warm: from a zygote, which gets better with time.

Rules
1. A zygote is a help, never a condition: one that is late, unfit or lost means cold workers.
2. A step that cannot be done ahead is left out, and the rest is tried again.
3. What workers import after they began is part of what the next round needs. A better zygote is
   prepared beside the one that serves, while the round runs, and takes its place. It takes time
   from the workers, and would be behind at once if it were begun in the middle of their imports:
   so it waits until nothing new was told for a part of the time in which a zygote is made. One at
   a time, and only so often: what never settles is not learned for ever.
4. Of what is imported late, the modules that turn out to be unfit are avoided from then on, with
   those around them. The rest is tried again; what was found out is remembered for the next job.
5. What each worker has to import by itself is said once, with what it costs.
"""

from __future__ import annotations

from holdfast.core.node import IMPROVE_TIMER, NodeState, Phase
from holdfast.core.node_io import (
    ImportLeft,
    ImportsLearned,
    ModuleRejected,
    ModulesUnfit,
    NodeEffect,
    Remember,
    Say,
    StartZygote,
    WakeNode,
    ZygoteReady,
)
from holdfast.core.protocol.preload_steps import brought_by, module_of, without

MOST_IMPROVEMENTS = 12
"""Zygotes that are prepared beside another one, in the life of a node."""
MOST_LATE = 2000
SETTLED_AFTER = 0.25
"""Of the time in which a zygote is made: so long is waited for something new before one is."""
SETTLED_LEAST_S, SETTLED_MOST_S = 0.5, 15.0
WORTH_SAYING_S = 0.2
"""What costs each worker less than this is not worth a line."""


def start_zygote(state: NodeState, *, beside: bool = False) -> StartZygote:
    """One that does all that is known to be of use."""
    late, under = _fit(state)
    return StartZygote(state.preload, late, tuple(state.avoid), under, beside)


def came_ready(state: NodeState, event: ZygoteReady) -> list[NodeEffect]:
    """Notes what it stopped in; keeps what was found out for the next job."""
    state.stopped_in, state.has_torch = event.stopped_in, event.has_torch
    state.zygote_took_s = event.took_s
    for module in event.stopped_in:
        state.avoid.setdefault(module, event.reason)
    remembered: list[NodeEffect] = []
    if event.beside or state.avoid.keys() - state.recalled:
        remembered = [_remember(state)]
        state.recalled = frozenset(state.avoid)
    if event.beside:
        state.improving = False
    return [*remembered, *improve_soon(state)]


def rejected(state: NodeState, event: ModuleRejected) -> list[NodeEffect] | None:
    """The steps without that one; None if it was not among them, so that there is no way on."""
    module = module_of(event.module) or event.module
    rest = without(state.preload, event.module)
    if rest == state.preload:
        return None
    state.preload = rest
    state.avoid.setdefault(module, event.reason)
    return [_left_out(module, event.cost_s, event.reason)]


def unfit(state: NodeState, event: ModulesUnfit) -> None:
    state.avoid.update(event.unfit)


def learned(state: NodeState, event: ImportsLearned) -> list[NodeEffect]:
    """Workers have imported more than was there."""
    known = brought_by((*state.preload, *state.late))
    new = [m for m in event.modules if m not in known and not _is_avoided(state, m)]
    state.late = (*state.late, *new)[:MOST_LATE]
    for module in set(new) & event.under.keys():
        state.under[module] = event.under[module]
    said = _too_early(state, event.too_early)
    state.has_more_to_learn = state.has_more_to_learn or bool(new or said)
    return [*said, *improve_soon(state)] if new or said else []


def _too_early(state: NodeState, used: dict[str, tuple[str, ...]]) -> list[NodeEffect]:
    """Note what the program sets before it comes to modules that have been imported ahead."""
    said: list[NodeEffect] = []
    for module in state.late:
        known = state.under.get(module, ())
        new = [name for name in used.get(module, ()) if name not in known]
        if new:
            state.under[module] = (*known, *new)
            name = module_of(module) or module
            words = "from the next round on, each worker imports"
            said.append(Say(f"{words} {name} itself: the program sets {new[0]} before it does so"))
    return said


def improve_soon(state: NodeState) -> list[NodeEffect]:
    """Prepare a better zygote once nothing new has come for a while; begins that while anew."""
    if not _can_improve(state):
        return []
    settled_s = SETTLED_AFTER * state.zygote_took_s
    return [WakeNode(IMPROVE_TIMER, min(max(settled_s, SETTLED_LEAST_S), SETTLED_MOST_S))]


def improve(state: NodeState) -> list[NodeEffect]:
    """Prepare a better zygote, if there is one to be had and nothing else to do."""
    if not _can_improve(state):
        return []
    state.improving, state.has_more_to_learn = True, False
    state.improvements += 1
    return [start_zygote(state, beside=True)]


def _can_improve(state: NodeState) -> bool:
    can_begin = not state.improving and state.improvements < MOST_IMPROVEMENTS
    return can_begin and state.has_more_to_learn and state.warm and state.phase is Phase.RUNNING


def untold(state: NodeState) -> list[NodeEffect]:
    """The job is over before another zygote was ready: the next job may try what was learned."""
    return [_remember(state)] if state.improving or state.has_more_to_learn else []


def failed_beside(state: NodeState) -> list[NodeEffect]:
    """The one that was to be better is of no use; with what is known now, another may be."""
    state.improving = False
    state.has_more_to_learn = True
    return improve(state)


def import_left(state: NodeState, event: ImportLeft) -> list[NodeEffect]:
    """A worker went on with an import that the zygote could not finish: say what it costs."""
    if state.left_out_said or not state.stopped_in or event.took_s < WORTH_SAYING_S:
        return []
    state.left_out_said = True
    outermost = state.stopped_in[-1]
    return [_left_out(outermost, event.took_s, state.avoid.get(state.stopped_in[0], ""))]


def _remember(state: NodeState) -> Remember:
    late, under = _fit(state)
    return Remember(late, dict(state.avoid), under)


def _left_out(module: str, cost_s: float, reason: str) -> Say:
    cost = f", about {cost_s:.1f} s" if cost_s >= WORTH_SAYING_S else ""
    hint = ""
    if " reads " in reason and "RANK" in reason:
        hint = f" (if that does not matter: --preload {module})"
    return Say(f"each worker imports {module} itself{cost}: {reason}{hint}")


def _fit(state: NodeState) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """What is imported late and need not be avoided, and under which variables."""
    late = tuple(module for module in state.late if not _is_avoided(state, module))
    return late, {module: names for module, names in state.under.items() if module in late}


def _is_avoided(state: NodeState, module: str) -> bool:
    name = module_of(module) or module
    return any((name + ".").startswith(avoided + ".") for avoided in state.avoid)
