"""How a round ends: what ends it, and who is waited for. `judging` says what follows.

Rules
1. Ending is immediate and happens once: whatever comes later is noted, not acted on.
2. A member is done with when it says that nothing of the round is left on it, when it has
   left, or when it is proven to be gone. A suspicion is no proof.
3. After the first success the round is closing: losing a node that has finished does not count.
4. The seats of an inherited round whose nodes do not report in time are given up.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator import judging as judging
from holdfast.core.coordinator import losses as losses
from holdfast.core.coordinator import saving as saving
from holdfast.core.coordinator import stalls as stalls
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    Disconnect,
    Explain,
    Reinstate,
    Resign,
    Revoke,
    Tell,
)
from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    InheritedRound,
    RoundCourse,
    RunningRound,
    StopCause,
    StoppingRound,
    ToldRound,
    is_present,
    missing_reports,
    staying_members,
)
from holdfast.core.coordinator.state import (
    CoordinatorState,
    Penalty,
    current_round,
    forget,
    name_of,
    note_done,
    told_round,
    update_ready,
)
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Timeouts
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.messages import (
    DescribeFailures,
    EndingKind,
    ExpectExits,
    FailuresDescribed,
    NodeDraining,
    NodeLeft,
    RoundReport,
    RoundStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Blame, Failure, Outcome

DESCRIBED_NODES = 3
"""How many nodes are asked for all that they know of their failures."""
STOP_MARGIN_S = 5.0
SAID_AFTER_S = 1.0
"""An end of a round that takes longer to be judged is explained before."""
WITHOUT_LEASE = "had lost the coordinator and stopped its workers"
RESIGN_FROM = 3
"""Of two nodes, one that is lost is half of them: that says nothing about who is cut off."""


def end(
    state: CoordinatorState, current: AnyRound, cause: StopCause, now: float
) -> list[CoordinatorEffect]:
    """Stop the round everywhere, unless that is under way."""
    if isinstance(current, StoppingRound):
        return []
    deadline = state.looks["stop"] = now + patience_s(state.config.timeouts)
    stopping = state.round = current.stopping(cause, deadline)
    if isinstance(current, FormingRound):
        # Nobody was told to start, so nobody has to stop.
        for node in stopping.awaited():
            _is_back(state, stopping, node)
        return []
    stopping.goes_on = _enough_stay(state, current)
    state.looks["stopping"] = now + SAID_AFTER_S
    return [Tell(node, stopping.order()) for node in stopping.awaited()]


def _enough_stay(
    state: CoordinatorState, current: FormingRound | RunningRound | InheritedRound
) -> bool:
    """Whether the job can do without those of its members that want to leave."""
    staying = staying_members(current)
    return staying > 0 and staying + len(state.ready) >= state.min_nodes


def _end_for(
    state: CoordinatorState,
    current: AnyRound,
    kind: EndingKind,
    what: tuple[str, str],
    now: float,
) -> list[CoordinatorEffect]:
    """Stop it because of a node: `what` is its name, and what is with it."""
    return end(state, current, StopCause(kind, " ".join(what), what[0]), now)


def patience_s(timeouts: Timeouts) -> float:
    """How long a node may take to stop its workers: as long as its own waits may last."""
    return timeouts.shutdown_s + 3 * timeouts.unkillable_s + STOP_MARGIN_S


def _is_back(
    state: CoordinatorState, current: AnyRound | None, node: str, *, idle: bool = False
) -> None:
    assert isinstance(current, StoppingRound), "a member is back in a round that nobody stopped"
    if current.exited.get(node) != "idle":
        current.exited[node] = "idle" if idle else "back"
    member = state.members.get(node)
    if member is not None:
        member.round = 0
        update_ready(state, node)


# What ends it.


def failed(
    state: CoordinatorState, node: str, message: WorkersFailed, now: float
) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is None or not message.failures:
        return []
    _note(current.course, message.failures, now)
    effects = _ask_for_details(current, node, message.failures)
    reason = rootcause.describe(message.failures[0])
    locate = any(rootcause.waited_in_vain(failure) for failure in message.failures)
    return end(state, current, StopCause("failure", reason, locate=locate), now) + effects


def _ask_for_details(
    current: ToldRound, node: str, failures: tuple[Failure, ...]
) -> list[CoordinatorEffect]:
    """Ten thousand tracebacks at once would drown the heartbeats: a few nodes tell theirs."""
    known_in_full = not any(failure.brief for failure in failures)
    if known_in_full or current.course.described >= DESCRIBED_NODES:
        return []
    current.course.described += 1
    return [Tell(node, DescribeFailures(current.number))]


def described(
    state: CoordinatorState, node: str, message: FailuresDescribed
) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is not None:
        _note(current.course, message.failures, None)
    return []


def succeeded(
    state: CoordinatorState, node: str, message: WorkersSucceeded
) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is None:
        return []
    current.course.succeeded.add(node)
    if state.succession is not None and node == state.succession.leader:
        note_done(state, current, node)
    stalls.finished(current.course)
    # It may have been the only one that did not stand still.
    closed = judging.close_if_all_succeeded(state, current)
    return closed or [*_expect_exits(current), *stalls.look(state)]


def _expect_exits(current: ToldRound) -> list[CoordinatorEffect]:
    """Half of the nodes have finished well, now: the others should soon.

    A node that misses this word, or comes back later, is told of nothing, and tells of nothing.
    """
    finished = current.course.succeeded
    is_half = len(finished) == (len(current.seats.ranks) + 1) // 2
    if not is_half or isinstance(current, StoppingRound):
        return []
    left = [node for node in current.seats.nodes() if node not in finished]
    return [Tell(node, ExpectExits(current.number)) for node in left]


def stopped(
    state: CoordinatorState, node: str, message: RoundStopped, now: float
) -> list[CoordinatorEffect]:
    member = state.members.get(node)
    if member is None:
        return []
    current = current_round(state, message.round)
    if member.round == message.round or current is not None:
        member.round, member.endpoint = 0, message.endpoint
        update_ready(state, node)
    if current is None or not is_present(current, node):
        return []
    if not isinstance(current, FormingRound):
        _note(current.course, message.failures, now)
    effects = reinstate(state, node)
    what = WITHOUT_LEASE if message.lease_ended else "has stopped its workers"
    effects += _end_for(state, current, "loss", (member.name, what), now)
    if message.lease_ended:
        note_loss(state.round, f"{member.name} {what}")
    _is_back(state, state.round, node, idle=not message.ran)
    return effects


def stands(
    state: CoordinatorState, current: ToldRound, node: str, standing: RoundReport, now: float
) -> list[CoordinatorEffect]:
    """A member of the current round has greeted again: take what it says about the round."""
    member = state.members[node]
    member.round = 0 if standing.condition == "stopped" else current.number
    effects: list[CoordinatorEffect] = []
    if standing.condition == "failed":
        effects = failed(state, node, WorkersFailed(current.number, standing.failures), now)
    elif standing.condition == "succeeded":
        effects = succeeded(state, node, WorkersSucceeded(current.number))
    elif standing.condition == "left":
        current.course.left[node] = None
    elif standing.condition != "running":
        _note(current.course, standing.failures, now)
        effects = _end_for(state, current, "loss", (member.name, WITHOUT_LEASE), now)
        if standing.lease_ended:
            note_loss(state.round, f"{member.name} {WITHOUT_LEASE}")
    if standing.condition == "stopped":
        _is_back(state, state.round, node)
    elif isinstance(state.round, StoppingRound) and not effects:
        effects = [Tell(node, state.round.order())]
    effects += saving.stands(state, standing, now)
    return effects + saving.tell_again(state.round, node, now)


def finish_takeover(state: CoordinatorState, now: float) -> None:
    """All have reported, or must be gone: nobody's leases are held by an earlier coordinator."""
    current = state.round
    missing = missing_reports(current)
    if missing is not None and missing.held:
        state.version += 1
    if isinstance(current, StoppingRound):
        current.missing = None
    elif isinstance(current, InheritedRound):
        state.round = current.whole(now)


