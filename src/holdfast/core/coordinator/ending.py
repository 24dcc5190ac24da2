"""How a round ends: what ends it, and who is waited for. `coordinator_judging` says what follows.

Rules
1. Ending is immediate and happens once: whatever comes later is noted, not acted on.
2. A member is done with when it says that nothing of the round is left on it, when it has
   left, or when it is proven to be gone. A suspicion is no proof.
3. After the first success the round is closing: losing a node that has finished does not count.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator import judging as judging
from holdfast.core.coordinator import standstill as standstill
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    Disconnect,
    Explain,
    Reinstate,
    Resign,
    Revoke,
    Tell,
)
from holdfast.core.coordinator.state import (
    UNKNOWN,
    CoordinatorState,
    EndingKind,
    Penalty,
    RunningRound,
    current_round,
    forget,
    note_done,
    settle,
)
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Timeouts
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.messages import (
    DescribeFailures,
    FailuresDescribed,
    NodeLeft,
    RoundStopped,
    Standing,
    StopRound,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Failure, Outcome

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
    stop = StopRound(current.number, reason, current.stop_about)
    told = [name for name in current.members if name != UNKNOWN and name not in current.gone]
    return [Tell(name, stop) for name in told if name not in current.back]


def _end_for(
    state: CoordinatorState,
    current: RunningRound,
    kind: EndingKind,
    what: tuple[str, str],
    now: float,
) -> list[CoordinatorEffect]:
    """Stop it because of a node: `what` is its name, and what is with it."""
    if current.ending is None:
        current.stop_about = what[0]
    return end(state, current, kind, " ".join(what), now)


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


def described(
    state: CoordinatorState, node: str, message: FailuresDescribed
) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is not None and current.has(node):
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
    if current.ending is not None:
        return []
    if len(current.succeeded) < len(current.members):
        return standstill.look(state, current)  # It may have been the only one that did not stand.
    return judging.close(state, judging.ALL_SUCCEEDED)


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
    if not message.ran:
        current.idle.add(node)
    effects = reinstate(state, node)
    effects += _end_for(state, current, "loss", (member.name, "has stopped its workers"), now)
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
        what = "had lost the coordinator and stopped its workers"
        effects = _end_for(state, current, "loss", (member.name, what), now)
    if standing.condition == "stopped":
        _is_back(state, current, node)
    elif current.ending is not None and not effects:
        stop = StopRound(current.number, current.stop_reason, current.stop_about)
        effects = [Tell(node, stop)]
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
    nodes = f"all {len(current.members)} nodes of round {current.number} have"
    if current.done:
        nodes = f"all nodes of round {current.number} that are not done have"
    elif len(current.members) == 1:
        nodes = f"the node of round {current.number} has"
    return [Explain(f"{nodes} reported: it goes on")]


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
    stop = _end_for(state, current, "loss", (member.name, f"may be lost: {reason}"), now)
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
    member = forget(state, node)
    if member is None:
        return []
    current = state.round
    if current is not None and current.has(node) and node not in current.succeeded:
        _penalise(state, member.info.host, now)
    lost = _without(state, node, (member.name, f"was lost: {reason}"), now)
    return [Disconnect(node), *lost]


def left(
    state: CoordinatorState, node: str, message: NodeLeft, now: float
) -> list[CoordinatorEffect]:
    member = forget(state, node)
    if member is None or state.outcome is not None:
        return []
    if state.config.max_nodes == 1 and not state.members:
        effects = judging.close(state, _outcome_of_the_last(message))
        if message.signal is None:
            state.unaware.add(node)  # It waits to be told how its job ended.
        return effects
    current = state.round
    if current is not None and current.has(node):
        _note(current, message.failures, now)
    return _without(state, node, (member.name, f"has left: {message.reason}"), now)


def _outcome_of_the_last(message: NodeLeft) -> Outcome:
    """A job of one node ends with its node."""
    if message.signal is not None:
        return Outcome("interrupted", message.reason, exit_status.BY_SIGNAL + message.signal)
    return judging.failed_outcome(message.reason, rootcause.name(message.failures))


def _without(
    state: CoordinatorState, node: str, what: tuple[str, str], now: float
) -> list[CoordinatorEffect]:
    """Go on without a node that is gone or has left."""
    current = state.round
    if state.outcome is not None or current is None or not current.has(node):
        return []
    if node in current.back:
        return []
    current.gone[node] = " ".join(what)
    current.leaving.pop(node, None)
    if node in current.succeeded:
        note_done(state, current, node)
        return []
    return _end_for(state, current, "loss", what, now)


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
    """End the round for those who want to leave it, once enough others are there to go on.

    Or none at all, as when the whole job is being ended: a replacement would join nobody.
    """
    current = state.round
    if current is None or not current.leaving or current.ending is not None:
        return []
    node, until = next(iter(current.leaving.items()))  # Whoever asked first has waited longest.
    staying = len(current.seats) - len(current.gone) - len(current.leaving)
    enough = staying + len(state.ready) >= state.config.min_nodes
    if staying > 0 and not enough and now < until:
        state.looks["drain"] = until
        return []
    member = state.members[node]
    return _end_for(state, current, "drain", (member.name, f"is leaving: {member.draining}"), now)


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
            about = state.members[name].name
            told = f"{about} has not stopped its workers, and counts as lost when its lease is over"
            effects.append(Explain(told, about))
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
        elif before.node == failure.node and (before.brief or not failure.brief):
            known[failure.rank] = replace(failure, observed_at=before.observed_at)
