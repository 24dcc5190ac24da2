"""Rounds of one group of workers: how one forms, ends and is judged.

    forming ──written down──▶ running ──all succeeded──▶ the job is over
       ▲                         │ failure, loss, drain, newcomers, a request
       │                         ▼
       └──restart or re-form── stopping ──every member back or gone──▶ judged ──give up──▶ over

Rules
Forming
1. Ranks are complete before a round is announced, and it is announced only once it is written
   down. If something ends it meanwhile, it is never announced, and reports about it are ignored.
2. Deciding whether to form is cheap: it happens after every event, and takes the same time for ten
   nodes as for ten thousand. Only forming itself goes through all of them, once.
3. A wait is explained when its reason changes; a crowd that arrives is not counted aloud.
4. Where ranks are fixed, the job waits for ranks, not for numbers, and says for which
   (`core.seating`).
Ending
5. Ending is immediate and happens once: later events are noted, not acted on. Only an end
   in order (a drain, newcomers, a request) waits until all workers that ask have saved.
6. A member is exited when it reports that nothing of the round is left on it (*back*, or *idle* if
   it never ran anything), when it has left, or when it is proven to be gone, not when suspected.
7. After the first success the round is closing: losing a node that has finished does not count.
Judging
8. A round is judged once, when every member is back or gone.
9. Only a round that ended because a worker failed, and in which no member was lost, is charged:
   the peers of a machine that dies fail first, and the loss is known later. So do the peers of a
   node that lost the coordinator and stopped its workers.
10. Rounds in a row without progress end the job, whatever ended them. A group that was asked to
    close ends with its present round.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import seating
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    Disconnect,
    Explain,
    Reinstate,
    Resign,
    Revoke,
    Tell,
)
from holdfast.core.policy import forming, ranks, restarts, sentences
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Timeouts
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.document import DONE_KEPT, NodeLimits, brief
from holdfast.core.protocol.messages import (
    EndingKind,
    NodeDraining,
    NodeLeft,
    RoundReport,
    RoundStopped,
    RunRound,
    StandBy,
    StopRound,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Assignment,
    Blame,
    EarlyEnd,
    Failure,
    NodeInfo,
    Outcome,
)
from holdfast.core.seating import Seats, seats_of

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.features.hangs import RoundStalls
    from holdfast.core.features.saving import RoundSaves

Effects = list[CoordinatorEffect]

ANNOUNCE_EVERY_S = 5.0
STOP_MARGIN_S = 5.0
EXPLAIN_AFTER_S = 1.0
"""An end of a round that takes longer to be judged is explained first."""
RESIGN_FROM = 3
"""Of two nodes, one lost node is half: that does not show which of them is cut off."""
ALL_SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)
ENDINGS: dict[EndingKind, tuple[str, str]] = {
    "failure": ("a worker failed", "one restart, unless a member was lost too"),
    "loss": ("a member is lost, suspected, has left or stopped by itself", "nothing"),
    "drain": ("a member was asked to leave (SIGTERM, USR1 or USR2 to its agent)", "nothing"),
    "newcomers": ("nodes wait, and there is room for them", "nothing"),
    "asked": ("somebody asked for it (`holdfast restart`, or `scale` to fewer nodes)", "nothing"),
}
"""The reason why a round ends, and its cost in the restart budget."""


def flatten(effects: Iterable[Effects]) -> Effects:
    return list(chain.from_iterable(effects))


# A round.


class MissingReports(Struct):
    """Not all nodes of a round have reported to the coordinator that took it over."""

    until: float
    """When unreported nodes count as gone."""
    held: bool = False
    """An earlier coordinator may hold the leases of unreported nodes (`Ledger`)."""
    reported: bool = False
    """An unsucceeded member has reported: an older coordinator then holds no lease for long."""


class DepartedLeader(Struct, frozen=True):
    """The member that died with the earlier coordinator, and when all of its processes are gone."""

    node: str
    gone_at: float


class StopCause(Struct, frozen=True):
    """Why a round is stopped."""

    kind: EndingKind
    reason: str
    about: str = ""
    """The name of the node with which the reason begins, if it does."""
    suspicion: bool = False
    """The reason is a suspicion, not a fact."""
    locate: bool = False
    """The locations of running workers say more about it than the failures."""


class Stop(Struct):
    """The end of a round: its members were told to stop, and some are waited for."""

    cause: StopCause
    deadline: float
    """When members that have not stopped lose their leases."""
    has_run: bool = True
    """Whether any node may have heard of the round; a round that never ran assigned no seats."""
    lost: str = ""
    """In words: the first member that was lost, or whose lease ended, before it had succeeded."""
    lost_hosts: set[str] = field(default_factory=set)
    """The locations of members that were proven gone before they had succeeded."""
    departed: DepartedLeader | None = None
    goes_on: bool = False
    """Whether enough members that did not want to leave were left when it was ended."""
    is_explained: bool = False
    """The reason was printed, since the end takes long."""


class Round(Struct):
    """One round: forming until it is announced, then running, then stopping."""

    number: int
    instance: int
    """Of the job, when it was formed; 0 where that is not known."""
    seats: Seats
    started_at: float
    """When it began: to form, or in a takeover, at the time by which all members must have
    reported."""
    announced: bool = False
    """It was written down, and its members are told."""
    version: int = 0
    """The version of the ledger with which it is announced, once that is written."""
    assignments: dict[str, Assignment] = field(default_factory=dict)
    """The assignment of each member; empty if another coordinator announced the round."""
    note: str = ""
    """The message to members about quarantined hosts (`core.features.quarantine`)."""
    missing: MissingReports | None = None
    """Set in a takeover, until all have reported."""
    stop: Stop | None = None
    leaving: dict[str, float] = field(default_factory=dict)
    """Members that want to leave, in the order of their requests, and how long they wait."""
    done: set[int] = field(default_factory=set)
    """Seats of members that have succeeded and may be gone by the time of a takeover."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """Failures by rank, the first heard in front."""
    described: int = 0
    """How many nodes were asked for all details of their failures."""
    furthest_step: int | None = None
    restart: str = ""
    """The operator who asked for its end (`holdfast restart`): it comes when all have saved."""
    saves: RoundSaves | None = None
    stalls: RoundStalls | None = None

    @property
    def is_running(self) -> bool:
        return self.announced and self.stop is None

    @property
    def is_whole(self) -> bool:
        """Whether it runs, and all of its members are known."""
        return self.announced and self.stop is None and self.missing is None

    @property
    def is_over(self) -> bool:
        """Whether it stops, and no member is waited for any more."""
        seats = self.seats
        return self.stop is not None and not seats.unreported and seats.exited == len(seats.by_node)

    @property
    def has_success(self) -> bool:
        """Whether any member has succeeded, including those of which only the seat is known."""
        return bool(self.seats.succeeded or self.done)

    @property
    def have_all_succeeded(self) -> bool:
        return not self.seats.unreported and self.seats.succeeded == len(self.seats.by_node)

    @property
    def staying(self) -> int:
        """The number of known members that do not want to leave."""
        return len(self.seats.by_node) - self.seats.exited - len(self.leaving)


# A group.


class RestartBudget(Struct):
    """The failures so far, and the job's progress at each."""

    history: list[restarts.RoundFailure] = field(default_factory=list)
    fruitless: int = 0
    """Rounds in a row that ended without progress, whatever ended them."""
    furthest_step: int | None = None

    @property
    def charges(self) -> int:
        """How many rounds have ended because a worker failed: each is followed by a restart."""
        return len(self.history)


