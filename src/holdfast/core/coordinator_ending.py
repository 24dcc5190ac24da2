"""How a round ends: what ends it, who is waited for, and how it is judged.

Rules
1. Ending is immediate and happens once: whatever comes later is noted, not acted on.
2. A member is done with when it says that nothing of the round is left on it, when it has
   left, or when it is proven to be gone. A suspicion is no proof.
3. Only a round that ended because a worker failed, and in which no member was lost, is
   charged: the peers of a machine that dies fail first, and the loss is known later.
4. After the first success the round is closing: the loss of a node that has finished is none.
5. Rounds in a row without progress end the job, whatever ended them.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import restarts, rootcause
from holdfast.core.config import Timeouts
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    Disconnect,
    Explain,
    Reinstate,
    Resign,
    Revoke,
    Tell,
)
from holdfast.core.coordinator_state import (
    EXIT_FAILED,
    UNKNOWN,
    CoordinatorState,
    EndingKind,
    Penalty,
    RunningRound,
    current_round,
    note_done,
    settle,
)
from holdfast.core.document import brief, fit_outcome
from holdfast.core.messages import (
    DescribeFailures,
    FailuresDescribed,
    NodeLeft,
    RoundStopped,
    Standing,
    StopRound,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.model import Failure, Outcome

ALL_SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)
DESCRIBED_NODES = 3
"""How many nodes are asked for all that they know of their failures."""
STOP_MARGIN_S = 5.0
RESIGN_FROM = 3
"""Of two nodes, one that is lost is half of them: that says nothing about who is cut off."""


def end(
    state: CoordinatorState, current: RunningRound, kind: EndingKind, reason: str, now: float
) -> list[CoordinatorEffect]:
    """Stop the round everywhere, unless that is under way."""
    if current.ending is not None:
        return []
    current.ending, current.stop_reason = kind, reason
    current.stop_deadline = state.looks["stop"] = now + patience_s(state.config.timeouts)
    if not current.announced:
        # Nobody was told to start, so nobody has to stop.
        for name in current.members:
            _is_back(state, current, name)
        return []
    stop = StopRound(current.number, reason)
    told = [name for name in current.members if name != UNKNOWN and name not in current.gone]
    return [Tell(name, stop) for name in told if name not in current.back]


def patience_s(timeouts: Timeouts) -> float:
    """How long a node may take to stop its workers: as long as its own waits may last."""
    return timeouts.shutdown_s + 3 * timeouts.unkillable_s + STOP_MARGIN_S


def _is_back(state: CoordinatorState, current: RunningRound, node: str) -> None:
    current.back.add(node)
    member = state.members.get(node)
    if member is not None:
        member.round = 0
        settle(state, node)


# What ends it.


def failed(
    state: CoordinatorState, node: str, message: WorkersFailed, now: float
) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is None or not current.has(node) or not message.failures:
        return []
    _note(current, message.failures, now)
    effects = _ask_for_details(current, node, message.failures)
    reason = rootcause.describe(message.failures[0])
    return end(state, current, "failure", reason, now) + effects


def _ask_for_details(
    current: RunningRound, node: str, failures: tuple[Failure, ...]
) -> list[CoordinatorEffect]:
    """Ten thousand tracebacks at once would drown the heartbeats: a few nodes tell theirs."""
    known_in_full = not any(failure.brief for failure in failures)
    if known_in_full or current.described >= DESCRIBED_NODES:
        return []
    current.described += 1
    return [Tell(node, DescribeFailures(current.number))]


def described(state: CoordinatorState, message: FailuresDescribed) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is not None:
        _note(current, message.failures, None)
    return []


def succeeded(
    state: CoordinatorState, node: str, message: WorkersSucceeded
) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is None or not current.has(node):
        return []
    current.succeeded.add(node)
    if node == state.leader:
        note_done(state, current, node)
    if current.ending is not None or len(current.succeeded) < len(current.members):
        return []
    return close(state, ALL_SUCCEEDED)


def stopped(
    state: CoordinatorState, node: str, message: RoundStopped, now: float
) -> list[CoordinatorEffect]:
    member = state.members.get(node)
    if member is None:
        return []
    current = current_round(state, message.round)
    if member.round == message.round or current is not None:
        member.round, member.endpoint = 0, message.endpoint
        settle(state, node)
    if current is None or not current.has(node) or node in current.gone:
        return []
    _note(current, message.failures, now)
    where = member.info.host
    effects = reinstate(state, node)
    effects += end(state, current, "loss", f"{where} has stopped its workers on its own", now)
    _is_back(state, current, node)
    return effects


def stands(
    state: CoordinatorState, current: RunningRound, node: str, standing: Standing, now: float
) -> list[CoordinatorEffect]:
    """A member of the current round has greeted again: take what it says about the round."""
    member = state.members[node]
    member.round = 0 if standing.condition == "stopped" else current.number
    effects: list[CoordinatorEffect] = []
    if standing.condition == "failed":
        effects = failed(state, node, WorkersFailed(current.number, standing.failures), now)
    elif standing.condition == "succeeded":
        effects = succeeded(state, node, WorkersSucceeded(current.number))
    elif standing.condition != "running":
        _note(current, standing.failures, now)
        reason = f"{member.info.host} had lost its coordinator and stopped its workers"
        effects = end(state, current, "loss", reason, now)
    if standing.condition == "stopped":
        _is_back(state, current, node)
    elif current.ending is not None and not effects:
        effects = [Tell(node, StopRound(current.number, current.stop_reason))]
    return effects + _first_report(state, current, now) + _whole_again(current, now)


def _first_report(
    state: CoordinatorState, current: RunningRound, now: float
) -> list[CoordinatorEffect]:
    """A coordinator that holds the leases without its register needs all members for that.

    This one has left it, so it can have renewed the others' for `suspect_s` more at most.
    """
    if current.missing_until is not None and not current.reported:
        current.reported = True
        leases = state.config.leases
        until = now + leases.suspect_s * (1 + leases.drift) + leases.gone_after_s
        current.missing_until = state.looks["missing"] = min(current.missing_until, until)
    return []


def _whole_again(current: RunningRound, now: float) -> list[CoordinatorEffect]:
    if current.missing_until is None or UNKNOWN in current.members:
        return []
    current.missing_until, current.started_at = None, now
    if current.ending is not None:
        return []
    nodes = f"all {len(current.members)} nodes of round {current.number}"
    if current.done:
        nodes = f"all nodes of round {current.number} that are not done"
    return [Explain(f"{nodes} have reported: it goes on")]


def suspected(
    state: CoordinatorState, node: str, reason: str, now: float
) -> list[CoordinatorEffect]:
    member = state.members.get(node)
    if member is None or state.outcome is not None:
        return []
    member.suspected = reason
    settle(state, node)
    current = state.round
    if current is None or not current.has(node) or node in current.succeeded:
        return []
    where = member.info.host
    stop = end(state, current, "loss", f"{where} may be lost: {reason}", now)
    return stop + _resign(state, current)


def _resign(state: CoordinatorState, current: RunningRound) -> list[CoordinatorEffect]:
    """When half of a round is out of reach, it may be we who are cut off."""
    if state.embedded or len(current.members) < RESIGN_FROM:
        return []
    known = [state.members[name] for name in current.members if name in state.members]
    silent = sum(1 for member in known if member.suspected)
    if 2 * silent < len(current.members):
        return []
    return [Resign(f"{silent} of {len(current.members)} nodes of the round are out of reach")]


def gone(state: CoordinatorState, node: str, reason: str, now: float) -> list[CoordinatorEffect]:
    """Proof that nothing of the node runs any more."""
    member = state.members.pop(node, None)
    state.unaware.discard(node)
    if member is None:
        return []
    settle(state, node)
    current = state.round
    if current is not None and current.has(node) and node not in current.succeeded:
        _penalise(state, member.info.host, now)
    lost = _without(state, node, f"{member.info.host} was lost: {reason}", now)
    return [Disconnect(node), *lost]


def left(
    state: CoordinatorState, node: str, message: NodeLeft, now: float
) -> list[CoordinatorEffect]:
    member = state.members.pop(node, None)
    state.unaware.discard(node)
    settle(state, node)
    if member is None or state.outcome is not None:
        return []
    if state.config.max_nodes == 1 and not state.members:
        effects = close(state, _outcome_of_the_last(message))
        if message.signal is None:
            state.unaware.add(node)  # It waits to be told how its job ended.
        return effects
    current = state.round
    if current is not None and current.has(node):
        _note(current, message.failures, now)
    return _without(state, node, f"{member.info.host} has left: {message.reason}", now)


def _outcome_of_the_last(message: NodeLeft) -> Outcome:
    """A job of one node ends with its node."""
    if message.signal is not None:
        return Outcome("interrupted", message.reason, 128 + message.signal)
    return _failed_outcome(message.reason, rootcause.name(message.failures))


def _without(
    state: CoordinatorState, node: str, reason: str, now: float
) -> list[CoordinatorEffect]:
    """Go on without a node that is gone or has left."""
    current = state.round
    if state.outcome is not None or current is None or not current.has(node):
        return []
    if node in current.back:
        return []
    current.gone[node] = reason
    current.leaving.pop(node, None)
    if node in current.succeeded:
        note_done(state, current, node)
        return []
    return end(state, current, "loss", reason, now)


def _penalise(state: CoordinatorState, host: str, now: float) -> None:
    penalty = state.penalties.setdefault(host, Penalty())
    penalty.losses += 1
    if penalty.losses > 1:
        policy = state.config.restarts
        pause_s = policy.backoff_first_s * 2.0 ** min(penalty.losses - 2, 30)
        penalty.until = now + min(pause_s, policy.backoff_max_s)


def draining(
    state: CoordinatorState, node: str, reason: str, now: float
) -> list[CoordinatorEffect]:
    """Let a node out of its round: at once if the job can do without it, else a bit later."""
    member = state.members.get(node)
    if member is None or state.outcome is not None:
        return []
    if not member.draining:
        member.drain_until = now + state.config.timeouts.drain_s
    member.draining = reason
    settle(state, node)
    current = state.round
    if current is not None and current.has(node) and node not in current.gone:
        current.leaving.setdefault(node, member.drain_until)
    return let_out(state, now)


def let_out(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """End the round for those who want to leave it, once enough others are there to go on."""
    current = state.round
    if current is None or not current.leaving or current.ending is not None:
        return []
    node, until = next(iter(current.leaving.items()))  # Whoever asked first has waited longest.
    staying = len(current.seats) - len(current.gone) - len(current.leaving)
    enough = staying + len(state.ready) >= state.config.min_nodes
    if not enough and state.config.max_nodes > 1 and now < until:
        state.looks["drain"] = until
        return []
    member = state.members[node]
    return end(state, current, "drain", f"{member.info.host} is leaving: {member.draining}", now)


# Waiting for everybody.


def look(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Something may be due: see what."""
    due = [what for what, at in state.looks.items() if at <= now]
    effects: list[CoordinatorEffect] = []
    for what in due:
        del state.looks[what]
        if what == "drain":
            effects += let_out(state, now)
        elif what == "missing":
            effects += _missing(state, now)
        elif what == "stop":
            effects += _still_not_stopped(state, now)
    return effects


