"""The election: which node is the coordinator, where nodes replace each other through a register.

A register is one document with compare-and-set: `read() -> (document, token)` and
`write(document, token) -> (document, token, has_set)`. Some can do more: tell of every change
by themselves, or know that the last writer has fallen silent. This machine runs on every node:

                   claims                    written
    follower ───────────────▶ candidate ───────────────▶ leader ──▶ resigning
        ▲                         │ another was first       │ outranked,   │ written, or
        └─────────────────────────┴─────────────────────────┴ replaced ────┘ another was first

Rules (numbered as in docs/design/rules.md, §5)
9.  The document is small; at rest only the leader writes, and only successors read.
10. Write before telling: the coordinator's ledger is confirmed to it only after its
    compare-and-set succeeded.
11. An unclear result is *unknown*: the very same write is tried again, and read, until our own
    nonce or another node's later write shows; nothing is confirmed before. Reads may be stale:
    every decision rests on a compare-and-set that succeeded.
12. A term ends `term_s` after *sending* the last write that succeeded; beyond it the leader
    sends nothing (`may_speak`, asked when a frame is sent). Others may take over `takeover_s`
    after they last saw the counter move, by compare-and-set on the very token they saw:
    successors one after the other, other nodes later. The end of the leader's tether proves it
    dead: a successor takes over at once. So does, out of turn, a node on whose machine the
    leader ran, if the machine proves that it has ended (`core.policy.liveness_locks`).
13. A node that lost the leader dials it and the successors, and only then asks the register.
15. Register out of reach: *hold*. Heartbeats of the running round are still answered while all
    its members are heard, for `hold_s` after the end of the term. Nothing else is sent.
16. A leader that resigns names no leader and sits out one election.

Why 12 is safe: the leader counts from when it sent, the others from when they saw, which is
later; and term_s(1+d) < takeover_s, so the old term is over before a new one can begin.

A register that lost its content (a store that was restarted empty) is written again by the leader
within its term: no other node can have taken over. Others wait for that as for any sign of life,
then claim from what they saw last, above every term that they know of. They wait anew if it was
out of reach since: it may have held a claim and lost its content again. A node that never saw
anything begins a new instance, which is above every older one.

Not all may claim at once: there may be thousands. Successors go one after the other, other nodes
that seek a coordinator after them, and a crowd that finds nothing at all spreads out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import border
from holdfast.core.coordinator import CoordinatorState, is_owed
from holdfast.core.policy import sentences
from holdfast.core.policy.config import Leases
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.messages import CloseJob, HeartbeatAnswered, ToNode, Welcomed
from holdfast.core.protocol.model import Endpoint, Record, Term
from holdfast.core.protocol.naming import host_of

RENEW_TIMER, WATCH_TIMER, RESIGN_TIMER, LEAVE_TIMER = "renew", "watch", "resign", "leave"
FORGOTTEN_AFTER_S = 60.0
"""How long latecomers learn the outcome from the register, where it can forget."""
STAGGER_S = 0.5
"""How much later each further successor tries."""
CROWD_S, FEW = 1.0, 8
"""Over how long more than a few nodes that start together spread their first claims."""
WORTH_SAYING = 2
"""Unanswered requests in a row before the user is told."""

# Events, beside those that come from the other machines of the node (`core.border`).


class ElectionStarted(Record, frozen=True):
    """The node is up: find the leader."""


class RegisterRead(Record, frozen=True):
    """The register's content, or None if nothing was ever written."""

    document: Document | None
    token: int
    expired: bool = False
    """The register itself knows that the last writer has been silent beyond its term."""


class RegisterWrote(Record, frozen=True):
    """The answer to a write: whether it succeeded, and the present content."""

    has_set: bool
    document: Document | None
    token: int
    nonce: str = ""
    """The nonce of the document to be written: an answer to an older write is ignored."""


class RegisterUnclear(Record, frozen=True):
    """No answer came, and none will: the request may or may not have been carried out."""

    wrote: bool
    nonce: str = ""
    """The nonce of the document to be written."""
    reason: str = ""
    refused: bool = False
    """The register refuses to serve us: asking again is of no use."""


class RegisterForgot(Record, frozen=True):
    """The request of `ForgetRegister` is arranged, or cannot be."""


class LeaderTetherEnded(Record, frozen=True):
    """All processes of the leader's node are gone."""

    leader: str