class FormingWait(Struct):
    """The wait for the next round: its start, and its last explanation."""

    not_before: float = 0.0
    enough_since: float | None = None
    short_since: float | None = None
    newcomer_since: float | None = None
    note: str = ""
    """The message to nodes with the next announced round (`core.features.quarantine`)."""
    reason: str = ""
    explained_at: float = 0.0


class NodeLoss(Struct, frozen=True):
    """The node with which a round was lost."""

    round: int
    node: str
    blame: Blame


class Group(Struct):
    """Workers that run together, one round after the other, and their restart budget."""

    round: Round | None = None
    round_number: int = 0
    formed: int = 0
    """Rounds formed by this very coordinator."""
    former: tuple[str, ...] = ()
    """The members of the last round by group rank: those with state, oldest first."""
    holders: tuple[NodeInfo, ...] = ()
    """The last node on each seat: a spare takes the seat of its own role only."""
    budget: RestartBudget = field(default_factory=RestartBudget)
    wait: FormingWait = field(default_factory=FormingWait)
    loss: NodeLoss | None = None
    """Why the last round was lost, until another one runs."""
    closing: Outcome | None = None
    """A node wants no further round: how the job ends unless the present one succeeds."""
    limits: NodeLimits | None = None
    """The least and the greatest number of nodes, if an operator changed them."""

    def told_round(self, number: int, node: str) -> Round | None:
        """The present round, if it is that one and the node, a member, can have heard of it."""
        current = self.round
        if current is None or current.number != number or not current.announced:
            return None
        return current if node in current.seats else None


# Forming.


def advance(state: CoordinatorState, now: float) -> Effects:
    """After every event: form a round, make room in the running one, or wait."""
    group = state.group
    current = group.round
    if current is None:
        if group.closing is not None:
            state.close(group.closing)
            return []
        if state.config.max_nodes == 1 and not state.ready:
            return []  # The only node is still getting ready.
        return _form(state, now)
    if not current.is_running:
        return let_out(state, now)
    cause = _cause_to_end(state, current, now)
    if cause is not None:
        effects = _end_in_order(state, current, cause, now)
    else:
        effects = flatten(f.end_not_needed(state, current, now) for f in state.features)
    effects += let_out(state, now)
    return effects + flatten(f.after_drain(state, now) for f in state.features)