def _missing(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    current = state.round
    if current is None or current.missing_until is None:
        return []
    missing = current.members.count(UNKNOWN)
    if not missing:
        return []
    nodes = "1 node" if missing == 1 else f"{missing} nodes"
    for number, name in enumerate(current.members):
        if name == UNKNOWN:
            seat = f"node {number + 1} of round {current.number}"
            current.seat(number, seat)
            current.gone[seat] = f"{seat} did not report to the new coordinator"
    current.missing_until = None
    reason = f"{nodes} of round {current.number} did not report to the new coordinator"
    return end(state, current, "loss", reason, now)


def _still_not_stopped(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """A node that does not stop its workers loses its lease, and is gone when that is over."""
    current = state.round
    if current is None or current.stop_deadline is None or state.config.max_nodes == 1:
        return []  # A job of one node has no leases to lose, and nobody else to go on with.
    if now < current.stop_deadline:
        state.looks["stop"] = current.stop_deadline
        return []
    effects: list[CoordinatorEffect] = []
    for name in current.awaited():
        if name in state.members and not state.members[name].revoked:
            state.members[name].revoked = True
            settle(state, name)
            effects.append(Explain(f"{name} has not stopped its workers: it loses its lease"))
            effects.append(Revoke(name))
    return effects


def reinstate(state: CoordinatorState, node: str) -> list[CoordinatorEffect]:
    """It has stopped its workers after all, late: that was all that was wanted of it."""
    member = state.members[node]
    if not member.revoked:
        return []
    member.revoked = False
    settle(state, node)
    return [Reinstate(node)]


def settle_round(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Judge the round once nobody is waited for any more."""
    current = state.round
    if current is None or current.ending is None or not current.is_over:
        return []
    return _judge(state, current, now)


# Judging.


def _judge(state: CoordinatorState, ended: RunningRound, now: float) -> list[CoordinatorEffect]:
    """Every member is back or gone: form again, restart or give up."""
    state.round = None
    state.looks.pop("stop", None)
    state.looks.pop("missing", None)
    if ended.announced and ended.has_run:
        state.former = tuple(name for name in ended.members if name not in ended.gone)
    if not state.seats:
        present = (state.members.get(name) for name in state.former)
        state.seats = tuple(member.info for member in present if member is not None)
    progressed = _note_progress(state, ended, now)
    cause = rootcause.name(ended.failures.values())
    if state.closing is not None:
        reason = f"{ended.stop_reason}; {state.closing.reason}"
        return close(state, _failed_outcome(reason, cause))
    if ended.ending == "failure" and cause is not None and not _lost(ended):
        return _charge(state, ended, cause, progressed, now)
    limit = state.config.restarts.fruitless_rounds_limit
    if limit and state.fruitless >= limit:
        reason = f"{state.fruitless} rounds in a row ended without progress"
        return close(state, _failed_outcome(f"{ended.stop_reason}; {reason}", cause))
    if state.config.max_nodes == 1:
        return []
    lost = _lost(ended)
    what = f"{ended.gone[lost]}, and workers failed of it" if lost else ended.stop_reason
    what = what if ended.ending == "failure" else ended.stop_reason
    return [Explain(f"{what}; going on without a charge")]


def _lost(ended: RunningRound) -> str:
    """The first member that was lost before it had succeeded, or nothing."""
    return next((name for name in ended.gone if name not in ended.succeeded), "")


def _note_progress(state: CoordinatorState, ended: RunningRound, now: float) -> bool | None:
    """Whether the round got anywhere; None where workers report nothing."""
    reported = ended.furthest_step
    progressed = None
    if reported is not None or state.furthest_step is not None:
        progressed = (reported or 0) > (state.furthest_step or 0)
        state.furthest_step = max(reported or 0, state.furthest_step or 0)
    lasted = now - ended.started_at >= state.config.restarts.progress_after_s
    if progressed or (progressed is None and lasted):
        state.fruitless = 0
        state.penalties = {}
    else:
        state.fruitless += 1
    return progressed


def _charge(
    state: CoordinatorState,
    ended: RunningRound,
    cause: rootcause.Cause,
    progressed: bool | None,
    now: float,
) -> list[CoordinatorEffect]:
    first = cause.first
    state.history.append(
        restarts.RoundFailure(
            at=now,
            lasted_s=now - ended.started_at,
            progressed=progressed,
            fingerprint=restarts.fingerprint(first),
            exit_code=first.status.code,
            non_retryable=first.error.non_retryable,
        )
    )
    state.charges += 1
    state.version += 1
    verdict = restarts.decide(state.config.restarts, tuple(state.history), now, state.config.run_id)
    what = rootcause.describe(first)
    if isinstance(verdict, restarts.GiveUp):
        return close(state, _failed_outcome(f"{what}; {verdict.reason}", cause))
    state.restart_count += 1
    state.not_before = now + verdict.delay_s
    return [Explain(f"{what}; {verdict.reason}")]


def closing_wanted(state: CoordinatorState, outcome: Outcome) -> list[CoordinatorEffect]:
    """Let the present round go on, and none come after it. The first wish counts."""
    if state.outcome is not None or state.closing is not None:
        return []
    state.closing = brief(outcome)
    state.version += 1
    return [Explain(f"{outcome.reason}; no further round forms")]


def close(state: CoordinatorState, outcome: Outcome) -> list[CoordinatorEffect]:
    """The job is over; it is told once it is written down."""
    state.outcome = outcome if state.config.max_nodes == 1 else fit_outcome(outcome)
    state.version += 1
    state.outcome_version = state.version
    state.unaware = set(state.members)
    return []


def _failed_outcome(reason: str, cause: rootcause.Cause | None) -> Outcome:
    if cause is None:
        return Outcome("failed", reason, EXIT_FAILED)
    others = cause.also_failed + cause.victims + cause.stopped
    return Outcome("failed", reason, EXIT_FAILED, cause.first, others)


def _note(current: RunningRound, told: tuple[Failure, ...], received_at: float | None) -> None:
    """A node's later word on a rank replaces the earlier one, but not when it was received.

    Clocks of different hosts are never compared: failures are ordered by their receipt.
    """
    known = current.failures
    for failure in told:
        before = known.get(failure.rank)
        if before is None:
            at = failure.observed_at if received_at is None else received_at
            known[failure.rank] = replace(failure, observed_at=at)
        elif before.brief or not failure.brief:
            known[failure.rank] = replace(failure, observed_at=before.observed_at)