class HoldJudged(Record, frozen=True):
    """The leader was to answer a heartbeat beyond its term: whether it may (`may_send`)."""

    allowed: bool


class ElectionTimerFired(Record, frozen=True):
    """A timer that was asked for with `WakeElection` has run out."""

    name: str


ElectionEvent = (
    ElectionStarted | RegisterRead | RegisterWrote | RegisterUnclear | RegisterForgot
    | LeaderTetherEnded | HoldJudged | ElectionTimerFired
    | border.Write | border.Resign | border.Depose | border.Retire | border.Dial
    | border.KnowEnded | border.Told | border.HandOverAsked
)  # fmt: skip

# Effects, beside those that are events of the other machines.


class ReadRegister(Record, frozen=True):
    """`RegisterRead` follows, or `RegisterUnclear` when no answer came."""


class WriteRegister(Record, frozen=True):
    """Compare-and-set. `RegisterWrote` follows, or `RegisterUnclear` when no answer came."""

    document: Document
    token: int


class WatchRegister(Record, frozen=True):
    """Have every change of the register told as `RegisterRead`, or no longer.

    `RegisterUnclear` follows when that breaks off.
    """

    on: bool


class ForgetRegister(Record, frozen=True):
    """Have the register forget the job after this long; `RegisterForgot` follows."""

    after_s: float


class Lead(Record, frozen=True):
    """Be the coordinator from now on, beginning with what is written down.

    `holder_possible` is set when an earlier one may still be holding leases; `dead` is the node
    of one of whose end there is proof, and `dead_seat` its seat in the round, if it had one.
    """

    document: Document
    holder_possible: bool
    dead: str = ""
    dead_seat: int | None = None


class Renewed(Record, frozen=True):
    """The term is extended: the coordinator may send messages that waited for it."""


class StepDown(Record, frozen=True):
    """Stop being the coordinator: forget its state, close its connections."""

    reason: str


class DialNodes(Record, frozen=True):
    """Dial these nodes, all at once: one of them leads, or may lead by now."""

    nodes: tuple[str, ...]
    endpoints: tuple[Endpoint, ...] = ()
    """The known addresses of those nodes."""


class WakeElection(Record, frozen=True):
    """Come back with `ElectionTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


ElectionEffect = (
    ReadRegister | WriteRegister | WatchRegister | ForgetRegister | Lead | Renewed | StepDown
    | DialNodes | WakeElection | border.Written | border.CoordinatorLost | border.Told | border.Say
)  # fmt: skip

# The state.

SendVerdict = Literal["send", "keep", "drop"]


class Role(Enum):
    """A node's role in the election; the leader is the coordinator."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    """Its claim is being written."""
    LEADER = "leader"
    RESIGNING = "resigning"
    """It no longer coordinates; that is being written."""


class PendingWrite(Struct, frozen=True, omit_defaults=True):
    """A write with an unknown result."""

    document: Document
    token: int
    sent_at: float
    version: int = 0
    """The version of the coordinator's ledger in it, to be confirmed."""
    lead: Lead | None = None
    """A candidate's: the effect of its success."""
    unclear: bool = False
    """No answer came, and none will: the result has to be found out."""