def _form(state: CoordinatorState, now: float) -> Effects:
    group = state.group
    candidates, wait_until = seating.count_candidates(state, now)
    _note_candidates(state, candidates, now)
    decision = forming.decide(_view(state, candidates), now)
    state.deadlines.pop("form", None)
    if wait_until is not None:
        state.deadlines["form"] = wait_until
    match decision:
        case forming.Form():
            return _prepare(state, now)
        case forming.WaitLonger():
            if decision.wake_at is not None:
                state.deadlines["form"] = min(decision.wake_at, wait_until or decision.wake_at)
            short = candidates < state.min_nodes and now >= group.wait.not_before
            missing = seating.missing_ranks(state, now) if short else ""
            paused = seating.paused_names(state, now) if short else []
            within_s = 0.0 if decision.wake_at is None else decision.wake_at - now
            reason = ": ".join(filter(None, (decision.reason, missing)))
            reason += sentences.paused(paused) if paused else ""
            return _explain_wait(state, reason, within_s, now)
        case forming.Fail():
            missing = seating.missing_ranks(state, now)
            reason = "; missing: ".join(filter(None, (decision.reason, missing)))
            state.close(_never_formed(group, reason))
            return []


def _never_formed(group: Group, reason: str) -> Outcome:
    """Too few nodes: because one was lost, if one was."""
    if group.loss is None:
        return Outcome("not_formed", reason, exit_status.NOT_FORMED)
    found = group.loss.blame
    reason = sentences.not_formed(reason, found.who)
    return Outcome("not_formed", reason, exit_status.NOT_FORMED, blame=found)


def _note_candidates(state: CoordinatorState, candidates: int, now: float) -> None:
    """Keep the times from which the waits for latecomers and for too few are counted."""
    wait = state.group.wait
    if candidates >= state.min_nodes:
        wait.short_since = None
        if wait.enough_since is None:
            wait.enough_since = now
    else:
        wait.enough_since = None
        if wait.short_since is None:
            wait.short_since = now


def _view(state: CoordinatorState, candidates: int) -> forming.View:
    wait = state.group.wait
    return forming.View(
        candidates=candidates,
        minimum=state.min_nodes,
        maximum=state.max_nodes,
        timeouts=state.config.timeouts,
        first_round=state.group.round_number == 0,
        enough_since=wait.enough_since,
        short_since=wait.short_since,
        not_before=wait.not_before,
    )


def _explain_wait(state: CoordinatorState, reason: str, within_s: float, now: float) -> Effects:
    wait = state.group.wait
    if reason == wait.reason or not state.ready:
        return []
    crowd = len(state.ready) > seating.CROWD and wait.reason != ""
    wait.reason = reason
    if crowd and now < wait.explained_at + ANNOUNCE_EVERY_S:
        return []
    wait.explained_at = now
    return [Explain(reason, topic="waiting", within_s=within_s)]


def _prepare(state: CoordinatorState, now: float) -> Effects:
    """Assign the seats, and have them written down."""
    group = state.group
    seated = seating.select(state, seating.candidates(state, now))
    group.holders = ranks.seat_holders(group.holders, seated, state.max_nodes)
    members = [info.node for info in seated]
    group.round_number += 1
    group.formed += 1
    wait = group.wait
    wait.reason = ""
    notes = (f.round_formed(state, seated, now) for f in state.features)
    wait.note = "; ".join(filter(None, (wait.note, *notes)))
    wait.newcomer_since = wait.enough_since = wait.short_since = None
    group.round = Round(
        group.round_number,
        state.term.instance,
        seats_of(members),
        started_at=now,
        assignments=seating.assignments(state, seated),
        note=wait.note,
        version=state.next_version,
    )
    for name in members:
        state.members[name].round = group.round_number
        state.update_ready(name)
    return []


def written(state: CoordinatorState, version: int, now: float) -> Effects:
    """This version is written down: announce what waited for it."""
    current = state.group.round
    if current is None or current.announced or current.stop is not None:
        return []
    return _announce(state, current, now) if version >= current.version else []


def _announce(state: CoordinatorState, current: Round, now: float) -> Effects:
    current.announced, current.started_at = True, now
    state.group.loss = None
    state.group.wait.note = ""
    effects: Effects = [Explain(current.note)] if current.note else []
    effects += [Tell(name, announcement(current, name)) for name in current.seats.nodes()]
    for name in state.ready:
        effects += stand_by(state, name, now)
    return effects


def announcement(current: Round, node: str) -> RunRound:
    """The announcement to a member of a round that was formed here."""
    return RunRound(current.assignments[node], current.note)


def stand_by(state: CoordinatorState, node: str, now: float) -> Effects:
    """Tell a node without a seat what it waits for."""
    current = state.group.round
    if node not in state.ready:
        return []  # It is still getting ready, or has an older round to stop.
    if current is not None and (current.missing is not None or current.stop is not None):
        return []
    reason = seating.refused_rank(state, node) if state.config.has_fixed_ranks else ""
    if reason:
        return [Tell(node, StandBy(reason))]
    if current is None:
        displaced = seating.displaced_by(state, node)
        return [Tell(name, StandBy(why)) for name, why in displaced.items()]
    refusals = (f.refusal(state, node, now) for f in state.features)
    reason = next(filter(None, refusals), "") or _no_seat(state, current)
    return [Tell(node, StandBy(reason))]