def suspected(
    state: CoordinatorState, node: str, reason: str, now: float
) -> list[CoordinatorEffect]:
    member = state.members.get(node)
    if member is None:
        return []
    member.suspected = reason
    update_ready(state, node)
    current = state.round
    if current is None or node not in current.seats or has_succeeded(current, node):
        return []
    losses.suspected(state, current, node, reason)
    may_be = f"{member.name} may be lost: {reason}"
    effects = end(state, current, StopCause("loss", may_be, member.name, suspicion=True), now)
    return effects + _resign(state, current)


def has_succeeded(current: AnyRound, node: str) -> bool:
    return not isinstance(current, FormingRound) and node in current.course.succeeded


def _resign(state: CoordinatorState, current: AnyRound) -> list[CoordinatorEffect]:
    """When half of a round is out of reach, it may be we who are cut off."""
    size, silent = len(current.seats), len(current.seats.suspected)
    if state.embedded or size < RESIGN_FROM or 2 * silent < size:
        return []
    return [Resign(f"{silent} of {size} nodes of the round are out of reach")]


def gone(
    state: CoordinatorState, node: str, reason: str, now: float, *, ended: bool = False
) -> list[CoordinatorEffect]:
    """Proof that nothing of the node runs any more; `ended` where its own machine told it."""
    member = forget(state, node)
    if member is None:
        return []
    current = state.round
    is_loss = False
    if current is not None and node in current.seats and not has_succeeded(current, node):
        is_loss = True
        _penalise(state, member.info.host, now)
        losses.gone(state, current, (node, member.name), ended)
    lost = _without(state, node, (member.name, f"was lost: {reason}"), now)
    stopping = state.round
    if is_loss and isinstance(stopping, StoppingRound) and stopping.exited.get(node) == "gone":
        stopping.lost_hosts.add(member.info.host)
    return [Disconnect(node), *lost]