class ElectionState(Struct, omit_defaults=True):
    """One node's knowledge of the leadership."""

    node: str
    leases: Leases
    nodes_max: int = 1
    """How many nodes there may be."""
    instance: int = 1
    """The instance of a job of which nothing is known; a later one is larger."""
    endpoint: Endpoint | None = None
    """The address of this node."""
    can_watch: bool = False
    """Whether the register tells of its changes, if it is asked to."""
    can_forget: bool = False
    """Whether the register forgets the job by itself, if it is asked to."""
    resign_s: float = 3.0
    """How long a node that is done waits until another one leads."""
    role: Role = Role.FOLLOWER
    seen: Document | None = None
    """The last document that was there; a leader's own."""
    token: int = 0
    moved_at: float | None = None
    """When the document was last seen to change, on our clock."""
    leaderless_since: float | None = None
    """Since when certainly no node leads, as far as seen here."""
    pending: PendingWrite | None = None
    written_at: float = 0.0
    """When we sent the last write that succeeded."""
    hold_over: bool = False
    """Beyond its term, and without a right to hold."""
    wanted: border.Write | None = None
    """The coordinator's next ledger to write."""
    leader: str = ""
    successors: tuple[str, ...] = ()
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """The addresses of the successors."""
    dialled: bool = False
    """All known nodes have been dialled: the register is next."""
    seeking: bool = False
    """The node waits for addresses to dial."""
    dead: str = ""
    """The leader, proven to have ended."""
    ended: frozenset[str] = frozenset()
    """Nodes that are proven to have ended on this machine: one may have been the leader."""
    above: Term = Term()
    """The highest known term: a claim goes above it, whatever the register says."""
    writes: int = 0
    leaves: bool = False
    """Nothing of any round is on this node any more."""
    is_over: bool = False
    """The job is over, and all nodes know."""
    resigns: bool = False
    """Resign once the write under way has been answered."""
    welcomed: bool = False
    """A coordinator has admitted this node."""
    leaving: bool = False
    """The node is done, and for a little while others may need it."""
    retiring: bool = False
    """The register is being asked to forget the job: nothing else matters now."""
    forgotten: bool = False
    sits_out_until: float = 0.0
    read_pending: bool = False
    watching: bool = False
    unanswered: int = 0
    """How many requests in a row the register has not answered."""


# Queries: they change nothing.


def may_speak(state: ElectionState, now: float) -> bool:
    """Whether the term still lasts. Asked when a frame is sent."""
    return state.role is Role.LEADER and now < state.written_at + state.leases.term_s


def may_send(
    state: ElectionState, message: ToNode, all_heard: Callable[[float], bool], now: float
) -> SendVerdict:
    """Whether to send, keep or drop a message of the coordinator's, asked when it is sent.

    "keep": until the term is renewed. Beyond it a heartbeat may be answered on hold: while all
    members of the round are heard, which costs something to find out.
    """
    if may_speak(state, now):
        return "send"
    if not isinstance(message, HeartbeatAnswered):
        return "keep"
    held_until = state.written_at + state.leases.term_s + state.leases.hold_s
    return "send" if _has_round(state) and now < held_until and all_heard(now) else "drop"


def is_needed(state: ElectionState, coordinator: CoordinatorState | None) -> bool:
    """Whether others still need this node, though it is done; it may be the coordinator."""
    if state.retiring:
        return not state.forgotten
    if coordinator is not None and is_owed(coordinator):
        return True
    # What has to be written first may never be: the register may be out of reach.
    is_unwritten = coordinator is not None and coordinator.outcome is not None
    is_tidying = state.is_over and state.unanswered > 0  # Nothing else would come of it.
    is_resigning = state.resigns or state.role is Role.RESIGNING
    return state.leaving and (is_unwritten or (is_resigning and not is_tidying))


def _has_round(state: ElectionState) -> bool:
    return state.role is Role.LEADER and state.seen is not None and state.seen.ledger.size > 0


def _is_dead(state: ElectionState, leader: str) -> bool:
    """Whether it is proven that nothing of this node runs, and so holds or sends, any more."""
    return bool(leader) and (leader == state.dead or leader in state.ended)


# Steps.


def step(state: ElectionState, event: ElectionEvent, now: float) -> list[ElectionEffect]:
    """Advance by one event."""
    if state.retiring:
        state.forgotten = state.forgotten or isinstance(event, RegisterForgot)
        return []
    match event:
        case RegisterRead():
            state.read_pending = False
            if event.document is None and state.unanswered:
                state.moved_at = None  # It may have held something meanwhile, and lost that too.
            return _in_reach(state) + _saw(state, event, now)
        case RegisterWrote():
            return _in_reach(state) + _wrote(state, event, now)
        case RegisterUnclear():
            return _unclear(state, event, now)
        case ElectionTimerFired():
            return _timer(state, event.name, now)
        case ElectionStarted():
            return _ask_register(state)
        case border.Write():
            # The request of a coordinator whose term is over must not be written in the next one.
            state.wanted = event if state.role is Role.LEADER else None
            return _write_next(state, now)
        case HoldJudged():
            state.hold_over = _has_round(state) and not event.allowed
        case LeaderTetherEnded():
            return _leader_died(state, event.leader, now)
        case border.KnowEnded():
            state.ended |= set(event.nodes)
            return _look_again(state, now)
        case border.Dial():
            return _whom_to_dial(state)
        case border.Told(message=Welcomed() as welcome):
            return _welcomed(state, welcome, event.term, now)
        case border.Depose():
            state.above = max(state.above, event.term)
            return _step_down(state, sentences.OUTRANKED)
        case border.Resign():
            state.leaves = event.leaves
            return _resign(state, now)
        case border.HandOverAsked():
            state.leaving = True
            return [WakeElection(LEAVE_TIMER, state.resign_s)]
        case border.Retire():
            return _retire(state, now)
    return []