def _no_seat(state: CoordinatorState, current: Round) -> str:
    if _is_the_last(state.group, current):
        return sentences.round_closing(current.number)
    return sentences.no_seat(current.number, len(current.seats), state.max_nodes)


# Reasons to end a round in order.


def _end_in_order(state: CoordinatorState, current: Round, cause: StopCause, now: float) -> Effects:
    """End the round once all workers that ask have saved."""
    what = ("", cause.reason)
    effects = flatten(f.end_coming(state, current, what, None, now) for f in state.features)
    if may_end(state, current, now):
        effects += end(state, current, cause, now)
    return effects


def may_end(state: CoordinatorState, current: Round, now: float) -> bool:
    """Whether an end in order waits for nothing more."""
    return all(f.may_end(current, now) for f in state.features)


def _cause_to_end(state: CoordinatorState, current: Round, now: float) -> StopCause | None:
    """A restart was requested, or the round has more nodes than it may, or there is room for nodes
    that wait. The last two wait while a feature keeps the round, however long that takes."""
    if current.restart:
        return StopCause("asked", sentences.restart_asked(current.restart))
    if any(f.keeps_round(current, now) for f in state.features):
        return None
    limits = state.group.limits
    is_last = _is_the_last(state.group, current)
    if limits is None or len(current.seats) <= limits.most or is_last:
        return _room_for_newcomers(state, current, now)
    return StopCause("asked", sentences.fewer_asked(limits.by, limits.most))


def _room_for_newcomers(state: CoordinatorState, current: Round, now: float) -> StopCause | None:
    size, wait = len(current.seats), state.group.wait
    is_last = _is_the_last(state.group, current)
    newcomers, until = 0, None
    if size < state.max_nodes and not is_last:
        newcomers, until = seating.count_newcomers(state, current, now)
    if until is not None:
        state.deadlines["room"] = until
    if not newcomers:
        wait.newcomer_since = None
        return None
    if wait.newcomer_since is None:
        wait.newcomer_since = now
    if current.missing is not None:
        return None
    at = forming.makes_room_at(
        wait.newcomer_since,
        current.started_at,
        state.config.timeouts,
        fills=size + newcomers >= state.max_nodes,
        fruitless=state.group.budget.fruitless,
    )
    if now < at:
        state.deadlines["room"] = at
        return None
    return StopCause("newcomers", sentences.joined(newcomers))


def _is_the_last(group: Group, current: Round) -> bool:
    """Whether admitting newcomers no longer pays, as far as that can be known."""
    return group.closing is not None or current.has_success


# Ending.


def end(state: CoordinatorState, current: Round, cause: StopCause, now: float) -> Effects:
    """Stop the round everywhere, unless that is under way."""
    if current.stop is not None:
        return []
    deadline = state.deadlines["stop"] = now + patience_s(state.config.timeouts)
    goes_on = current.announced and _enough_stay(state, current)
    current.stop = Stop(cause, deadline, has_run=current.announced, goes_on=goes_on)
    current.leaving = {}
    if not current.announced:
        # No member was told to start, so none has to stop.
        for node in current.seats.awaited():
            _is_back(state, current, node)
        return []
    state.deadlines["stopping"] = now + EXPLAIN_AFTER_S
    order = stop_order(current)
    return [Tell(node, order) for node in current.seats.awaited()]


def stop_order(current: Round) -> StopRound:
    stop = current.stop
    assert stop is not None, "the round does not end"
    cause = stop.cause
    return StopRound(
        current.number, cause.reason, cause.about, stop.goes_on, cause.locate, cause.kind
    )


def _enough_stay(state: CoordinatorState, current: Round) -> bool:
    """Whether the job can do without the members that want to leave."""
    return current.staying > 0 and current.staying + len(state.ready) >= state.min_nodes


def end_for(
    state: CoordinatorState, current: Round, kind: EndingKind, what: tuple[str, str], now: float
) -> Effects:
    """Stop the round because of a node: `what` is its name, and a predicate."""
    return end(state, current, StopCause(kind, " ".join(what), what[0]), now)


def patience_s(timeouts: Timeouts) -> float:
    """How long a node may take to stop its workers: as long as its own waits may last."""
    return timeouts.shutdown_s + 3 * timeouts.unkillable_s + STOP_MARGIN_S


def _is_back(state: CoordinatorState, current: Round, node: str, *, idle: bool = False) -> None:
    assert current.stop is not None, "a member is back in a round that nobody stopped"
    if current.seats.exit_of(node) != "idle":
        current.seats.note_exit(node, "idle" if idle else "back")
    member = state.members.get(node)
    if member is not None:
        member.round = 0
        state.update_ready(node)