def left(
    state: CoordinatorState, node: str, message: NodeLeft, now: float
) -> list[CoordinatorEffect]:
    member = forget(state, node)
    if member is None:
        return []
    if state.config.max_nodes == 1 and not state.members:
        effects = judging.close(state, _outcome_of_the_last(message, member.name))
        if message.signal is None and state.end is not None:
            state.end.unaware.add(node)  # It waits to be told how its job ended.
        return effects
    if message.unfit:
        return [Explain(f"{member.name} stays out: {message.reason}", member.name)]
    current = state.round
    if not isinstance(current, FormingRound | None) and node in current.seats:
        _note(current.course, message.failures, now)
        if not has_succeeded(current, node):
            told = Blame(message.kind, "", "certain", message.reason)
            losses.left(state, current, (node, member.name), told)
    return _without(state, node, (member.name, f"has left: {message.reason}"), now)


def _outcome_of_the_last(message: NodeLeft, name: str) -> Outcome:
    """A job of one node ends with its node."""
    if message.signal is not None:
        return Outcome("interrupted", message.reason, exit_status.BY_SIGNAL + message.signal)
    outcome = judging.failed_outcome(message.reason, rootcause.name(message.failures))
    known = outcome.blame.kind if outcome.blame is not None else ""
    if message.kind in ("", known):
        return outcome
    # What it says of itself explains what its workers died of.
    told = Blame(message.kind, name, "certain", message.reason)
    return replace(outcome, blame=told)


def _without(
    state: CoordinatorState, node: str, what: tuple[str, str], now: float
) -> list[CoordinatorEffect]:
    """Go on without a node that is gone or has left."""
    current = state.round
    if current is None or node not in current.seats:
        return []
    match current:
        case FormingRound():
            current.leaving.pop(node, None)
        case RunningRound() | InheritedRound():
            current.gone.add(node)
            current.leaving.pop(node, None)
            saving.without(current, node)
        case StoppingRound():
            if current.exited.get(node) in ("back", "idle"):
                return []
            current.exited[node] = "gone"
    if not isinstance(current, FormingRound) and node in current.course.succeeded:
        note_done(state, current, node)
        return []
    effects = _end_for(state, current, "loss", what, now)
    note_loss(state.round, " ".join(what))
    return effects


def note_loss(current: AnyRound | None, text: str) -> None:
    """A member was lost, or had to stop, before it had succeeded; `text` says so."""
    assert isinstance(current, StoppingRound), "a member is lost, and the round goes on"
    current.lost = current.lost or text


def _penalise(state: CoordinatorState, host: str, now: float) -> None:
    penalty = state.penalties.setdefault(host, Penalty())
    penalty.losses += 1
    if penalty.losses > 1:
        policy = state.config.restarts
        pause_s = policy.backoff_first_s * 2.0 ** min(penalty.losses - 2, 30)
        penalty.until = now + min(pause_s, policy.backoff_max_s)


def draining(
    state: CoordinatorState, node: str, message: NodeDraining, now: float
) -> list[CoordinatorEffect]:
    """Let a node out of its round: once all have saved, if the job can do without it; else later.

    One that stops its workers already waits for nothing: those of the others hear of it at once.
    """
    member = state.members.get(node)
    if member is None:
        return []
    if not member.draining:
        member.drain_until = now + state.config.timeouts.drain_s
    member.draining = message.reason
    update_ready(state, node)
    current = state.round
    if isinstance(current, StoppingRound | None) or not is_present(current, node):
        return []
    current.leaving.setdefault(node, member.drain_until)
    leaves = (member.name, f"is leaving: {message.reason}")
    if isinstance(current, FormingRound):
        return let_out(state, now)
    if message.at_once and node not in current.course.succeeded:
        return _end_for(state, current, "drain", leaves, now)
    effects: list[CoordinatorEffect] = []
    if message.within_s:
        effects = saving.begin(state, current, leaves, now + message.within_s, now)
    return effects + let_out(state, now)