def _timer(state: ElectionState, name: str, now: float) -> list[ElectionEffect]:
    if name == RENEW_TIMER and state.hold_over and state.pending and not may_speak(state, now):
        # Its own node, too, has to find the new leader.
        return _step_down(state, sentences.REGISTER_LOST)
    if name == RENEW_TIMER and state.role is Role.LEADER:
        return [*_write_next(state, now, renew=True), _soon(state, RENEW_TIMER)]
    if name == RESIGN_TIMER:
        return _resign(state, now)
    if name == LEAVE_TIMER:
        state.leaving = False
    is_idle = state.role is Role.FOLLOWER
    if name == WATCH_TIMER and (is_idle or (state.pending is not None and state.pending.unclear)):
        return _ask_register(state)
    return []


def _soon(state: ElectionState, name: str) -> WakeElection:
    return WakeElection(name, state.leases.term_s / 3)


# Reading.


def _ask_register(state: ElectionState) -> list[ElectionEffect]:
    if state.read_pending:
        return []
    state.read_pending = True
    return [ReadRegister()]


def _saw(state: ElectionState, found: RegisterRead, now: float) -> list[ElectionEffect]:
    """Take in what the register holds."""
    document = found.document
    if state.pending is not None:
        # While an answer may still come, only it counts: what was read may be older.
        return _resolve(state, found, now) if state.pending.unclear else []
    if state.role is Role.LEADER:
        if document is None or (state.seen is not None and document.term <= state.seen.term):
            return []
        return _step_down(state, sentences.taken_over(host_of(document.leader)))
    if state.moved_at is None or found.token != state.token:
        state.moved_at = now
    if found.expired:
        state.moved_at = min(state.moved_at, now - state.leases.takeover_s)
    lost = document is None and state.seen is not None
    state.seen = document = document or state.seen
    state.token = found.token
    if document is None:
        return _claim_in_turn(state, now, free=True)
    if document.ledger.outcome is not None:
        # A node that has a coordinator hears it from there, in full: what is written is short.
        return _learn(state, document, now) if state.seeking else []
    # A node that watches sees a new leader before it misses the old one.
    replaced = document.term > state.above and state.leader not in ("", document.leader)
    state.above = max(state.above, document.term)
    state.leader, state.successors = document.leader, document.successors
    state.endpoints = document.addresses
    # A register that lost its content tells nothing of the one that leads by now.
    free = (not document.leader or _is_dead(state, document.leader)) and not lost
    effects = _claim_in_turn(state, now, free=free)
    if effects:
        return effects
    if (state.seeking or (replaced and document.leader)) and _candidates(state):
        return [*_dial(state), *_watch(state, now)]
    return _watch(state, now)


def _learn(state: ElectionState, document: Document, now: float) -> list[ElectionEffect]:
    """The job is over; the node that wrote that may be dead, and unable to tidy up."""
    assert document.ledger.outcome is not None, "it is not over"
    told = border.Told(CloseJob(document.ledger.outcome), document.term)
    if state.welcomed:
        return [told, *_retire(state, now)]
    return [border.Say(sentences.FINISHED_BEFORE), told]


def _look_again(state: ElectionState, now: float) -> list[ElectionEffect]:
    """The leader that the register names may have been on this machine."""
    if state.role is not Role.FOLLOWER or state.seen is None:
        return []
    return _claim_in_turn(state, now, free=True) if state.seen.leader in state.ended else []


def _leader_died(state: ElectionState, leader: str, now: float) -> list[ElectionEffect]:
    """Proof, not suspicion: no node can still send or hold."""
    state.dead = leader
    if state.node not in state.successors:
        return []  # There may be thousands of us: rule 13.
    if state.role is not Role.FOLLOWER or state.seen is None or state.seen.leader != leader:
        return _ask_register(state)
    return _claim_in_turn(state, now, free=True)