def failed(state: CoordinatorState, node: str, message: WorkersFailed, now: float) -> Effects:
    current = state.group.told_round(message.round, node)
    if current is None or not message.failures:
        return []
    note_failures(current, message.failures, now)
    asked = (f.workers_failed(current, node, message.failures) for f in state.features)
    effects = flatten(asked)
    reason = rootcause.describe(message.failures[0])
    locate = any(rootcause.waited_in_vain(failure) for failure in message.failures)
    return end(state, current, StopCause("failure", reason, locate=locate), now) + effects


def note_failures(current: Round, told: tuple[Failure, ...], received_at: float | None) -> None:
    """Keep a node's later report on a rank, with the time at which the first one was received.

    Clocks of different hosts are never compared: failures are ordered by their receipt, less how
    long before their end they had raised.
    """
    known = current.failures
    for failure in told:
        before = known.get(failure.rank)
        if before is None:
            at = failure.observed_at if received_at is None else received_at - failure.raised_s
            known[failure.rank] = replace(failure, observed_at=at)
        elif before.node == failure.node and (before.brief or not failure.brief):
            known[failure.rank] = replace(failure, observed_at=before.observed_at)


def succeeded(state: CoordinatorState, node: str, message: WorkersSucceeded) -> Effects:
    current = state.group.told_round(message.round, node)
    if current is None:
        return []
    current.seats.note_success(node)
    if state.succession is not None and node == state.succession.leader:
        _note_done(current, node)
    close_if_all_succeeded(state, current)
    return flatten(f.member_succeeded(state, current) for f in state.features)


def _note_done(current: Round, node: str) -> None:
    """Have it written down that this member need not be waited for any more."""
    rank = current.seats.by_node[node].rank
    if len(current.done) < DONE_KEPT:
        current.done.add(rank)


def stopped(state: CoordinatorState, node: str, message: RoundStopped, now: float) -> Effects:
    member = state.members.get(node)
    if member is None:
        return []
    current = state.group.round
    is_current = current is not None and current.number == message.round
    if member.round == message.round or is_current:
        member.round, member.endpoint = 0, message.endpoint
        state.update_ready(node)
    if current is None or not is_current or not current.seats.is_present(node):
        return []
    if current.announced:
        note_failures(current, message.failures, now)
    effects = reinstate(state, node)
    what = sentences.LOST_LEASE if message.lease_ended else sentences.HAS_STOPPED
    effects += end_for(state, current, "loss", (member.name, what), now)
    if message.lease_ended:
        note_lost(current, f"{member.name} {what}")
    _is_back(state, current, node, idle=not message.ran)
    return effects


def reported(
    state: CoordinatorState, current: Round, node: str, report: RoundReport, now: float
) -> Effects:
    """A member has greeted again: take in its report on the present round."""
    member = state.members[node]
    member.round = 0 if report.condition == "stopped" else current.number
    effects: Effects = []
    if report.condition == "failed":
        effects = failed(state, node, WorkersFailed(current.number, report.failures), now)
    elif report.condition == "succeeded":
        effects = succeeded(state, node, WorkersSucceeded(current.number))
    elif report.condition not in ("running", "left"):
        note_failures(current, report.failures, now)
        effects = end_for(state, current, "loss", (member.name, sentences.LOST_LEASE), now)
        if report.lease_ended:
            note_lost(current, f"{member.name} {sentences.LOST_LEASE}")
    if report.condition == "stopped":
        _is_back(state, current, node)
    elif current.stop is not None and not effects:
        effects = [Tell(node, stop_order(current))]
    return effects + flatten(f.reported(state, node, report, now) for f in state.features)


def suspected(state: CoordinatorState, node: str, reason: str, now: float) -> Effects:
    member = state.members.get(node)
    if member is None:
        return []
    member.suspected = reason
    state.update_ready(node)
    current = state.group.round
    if current is None or node not in current.seats or current.seats.has_succeeded(node):
        return []
    from holdfast.core.policy import kinds  # Here and below, because most jobs lose no node.

    found = Blame(kinds.LOST_NODE, member.name, "unclear", cut(reason))
    _note_loss(state.group, current, node, found)
    may_be = sentences.may_be_lost(member.name, reason)
    effects = end(state, current, StopCause("loss", may_be, member.name, suspicion=True), now)
    return effects + _resign(state, current)


def _resign(state: CoordinatorState, current: Round) -> Effects:
    """When half of a round is out of reach, this node may be the one that is cut off."""
    size, silent = len(current.seats), len(current.seats.suspected)
    if state.embedded or size < RESIGN_FROM or 2 * silent < size:
        return []
    return [Resign(sentences.out_of_reach(silent, size))]


