"""The one place that forms rounds, decides restarts and orders failures.

Rules
1. `step` is the only way in: an event and the time go in, effects come out. There is no
   clock, no randomness and no I/O here; the same events give the same effects.
2. Round numbers only grow. What names an older round is ignored.
3. Ending a round is immediate: the first failure stops it everywhere. Judging it waits
   until every member has stopped, because only then are all failures known.
4. A job closes once; the outcome that it closed with is final.

A round's life, as its members see it:

    (forming) ──RunRound──▶ running ──all succeeded──▶ CloseJob
        ▲                      │ first failure
        │                   StopRound
        │                      ▼
        └──────restart──── stopping ──give up──▶ CloseJob
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.core import ranks, restarts, rootcause, rounds
from holdfast.core.config import JobConfig
from holdfast.core.messages import (
    CloseJob,
    FromNode,
    NodeJoined,
    NodeLeft,
    RoundStopped,
    RunRound,
    StopRound,
    ToNode,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.model import Endpoint, Failure, NodeInfo, Outcome, Record

FORM_TIMER = "form"
EXIT_FAILED = 1


class Heard(Record, frozen=True):
    """A node said something."""

    node: str
    message: FromNode


class CoordinatorTimerFired(Record, frozen=True):
    """A timer that was asked for with `WakeCoordinator` has run out."""

    name: str


class Tell(Record, frozen=True):
    """Send this to a node."""

    node: str
    message: ToNode


class WakeCoordinator(Record, frozen=True):
    """Come back with `CoordinatorTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


class Explain(Record, frozen=True):
    """A decision or a wait, in the words that the user reads."""

    text: str


CoordinatorEvent = Heard | CoordinatorTimerFired
CoordinatorEffect = Tell | WakeCoordinator | Explain


class Member(Struct):
    """A node as the coordinator knows it."""

    info: NodeInfo
    endpoint: Endpoint
    busy: bool = False
    """It may still have processes of the last round."""


class RunningRound(Struct):
    """The round that is running or being stopped."""

    number: int
    members: tuple[str, ...]
    started_at: float
    stop_reason: str = ""
    succeeded: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    furthest_step: int | None = None


class CoordinatorState(Struct):
    """Everything the coordinator remembers."""

    config: JobConfig
    members: dict[str, Member] = field(default_factory=dict)
    round: RunningRound | None = None
    round_number: int = 0
    restart_count: int = 0
    history: list[restarts.RoundFailure] = field(default_factory=list)
    furthest_step: int | None = None
    not_before: float = 0.0
    enough_since: float | None = None
    waiting_for: str = ""
    outcome: Outcome | None = None


def step(state: CoordinatorState, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
    """Advance by one event."""
    if isinstance(event, CoordinatorTimerFired):
        return _form(state, now)
    match event.message:
        case NodeJoined():
            return _joined(state, event.node, event.message, now)
        case WorkersFailed():
            return _failed(state, event.message)
        case WorkersSucceeded():
            return _succeeded(state, event.node, event.message)
        case WorkersProgressed():
            return _progressed(state, event.message)
        case RoundStopped():
            return _stopped(state, event.node, event.message, now)
        case NodeLeft():
            return _left(state, event.node, event.message)


def _joined(
    state: CoordinatorState, node: str, message: NodeJoined, now: float
) -> list[CoordinatorEffect]:
    if state.outcome is not None:
        return [Tell(node, CloseJob(state.outcome))]
    state.members[node] = Member(message.info, message.endpoint)
    return _form(state, now)


def _failed(state: CoordinatorState, message: WorkersFailed) -> list[CoordinatorEffect]:
    current = _current(state, message.round)
    if current is None:
        return []
    current.failures.extend(message.failures)
    if current.stop_reason:
        return []
    first = message.failures[0]
    current.stop_reason = rootcause.describe(first)
    stop = StopRound(current.number, current.stop_reason)
    return [Tell(node, stop) for node in current.members]


def _succeeded(
    state: CoordinatorState, node: str, message: WorkersSucceeded
) -> list[CoordinatorEffect]:
    current = _current(state, message.round)
    if current is None:
        return []
    current.succeeded.add(node)
    if current.stop_reason or len(current.succeeded) < len(current.members):
        return []
    return _close(state, Outcome("succeeded", "all workers succeeded", 0))


def _progressed(state: CoordinatorState, message: WorkersProgressed) -> list[CoordinatorEffect]:
    current = _current(state, message.round)
    if current is not None:
        current.furthest_step = max(message.step, current.furthest_step or 0)
    return []


def _stopped(
    state: CoordinatorState, node: str, message: RoundStopped, now: float
) -> list[CoordinatorEffect]:
    current = _current(state, message.round)
    if current is None:
        return []
    current.failures = _merged(current.failures, message.failures)
    member = state.members[node]
    member.busy, member.endpoint = False, message.endpoint
    if any(state.members[name].busy for name in current.members):
        return []
    return _judge(state, current, now)


def _left(state: CoordinatorState, node: str, message: NodeLeft) -> list[CoordinatorEffect]:
    state.members.pop(node, None)
    if state.outcome is not None or state.members:
        return []
    if message.signal is not None:
        outcome = Outcome("interrupted", message.reason, 128 + message.signal)
    else:
        outcome = _failed_outcome(message.reason, rootcause.name(message.failures))
    state.outcome = outcome
    return [Tell(node, CloseJob(outcome))]


def _judge(state: CoordinatorState, ended: RunningRound, now: float) -> list[CoordinatorEffect]:
    """Every member has stopped, so every failure is known: restart or give up."""
    state.round = None
    cause = rootcause.name(ended.failures)
    assert cause is not None, "a round was stopped without a failure"
    state.history.append(_remember(state, ended, cause.first, now))
    verdict = restarts.decide(state.config.restarts, tuple(state.history), now, state.config.run_id)
    what = rootcause.describe(cause.first)
    if isinstance(verdict, restarts.GiveUp):
        return _close(state, _failed_outcome(f"{what}; {verdict.reason}", cause))
    state.restart_count += 1
    state.not_before = now + verdict.delay_s
    return [Explain(f"{what}; {verdict.reason}"), *_form(state, now)]


def _remember(
    state: CoordinatorState, ended: RunningRound, first: Failure, now: float
) -> restarts.RoundFailure:
    reported = ended.furthest_step
    progressed = None
    if reported is not None or state.furthest_step is not None:
        progressed = (reported or 0) > (state.furthest_step or 0)
        state.furthest_step = max(reported or 0, state.furthest_step or 0)
    return restarts.RoundFailure(
        at=now,
        lasted_s=now - ended.started_at,
        progressed=progressed,
        fingerprint=restarts.fingerprint(first),
        exit_code=first.status.code,
        non_retryable=first.error.non_retryable,
    )


def _form(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    if state.round is not None:
        return []
    candidates = _candidates(state)
    if len(candidates) < state.config.min_nodes:
        state.enough_since = None
    elif state.enough_since is None:
        state.enough_since = now
    decision = rounds.decide(_view(state, candidates), now)
    match decision:
        case rounds.Form():
            return _announce(state, decision.members, now)
        case rounds.Wait():
            effects: list[CoordinatorEffect] = []
            if decision.reason != state.waiting_for:
                effects.append(Explain(decision.reason))
            state.waiting_for = decision.reason
            if decision.wake_at is not None:
                effects.append(WakeCoordinator(FORM_TIMER, max(0.0, decision.wake_at - now)))
            return effects
        case rounds.Refuse():
            return []


def _view(state: CoordinatorState, candidates: tuple[str, ...]) -> rounds.View:
    return rounds.View(
        candidates=candidates,
        minimum=state.config.min_nodes,
        maximum=state.config.max_nodes,
        closed=state.outcome.reason if state.outcome else "",
        not_back=tuple(name for name, member in state.members.items() if member.busy),
        first_round=state.round_number == 0,
        enough_since=state.enough_since,
        not_before=state.not_before,
        last_call_s=state.config.timeouts.last_call_s,
    )


def _candidates(state: CoordinatorState) -> tuple[str, ...]:
    return tuple(name for name, member in state.members.items() if not member.busy)


def _announce(
    state: CoordinatorState, members: tuple[str, ...], now: float
) -> list[CoordinatorEffect]:
    state.round_number += 1
    state.waiting_for = ""
    state.round = RunningRound(state.round_number, members, started_at=now)
    assignments = ranks.assign(
        [state.members[name].info for name in members],
        round=state.round_number,
        restart_count=state.restart_count,
        master=state.members[members[0]].endpoint,
    )
    for name in members:
        state.members[name].busy = True
    return [Tell(name, RunRound(assignments[name])) for name in members]


def _close(state: CoordinatorState, outcome: Outcome) -> list[CoordinatorEffect]:
    state.outcome = outcome
    return [Tell(node, CloseJob(outcome)) for node in state.members]


def _failed_outcome(reason: str, cause: rootcause.Cause | None) -> Outcome:
    if cause is None:
        return Outcome("failed", reason, EXIT_FAILED)
    others = cause.also_failed + cause.victims + cause.stopped
    return Outcome("failed", reason, EXIT_FAILED, cause.first, others)


def _merged(known: list[Failure], final: tuple[Failure, ...]) -> list[Failure]:
    """A node's last word on a round replaces what it had said about the same ranks."""
    ranks_told = {failure.rank for failure in final}
    return [failure for failure in known if failure.rank not in ranks_told] + list(final)


def _current(state: CoordinatorState, number: int) -> RunningRound | None:
    if state.round is not None and state.round.number == number:
        return state.round
    return None