def _watch(state: ElectionState, now: float) -> list[ElectionEffect]:
    """Successors read the register regularly; other nodes only while they seek a coordinator."""
    is_candidate = state.node in state.successors or state.seeking
    wanted = is_candidate and state.role is not Role.LEADER
    effects: list[ElectionEffect] = []
    if state.can_watch and wanted != state.watching:
        state.watching = wanted
        effects.append(WatchRegister(wanted))
    if not wanted:
        return effects
    after_s = state.leases.term_s / 3
    if state.moved_at is not None:
        overdue_s = state.moved_at + state.leases.takeover_s + _turn(state) - now
        # Where every sign of life is reported, no read is needed before one is overdue.
        sooner = 0 < overdue_s < after_s
        after_s = overdue_s if sooner or (state.can_watch and overdue_s > after_s) else after_s
    return [*effects, WakeElection(WATCH_TIMER, after_s)]


def _in_reach(state: ElectionState) -> list[ElectionEffect]:
    unanswered, state.unanswered = state.unanswered, 0
    return [border.Say(sentences.REGISTER_ANSWERS)] if unanswered >= WORTH_SAYING else []


# Claiming.


def _turn(state: ElectionState) -> float:
    """How long after the first this node may try, so that not all do at once."""
    chance = zlib.crc32(f"{state.node}/{state.writes}".encode()) / 2**32
    if state.seen is None:
        return CROWD_S * chance if state.nodes_max > FEW else 0.0
    if state.seen.leader in state.ended:
        return 0.0  # Only nodes on that machine know it.
    if state.node in state.successors:
        return state.successors.index(state.node) * STAGGER_S
    return (len(state.successors) + (1 + 4 * chance)) * STAGGER_S


def _claim_in_turn(state: ElectionState, now: float, *, free: bool) -> list[ElectionEffect]:
    """Claim to lead, if no node does and it is our turn; else check again when it may be.

    `free`: certainly no node leads, known by more than silence.
    """
    since = state.leaderless_since if state.leaderless_since is not None else now
    state.leaderless_since = since if free else None
    if now < state.sits_out_until:
        return [WakeElection(WATCH_TIMER, state.sits_out_until - now)] if state.seeking else []
    is_wanted = state.node in state.successors or state.seeking
    if state.seen is not None and not (is_wanted or state.seen.leader in state.ended):
        return []
    if not free:
        assert state.moved_at is not None, "it was looked at"
        due = state.moved_at + state.leases.takeover_s + _turn(state)
        return _claim(state, now, holder_possible=True) if now >= due else []
    due = since + _turn(state)
    if now >= due:
        return _claim(state, now, holder_possible=False)
    later = WakeElection(WATCH_TIMER, due - now)
    return [later] if state.seen is None else [*_watch(state, now), later]


def _claim(state: ElectionState, now: float, *, holder_possible: bool) -> list[ElectionEffect]:
    last = state.seen or Document(state.instance, 0, 0, "", "")
    above = max(state.above, last.term)
    dead = last.left or (last.leader if _is_dead(state, last.leader) else "")
    # The death or resignation of the last leader says nothing of one before it.
    held = bool(last.ledger.size) and (holder_possible or last.ledger.held)
    claim = _next_document(
        state,
        last,
        instance=above.instance,
        epoch=above.epoch + 1,
        # Whose seat it is has to be found out for the new leader.
        ledger=replace(last.ledger, leader_seat=None, held=held),
    )
    lead = Lead(claim, held, dead, last.ledger.leader_seat if dead else None)
    state.role = Role.CANDIDATE
    return _send(state, PendingWrite(claim, state.token, now, lead=lead))


# Writing.


def _next_document(state: ElectionState, last: Document, **changes: object) -> Document:
    """The next document, by this node: unlike any other ever written."""
    state.writes += 1
    own = {state.node: state.endpoint} if state.endpoint is not None else {}
    unique = {"counter": last.counter + 1, "nonce": f"{state.node}/{state.writes}", "left": ""}
    document = replace(last, **{"leader": state.node, **unique, **changes})
    known = (document.leader, *document.successors)
    endpoints = {**document.addresses, **own}
    return replace(document, addresses={n: e for n, e in endpoints.items() if n in known})


def _send(state: ElectionState, pending: PendingWrite) -> list[ElectionEffect]:
    state.pending = pending
    return [WriteRegister(pending.document, pending.token)]