def gone(
    state: CoordinatorState, node: str, reason: str, now: float, *, ended: bool = False
) -> Effects:
    """No process of the node runs any more; `ended` if its own machine proved it."""
    member = state.remove(node)
    if member is None:
        return []
    current = state.group.round
    is_loss = False
    if current is not None and node in current.seats and not current.seats.has_succeeded(node):
        is_loss = True
        _note_loss(state.group, current, node, _blame_for_end(member.name, ended))
    lost = _member_departed(state, node, (member.name, sentences.was_lost(reason)), now)
    is_lost = is_loss and current is not None and current.seats.exit_of(node) == "gone"
    if is_lost and current is not None and current.stop is not None:
        current.stop.lost_hosts.add(member.info.host)
    return [Disconnect(node), *lost]


def _blame_for_end(name: str, ended: bool) -> Blame:
    """A node whose processes have all ended was killed, or its machine restarted: its own kernel
    proved it. For a silent node, either its machine or the network may be the cause."""
    from holdfast.core.policy import kinds

    if ended:
        why = "all its processes ended at once, without a word"
        return Blame(kinds.AGENT_ENDED, name, "certain", why)
    why = "nothing was heard of it any more, and its connections did not end"
    return Blame(kinds.LOST_NODE, name, "likely", why)


def left(state: CoordinatorState, node: str, message: NodeLeft, now: float) -> Effects:
    member = state.remove(node)
    if member is None:
        return []
    if state.config.max_nodes == 1 and not state.members:
        state.close(_outcome_of_the_last(message, member.name))
        if message.signal is None and state.end is not None:
            state.end.unaware.add(node)  # It waits to be told how its job ended.
        return []
    if message.unfit:
        return [Explain(sentences.stays_out(member.name, message.reason), member.name)]
    current = state.group.round
    if current is not None and current.announced and node in current.seats:
        note_failures(current, message.failures, now)
        if not current.seats.has_succeeded(node):
            from holdfast.core.policy import kinds

            kind = message.kind or kinds.NODE_LEFT
            found = Blame(kind, member.name, "certain", message.reason)
            _note_loss(state.group, current, node, found)
    return _member_departed(state, node, (member.name, sentences.has_left(message.reason)), now)


def _outcome_of_the_last(message: NodeLeft, name: str) -> Outcome:
    """A job of one node ends with its node."""
    if message.signal is not None:
        return Outcome("interrupted", message.reason, exit_status.BY_SIGNAL + message.signal)
    outcome = failed_outcome(message.reason, rootcause.name(message.failures))
    known = outcome.blame.kind if outcome.blame is not None else ""
    if message.kind in ("", known):
        return outcome
    # Its own reason explains the death of its workers.
    told = Blame(message.kind, name, "certain", message.reason)
    return replace(outcome, blame=told)


def _note_loss(group: Group, current: Round, node: str, found: Blame) -> None:
    """Name the first node of a round that is suspected, lost or leaves; a later finding about it
    replaces a suspicion. It is kept until another round runs: a job that never gets one ends
    because of it."""
    known = group.loss
    if known is not None and known.round == current.number and known.node != node:
        return
    who = f"{found.who}{_ranks_of(current, node)}"
    group.loss = NodeLoss(current.number, node, replace(found, who=who))


def _ranks_of(current: Round, node: str) -> str:
    """The ranks that were lost with it, if known."""
    if node not in current.assignments:
        return ""
    first, last = (current.assignments[node].workers[n].rank for n in (0, -1))
    return sentences.lost_ranks(first, last)


def _member_departed(
    state: CoordinatorState, node: str, what: tuple[str, str], now: float
) -> Effects:
    """A node is gone or has left: its round ends, unless it had finished there."""
    current = state.group.round
    if current is None or node not in current.seats:
        return []
    seats = current.seats
    if current.stop is not None and seats.exit_of(node) in ("back", "idle"):
        return []
    current.leaving.pop(node, None)
    if current.announced:
        seats.note_exit(node, "gone")
        for feature in state.features:
            feature.member_gone(current, node)
        if seats.has_succeeded(node):
            _note_done(current, node)
            return []
    effects = end_for(state, current, "loss", what, now)
    note_lost(current, " ".join(what))
    return effects


def note_lost(current: Round, text: str) -> None:
    """A member was lost, or had to stop, before it had succeeded; `text` says so."""
    assert current.stop is not None, "a member is lost, and the round goes on"
    current.stop.lost = current.stop.lost or text


def draining(state: CoordinatorState, node: str, message: NodeDraining, now: float) -> Effects:
    """Note that a node wants to leave: `let_out` ends its round when it may.

    One that already stops its workers waits for nothing: its round ends at once.
    """
    member = state.members.get(node)
    if member is None:
        return []
    if not member.draining:
        member.drain_until = now + state.config.timeouts.drain_s
    member.draining = message.reason
    state.update_ready(node)
    current = state.group.round
    if current is None or current.stop is not None or not current.seats.is_present(node):
        return []
    current.leaving.setdefault(node, member.drain_until)
    leaves = (member.name, sentences.is_leaving(message.reason))
    if current.announced and message.at_once and not current.seats.has_succeeded(node):
        return end_for(state, current, "drain", leaves, now)
    if not current.announced or not message.within_s:
        return []
    until = now + message.within_s
    return flatten(f.end_coming(state, current, leaves, until, now) for f in state.features)