def let_out(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """End the round for those who want to leave it, once enough others are there to go on.

    Or none at all, as when the whole job is being ended: a replacement would join nobody. But not
    while anybody saves.
    """
    current = state.round
    if isinstance(current, StoppingRound | None) or not current.leaving:
        return []
    node, until = next(iter(current.leaving.items()))  # Whoever asked first has waited longest.
    if not isinstance(current, FormingRound) and not saving.is_over(current, now):
        return []
    if staying_members(current) and not _enough_stay(state, current) and now < until:
        state.looks["drain"] = until
        return []
    member = state.members[node]
    return _end_for(state, current, "drain", (member.name, f"is leaving: {member.draining}"), now)


def left_by_workers(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """End a round in which workers have ended to let somebody leave, who is not there any more."""
    current = state.round
    if not isinstance(current, RunningRound) or current.leaving or saving.holds_up(current, now):
        return []
    left = (node for node in current.course.left if is_present(current, node))
    node = next(left, None)
    if node is None:
        return []
    what = "has no worker left in the round: they were asked to save, and have ended"
    return _end_for(state, current, "drain", (name_of(state, node), what), now)


# Waiting for everybody.


def look(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Something may be due: see what."""
    due = [what for what, at in state.looks.items() if at <= now]
    effects: list[CoordinatorEffect] = []
    for what in due:
        del state.looks[what]
        if what in ("drain", "save"):
            effects += let_out(state, now)
        elif what == "missing":
            effects += _missing(state, now)
        elif what == "stop":
            effects += _still_not_stopped(state, now)
        elif what == "stopping":
            effects += _say_why(state)
        elif what == "stay":
            from holdfast.core.coordinator import quarantine

            state.version += 1  # Whoever takes over is not to keep that host out once more.
            quarantine.come_back(state, now)
    return effects


def _missing(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Those who have not reported by now must be gone."""
    current = state.round
    if current is None or missing_reports(current) is None or not current.seats.unreported:
        return []
    missing = current.seats.unreported_ranks()
    nodes = "1 node" if len(missing) == 1 else f"{len(missing)} nodes"
    reason = f"of round {current.number} did not report to the new coordinator"
    effects = end(state, current, StopCause("loss", f"{nodes} {reason}"), now)
    current.seats.give_up()
    finish_takeover(state, now)
    note_loss(state.round, f"node {missing[0] + 1} {reason}")
    return effects


def _say_why(state: CoordinatorState) -> list[CoordinatorEffect]:
    """What is judged within a moment is told of once, then; but nobody is to wait for that."""
    current = state.round
    if not isinstance(current, StoppingRound):
        return []
    current.is_explained = True
    cause = current.cause
    return [Explain(f"{cause.reason}; stopping round {current.number}", cause.about)]


def _still_not_stopped(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """A node that does not stop its workers loses its lease, and is gone when that is over."""
    current = state.round
    if not isinstance(current, StoppingRound) or state.config.max_nodes == 1:
        return []  # A job of one node has no leases to lose, and nobody else to go on with.
    if now < current.deadline:
        state.looks["stop"] = current.deadline
        return []
    effects: list[CoordinatorEffect] = []
    for name in current.awaited():
        if name in state.members and not state.members[name].revoked:
            state.members[name].revoked = True
            update_ready(state, name)
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
    update_ready(state, node)
    return [Reinstate(node)]


def _note(course: RoundCourse, told: tuple[Failure, ...], received_at: float | None) -> None:
    """A node's later word on a rank replaces the earlier one, but not when it was received.

    Clocks of different hosts are never compared: failures are ordered by their receipt, less how
    long before their end they had raised.
    """
    known = course.failures
    for failure in told:
        before = known.get(failure.rank)
        if before is None:
            at = failure.observed_at if received_at is None else received_at - failure.raised_s
            known[failure.rank] = replace(failure, observed_at=at)
        elif before.node == failure.node and (before.brief or not failure.brief):
            known[failure.rank] = replace(failure, observed_at=before.observed_at)