def _write_next(state: ElectionState, now: float, *, renew: bool = False) -> list[ElectionEffect]:
    """One write at a time; later requests go with the next."""
    if state.role is not Role.LEADER or state.seen is None or state.pending is not None:
        return []
    if state.wanted is None and not renew:
        return []
    new, state.wanted = state.wanted, None
    changes: dict[str, object] = {}
    if new is not None:
        changes = {"successors": new.successors, "ledger": new.ledger, "addresses": new.addresses}
    document = _next_document(state, state.seen, **changes)
    version = new.version if new is not None else 0
    return _send(state, PendingWrite(document, state.token, now, version))


def _wrote(state: ElectionState, event: RegisterWrote, now: float) -> list[ElectionEffect]:
    if state.pending is None or event.nonce not in ("", state.pending.document.nonce):
        return []
    if event.has_set:
        return _succeeded(state, state.pending, event.token, now)
    return _resolve(state, RegisterRead(event.document, event.token), now, certain=True)


def _unclear(state: ElectionState, event: RegisterUnclear, now: float) -> list[ElectionEffect]:
    """Tell the user once; a node that seeks a coordinator has to try again later."""
    effects: list[ElectionEffect] = []
    text = sentences.register_unreachable(event.reason, None)
    state.unanswered += 1
    if state.seeking:
        effects.append(border.CoordinatorLost(text, event.refused and state.moved_at is None))
    # A node that has only begun to search says so anyhow, with the reason.
    is_new_here = state.seeking and state.seen is None
    if state.unanswered == WORTH_SAYING and not is_new_here:
        hold_s = state.leases.hold_s if state.role is Role.LEADER else None
        effects.append(border.Say(sentences.register_unreachable(event.reason, hold_s)))
    if not event.wrote:
        state.read_pending = state.watching = False
        return [*effects, _soon(state, WATCH_TIMER)]
    if state.pending is None or event.nonce not in ("", state.pending.document.nonce):
        return effects
    state.pending = replace(state.pending, unclear=True)
    return effects + _ask_register(state)


def _resolve(
    state: ElectionState, found: RegisterRead, now: float, *, certain: bool = False
) -> list[ElectionEffect]:
    """Infer the result of our write from the present content."""
    document, token = found.document, found.token
    pending = state.pending
    assert pending is not None, "nothing was written"
    if document is not None and document.nonce == pending.document.nonce:
        return _succeeded(state, pending, token, now)
    is_lost = document is None and certain and may_speak(state, now)
    if is_lost:  # All of it, and no other node can have taken over since.
        pending = replace(pending, token=token)
    # Not there (yet), or the answer is stale: the same write again can only succeed once.
    is_open = document is None or token == pending.token
    is_open = is_open or (document is not None and document.counter < pending.document.counter)
    if is_lost or (is_open and not certain):
        return _send(state, replace(pending, unclear=False))
    return _failed(state, found, now)


def _succeeded(
    state: ElectionState, pending: PendingWrite, token: int, now: float
) -> list[ElectionEffect]:
    state.pending, state.token = None, token
    state.seen, state.moved_at = pending.document, now
    if state.role is Role.RESIGNING:
        state.role = Role.FOLLOWER
        _sit_out(state, now)  # From now on others can see it.
        return []
    if pending.lead is not None and now >= pending.sent_at + state.leases.term_s * 2 / 3:
        # It took so long to get through that hardly any term is left to begin with.
        again = _next_document(state, pending.document)
        lead = replace(pending.lead, document=again)
        return _send(state, replace(pending, document=again, token=token, sent_at=now, lead=lead))
    state.written_at, state.hold_over = max(state.written_at, pending.sent_at), False
    if pending.lead is not None:
        state.role, state.leader = Role.LEADER, state.node
        state.seeking = state.dialled = False
        return [pending.lead, *_watch(state, now), _soon(state, RENEW_TIMER)]
    effects: list[ElectionEffect] = [Renewed()]
    if pending.version:
        effects.append(border.Written(pending.version))
    effects += _write_next(state, now)
    if state.resigns and state.pending is None:
        # Only after the effects of this write.
        effects.append(WakeElection(RESIGN_TIMER, 0.0))
    return effects