def let_out(state: CoordinatorState, now: float) -> Effects:
    """End the round for nodes that want to leave: once all have saved and enough others are there
    to go on, or when the first of them has waited long enough.

    Where no member stays there is nothing for a replacement to join, and so nothing to wait for.
    """
    current = state.group.round
    if current is None or current.stop is not None or not current.leaving:
        return []
    node, until = next(iter(current.leaving.items()))  # The first to ask has waited longest.
    if current.announced and not may_end(state, current, now):
        return []
    if current.staying and not _enough_stay(state, current) and now < until:
        state.deadlines["drain"] = until
        return []
    member = state.members[node]
    leaves = (member.name, sentences.is_leaving(member.draining))
    return end_for(state, current, "drain", leaves, now)


def explain_stop(state: CoordinatorState) -> Effects:
    """An end that is judged within a moment is explained once, then; a longer one before."""
    current = state.group.round
    if current is None or current.stop is None:
        return []
    current.stop.is_explained = True
    cause = current.stop.cause
    return [Explain(sentences.stopping(cause.reason, current.number), cause.about)]


def revoke_unstopped(state: CoordinatorState, now: float) -> Effects:
    """A node that does not stop its workers loses its lease, and is gone when that is over."""
    current = state.group.round
    if current is None or current.stop is None or state.config.max_nodes == 1:
        return []  # A job of one node has no leases to lose, and no other node to go on with.
    if now < current.stop.deadline:
        state.deadlines["stop"] = current.stop.deadline
        return []
    effects: Effects = []
    for name in current.seats.awaited():
        if name in state.members and not state.members[name].revoked:
            state.members[name].revoked = True
            state.update_ready(name)
            about = state.members[name].name
            effects.append(Explain(sentences.not_stopped_in_time(about), about))
            effects.append(Revoke(name))
    return effects


def reinstate(state: CoordinatorState, node: str) -> Effects:
    """It has stopped its workers after all, late: nothing more was required of it."""
    member = state.members[node]
    if not member.revoked:
        return []
    member.revoked = False
    state.update_ready(node)
    return [Reinstate(node)]


# Judging.


def settle(state: CoordinatorState, now: float) -> Effects:
    """Judge the round once no member is waited for any more."""
    current = state.group.round
    if current is None or current.stop is None or not current.is_over:
        return []
    return _judge(state, current, current.stop, now)


def _judge(state: CoordinatorState, ended: Round, stop: Stop, now: float) -> Effects:
    """Every member is back or gone: form again, restart or give up."""
    group = state.group
    group.round = None
    for what in ("stop", "stopping", "missing"):
        state.deadlines.pop(what, None)
    if stop.has_run:
        group.former = _who_has_state(state, ended) or group.former
    if not group.holders:
        present = (state.members.get(name) for name in group.former)
        group.holders = tuple(member.info for member in present if member is not None)
    progressed = _note_progress(state, ended, now)
    cause = _with_early_ends(state, rootcause.name(ended.failures.values()), ended)
    for feature in state.features:
        feature.round_judged(state, ended, cause, now)
    if group.closing is not None:
        reason = sentences.and_then(stop.cause.reason, group.closing.reason)
        state.close(_failed_or_lost(group, ended, reason, cause))
        return []
    if stop.cause.kind == "failure" and cause is not None and not stop.lost:
        return _charge(state, ended, cause, progressed, now)
    reason = _fruitless_for_too_long(state)
    if reason:
        reason = sentences.and_then(stop.cause.reason, reason)
        state.close(_failed_or_lost(group, ended, reason, cause))
        return []
    if not state.members:
        return []  # No node is left that could form another one.
    return _explain_free(stop)


def _explain_free(stop: Stop) -> Effects:
    """Say that another round forms, and that the last one is not charged."""
    reason, about = stop.cause.reason, stop.cause.about
    if stop.lost and stop.cause.kind == "failure":
        reason, about = sentences.peers_failed(stop.lost), ""
    elif stop.lost and stop.cause.suspicion:
        reason, about = stop.lost, ""
    elif stop.is_explained:
        reason = about = ""
    return [Explain(sentences.re_forming(reason), about, "re-form")]


def _with_early_ends(
    state: CoordinatorState, cause: rootcause.Cause | None, ended: Round
) -> rootcause.Cause | None:
    """Add to the first failure the ranks that had ended well before, on any node."""
    if cause is None:
        return None
    known = {end.rank: end for each in ended.failures.values() for end in each.ended_before}
    for seat in ended.seats.by_node.values():
        assignment = ended.assignments.get(seat.node) if seat.succeeded else None
        for one in assignment.workers if assignment is not None else ():
            known.setdefault(one.rank, EarlyEnd(one.rank, host=state.name_of(seat.node)))
    first = tuple(known[rank] for rank in sorted(known)[: rootcause.EARLY_ENDS_TOLD])
    return replace(cause, first=replace(cause.first, ended_before=first))


