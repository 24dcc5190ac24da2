"""Health probes: whether a node is alive, ready and making progress.

Rules
1. *Alive*: the last sign of life is recent enough. An agent that answers on its own loop gives one
   by that; a server beside an agent (`holdfast.elastic`) is told of its last.
2. *Ready*: in a formed round, and each worker's process exists. The loss of the coordinator
   changes nothing: the round goes on until the lease ends, and then it is over.
3. *Progress*: the last step that any worker of this node reported is at most `max_age_s` old; in
   a round without one yet, the round is. A failed probe gets a node killed, so a node passes
   where nothing can be known: where no round runs, where all workers here are done, and where
   none of them ever reports a step.
4. Each verdict has one sentence for people, and facts for machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from holdfast.core.node import NodeState, Phase, alive
from holdfast.core.policy.worker_progress import WorkerProgress

Fact = str | int | float | bool | None | list[dict[str, "Fact"]]


class Health(Struct, frozen=True):
    """One verdict."""

    is_well: bool
    words: str
    facts: Mapping[str, Fact] = field(default_factory=dict)


def liveness(silence_s: float, allowed_s: float) -> Health:
    """Whether the last sign of life is recent enough (rule 1)."""
    if silence_s <= allowed_s:
        return Health(True, "alive")
    return Health(False, f"no sign of life for {silence_s:.0f} s, and {allowed_s:g} s are allowed")


_UNREADY = {
    Phase.PREPARING: "this node prepares to start workers",
    Phase.WAITING: "this node waits for a round to form",
    Phase.STOPPING: "a round is being stopped, and another follows",
    Phase.CLOSING: "the job is over on this node, and its processes end",
    Phase.FINISHED: "the job is over on this node",
}


def readiness(state: NodeState) -> Health:
    """Whether the node takes part in a formed round (rule 2)."""
    facts: dict[str, Fact] = {
        "phase": state.phase.value,
        "round": state.last_round,
        "coordinator_reached": state.link.is_up,
    }
    current = state.assignment
    if state.phase is not Phase.RUNNING or current is None:
        return Health(False, f"not ready: {_without_contact(state, _UNREADY)}", facts)
    ranks = [worker.rank for worker in current.workers]
    facts |= {"workers": len(alive(state)), "ranks": current.world_size}
    if any(worker.pid is None for worker in state.workers.values()) or not state.workers:
        return Health(False, f"not ready: the workers of round {current.round} start", facts)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    words = f"ready: in round {current.round} with {which} of {current.world_size}"
    return Health(True, words, facts)


def _without_contact(state: NodeState, words: Mapping[Phase, str]) -> str:
    said = words.get(state.phase, "no round runs here")
    is_sought = state.phase is Phase.WAITING and not state.link.is_up
    return f"{said}, and no coordinator is reached" if is_sought else said


def progress(
    state: NodeState,
    workers: Sequence[WorkerProgress],
    round_age_s: float,
    max_age_s: float | None,
) -> Health:
    """Whether the workers of this node make progress (rule 3); without a limit, only the facts.

    `round_age_s` is how long the round of these workers has run.
    """
    facts: dict[str, Fact] = {
        "round": state.last_round,
        "ranks": [_facts(one) for one in workers],
    }
    if state.phase is not Phase.RUNNING or not workers:
        return Health(True, "no worker runs here now", facts)
    ages = [one.step_age_s for one in workers if one.step_age_s is not None]
    steps = [one.step for one in workers if one.step is not None]
    if not ages and state.furthest_step is None:
        return Health(True, "no worker here reports its step (holdfast.progress)", facts)
    age_s = min(ages) if ages else round_age_s
    what = f"step {max(steps)} was reported" if steps else f"round {state.last_round} began"
    facts |= {"step": max(steps) if steps else None, "age_s": round(age_s, 3)}
    words = f"{what} {age_s:.1f} s ago"
    if max_age_s is None or age_s <= max_age_s:
        return Health(True, words, facts)
    return Health(False, f"{words}, and {max_age_s:g} s are allowed", facts)


def _facts(one: WorkerProgress) -> dict[str, Fact]:
    return {
        "rank": one.rank,
        "step": one.step,
        "age_s": None if one.step_age_s is None else round(one.step_age_s, 3),
        "steps_per_second": None if one.steps_a_second is None else round(one.steps_a_second, 3),
        "phase": one.phase,
    }