def _failed(state: ElectionState, found: RegisterRead, now: float) -> list[ElectionEffect]:
    """Another node wrote, and that stands."""
    effects: list[ElectionEffect] = []
    if state.role is Role.LEADER:
        effects = _step_down(state, sentences.taken_over(""))
    state.role, state.pending = Role.FOLLOWER, None
    return effects + _saw(state, RegisterRead(found.document, found.token), now)


# The end of a term.


def _step_down(state: ElectionState, reason: str) -> list[ElectionEffect]:
    if state.role is not Role.LEADER or state.seen is None:
        return []
    state.role, state.leader = Role.FOLLOWER, ""
    state.successors, state.endpoints = state.seen.successors, state.seen.addresses
    state.pending = state.wanted = None
    state.hold_over = state.resigns = False
    return [StepDown(reason), *_ask_register(state)]


def _resign(state: ElectionState, now: float) -> list[ElectionEffect]:
    """Name no leader, and do not claim for a while."""
    if state.role is not Role.LEADER or state.seen is None:
        return []
    if state.pending is not None or state.wanted is not None:
        state.resigns = True  # As soon as all is written that has to be.
        return _write_next(state, now)
    ledger, left = state.seen.ledger, state.node if state.leaves else ""
    if not left:
        ledger = replace(ledger, leader_seat=None)
    document = _next_document(state, state.seen, leader="", ledger=ledger, left=left)
    if state.is_over:
        document = replace(
            document, instance=document.instance + 1, epoch=0, successors=(), ledger=Ledger()
        )
    state.role, state.resigns = Role.RESIGNING, False
    _sit_out(state, now)
    sent = _send(state, PendingWrite(document, state.token, now))
    return [StepDown(sentences.RESIGNED), *sent]


def _sit_out(state: ElectionState, now: float) -> None:
    state.sits_out_until = now + 2 * state.leases.takeover_s


def _retire(state: ElectionState, now: float) -> list[ElectionEffect]:
    """The register may forget the job after a while; one that cannot is left as if new."""
    if state.can_forget:
        state.retiring = True
        return [ForgetRegister(FORGOTTEN_AFTER_S)]
    state.leaves, state.is_over = False, True
    return _resign(state, now)


# Whom to dial.


def _welcomed(
    state: ElectionState, welcome: Welcomed, term: Term, now: float
) -> list[ElectionEffect]:
    """A coordinator names the leader and its successors."""
    state.leader, state.successors = welcome.leader, welcome.successors
    state.endpoints = welcome.addresses
    state.above = max(state.above, term)
    state.seeking = state.dialled = False
    state.welcomed = True
    return _watch(state, now)


def _whom_to_dial(state: ElectionState) -> list[ElectionEffect]:
    """The leader and its successors, the register only then."""
    if state.role is Role.LEADER:
        return [DialNodes((state.node,))]
    if not state.dialled and _candidates(state):
        return _dial(state)
    state.dialled, state.seeking = False, True
    return _ask_register(state)


def _candidates(state: ElectionState) -> tuple[str, ...]:
    known = dict.fromkeys(name for name in (state.leader, *state.successors) if name)
    return tuple(name for name in known if name != state.node and not _is_dead(state, name))


def _dial(state: ElectionState) -> list[ElectionEffect]:
    state.seeking, state.dialled = False, True
    nodes = _candidates(state)
    endpoints = [state.endpoints[name] for name in nodes if name in state.endpoints]
    return [DialNodes(nodes, tuple(endpoints))]


# Invariants, which hold after every step. The simulator checks each time.


def broken_invariants(state: ElectionState) -> Iterator[str]:
    """The broken invariants, in words."""
    role, seen, pending = state.role, state.seen, state.pending
    if role is Role.LEADER and (seen is None or seen.leader != state.node):
        yield "this node leads by a document that does not name it"
    if (role is Role.CANDIDATE) != (pending is not None and pending.lead is not None):
        yield f"a {role.value} with {'a' if pending else 'no'} claim"
    if role is not Role.LEADER and (role is Role.FOLLOWER) != (pending is None):
        yield f"a {role.value} with {'nothing' if pending is None else 'something'} to write"
    if state.wanted is not None and role is not Role.LEADER:
        yield "something waits to be written for a coordinator that is not there"
    if role is Role.LEADER and state.seeking:
        yield "a leader looks for a coordinator"
    if state.forgotten and not state.retiring:
        yield "the register forgot a job that is not over"