def _who_has_state(state: CoordinatorState, ended: Round) -> tuple[str, ...]:
    """Members with state, by group rank: they ran the round, or an earlier one before it."""
    earlier = set(state.group.former)
    exits = ended.seats.exit_of
    return tuple(
        name
        for name in ended.seats.present()
        if name in state.members
        and (exits(name) != "idle" or name in earlier or state.members[name].last_round)
    )


def _fruitless_for_too_long(state: CoordinatorState) -> str:
    limit, fruitless = state.config.restarts.fruitless_rounds_limit, state.group.budget.fruitless
    if not limit or fruitless < limit:
        return ""
    return sentences.without_progress(fruitless)


def _note_progress(state: CoordinatorState, ended: Round, now: float) -> bool | None:
    """Whether the round made progress; None if workers report nothing."""
    budget = state.group.budget
    reported, before = ended.furthest_step, budget.furthest_step
    progressed = None
    if reported is not None or before is not None:
        progressed = (reported or 0) > (before or 0)
        budget.furthest_step = max(reported or 0, before or 0)
    lasted = now - ended.started_at >= state.config.restarts.progress_after_s
    if progressed or (progressed is None and lasted):
        budget.fruitless = 0
    else:
        budget.fruitless += 1
    return progressed


def _charge(
    state: CoordinatorState,
    ended: Round,
    cause: rootcause.Cause,
    progressed: bool | None,
    now: float,
) -> Effects:
    group, first = state.group, cause.first
    failed = restarts.RoundFailure(
        at=now,
        lasted_s=now - ended.started_at,
        progressed=progressed,
        fingerprint=restarts.fingerprint(first),
        exit_code=first.status.code,
        non_retryable=first.error.non_retryable,
    )
    failed = _with_witnesses(state, ended, cause, failed)
    history = (*group.budget.history, failed)
    group.budget.history.append(failed)
    verdict = restarts.decide(state.config.restarts, history, now, state.config.run_id)
    what = rootcause.summary(cause)
    if isinstance(verdict, restarts.Restart) and _fruitless_for_too_long(state):
        verdict = restarts.GiveUp(_fruitless_for_too_long(state))
    if isinstance(verdict, restarts.GiveUp):
        state.close(failed_outcome(sentences.and_then(what, verdict.reason), cause))
        return []
    group.wait.not_before = now + verdict.delay_s
    group.wait.reason = sentences.PAUSING if verdict.delay_s else ""
    stop = ended.stop
    is_known = stop is not None and stop.is_explained and what == stop.cause.reason
    text = verdict.reason if is_known else sentences.and_then(what, verdict.reason)
    return [Explain(text, topic="restart", pause_s=verdict.delay_s)]


def _with_witnesses(
    state: CoordinatorState,
    ended: Round,
    cause: rootcause.Cause,
    failed: restarts.RoundFailure,
) -> restarts.RoundFailure:
    """The hosts on which the program cannot begin. A job that has made a step could begin."""
    has_begun = state.group.budget.furthest_step is not None or bool(ended.seats.succeeded)
    if has_begun or cause.first.ended_before:
        return failed
    hopeless = restarts.hopeless(cause.failed)
    alike = [one for one in cause.everybody if restarts.is_alike(one, cause.first)]
    if state.config.max_nodes > 1:
        witnesses, needed = {one.host for one in alike}, 2
    else:
        witnesses = {f"rank {one.rank} in round {ended.number}" for one in alike}
        needed = min(2, state.config.slots)
    found = tuple(sorted(witnesses))
    return replace(failed, hopeless=hopeless, witnesses=found, witnesses_needed=needed)


def closing_wanted(state: CoordinatorState, outcome: Outcome) -> Effects:
    """Let the present round go on, and form no other. The first request counts."""
    if state.group.closing is not None:
        return []
    state.group.closing = brief(outcome)
    return [Explain(sentences.no_further_round(cut(outcome.reason)))]


def close_if_all_succeeded(state: CoordinatorState, current: Round) -> None:
    """A stopping round is judged, even if members succeed meanwhile."""
    if current.stop is None and current.have_all_succeeded:
        state.close(ALL_SUCCEEDED)


def _failed_or_lost(
    group: Group, ended: Round, reason: str, cause: rootcause.Cause | None
) -> Outcome:
    """The peers of a lost node fail, too: it is to blame, and not they."""
    outcome = failed_outcome(reason, cause)
    is_lost = ended.stop is not None and bool(ended.stop.lost)
    if group.loss is None or group.loss.round != ended.number or not is_lost:
        return outcome
    return replace(outcome, blame=group.loss.blame)


def failed_outcome(reason: str, cause: rootcause.Cause | None) -> Outcome:
    if cause is None:
        return Outcome("failed", reason, exit_status.FAILED)
    others = cause.also_failed + cause.victims + cause.stopped
    found = rootcause.blame(cause)
    return Outcome("failed", reason, exit_status.FAILED, cause.first, others, blame=found)
