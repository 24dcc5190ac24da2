"""Who is the coordinator, where nodes find and replace each other through a register.

A register is one document with compare-and-set: `read() -> (document, token)` and
`write(document, token) -> (document, token, has_set)`. This machine runs on every node.

Rules
9.  The document is small; at rest only the leader writes, and only successors read.
10. Write before word: what the coordinator wants written is confirmed to it only after its
    compare-and-set succeeded.
11. An unclear result is *unknown*: the very same write is tried again, and read, until our own
    nonce or somebody else's later write shows; nothing is confirmed before. Reads may be stale:
    every decision rests on a compare-and-set that succeeded.
12. A tenure ends `tenure_s` after *sending* the last write that succeeded; beyond it the leader
    says nothing (`may_speak`, asked when a frame is sent). Others may take over `takeover_s`
    after they last saw the counter move, by compare-and-set on the very token they saw:
    successors one after the other, anyone else later. The end of the leader's tether proves it
    dead: a successor takes over at once.
13. A node that lost the leader dials the successors, and asks the register only then.
15. Register out of reach: *hold*. Heartbeats of the running round are still answered while all
    its members are heard, for `hold_s` after the last answer that needed no hold. Nothing else.
16. A leader that resigns gives the place away and sits out one election.

Why 12 is safe: the leader counts from when it sent, the others from when they saw, which is
later; and tenure_s(1+d) < takeover_s, so the old tenure is over before a new one can begin.
"""

from __future__ import annotations

import zlib
from typing import Literal

from msgspec import Struct

from holdfast.core.config import Leases
from holdfast.core.document import Document, Ledger
from holdfast.core.messages import HeartbeatAnswered, ToNode
from holdfast.core.model import Outcome, Record, Tenure

RENEW_TIMER = "renew"
WATCH_TIMER = "watch"
STAGGER_S = 0.5
"""How much later each further successor tries."""

# Events.


class LeadershipStarted(Record, frozen=True):
    """The node is up: look who leads."""


class RegisterRead(Record, frozen=True):
    """The register's content, or None where nothing was ever written."""

    document: Document | None
    token: int


class RegisterWrote(Record, frozen=True):
    """The answer to a write: whether it was done, and what is there now."""

    has_set: bool
    document: Document | None
    token: int
    nonce: str = ""
    """Of the document that was to be written: an answer to an older write means nothing."""


class RegisterUnclear(Record, frozen=True):
    """No answer came, and none will: the request may or may not have been carried out."""

    wrote: bool
    nonce: str = ""
    """Of the document that was to be written."""


class LedgerWanted(Record, frozen=True):
    """The coordinator wants this written down."""

    version: int
    ledger: Ledger
    successors: tuple[str, ...]


class LeaderTetherEnded(Record, frozen=True):
    """All processes of the leader's node are gone."""

    leader: str


class DialWanted(Record, frozen=True):
    """The node has no connection to a coordinator: whom should it try next?"""


class Pointed(Record, frozen=True):
    """A coordinator has welcomed the node: who leads, and who would follow."""

    leader: str
    successors: tuple[str, ...]


class Outranked(Record, frozen=True):
    """Somebody has heard of a higher tenure than ours."""

    tenure: Tenure


class ResignationWanted(Record, frozen=True):
    """The coordinator thinks that somebody else should lead."""

    reason: str


class LeadershipTimerFired(Record, frozen=True):
    name: str


LeadershipEvent = (
    LeadershipStarted
    | RegisterRead
    | RegisterWrote
    | RegisterUnclear
    | LedgerWanted
    | LeaderTetherEnded
    | DialWanted
    | Pointed
    | Outranked
    | ResignationWanted
    | LeadershipTimerFired
)

# Effects.


class ReadRegister(Record, frozen=True):
    """`RegisterRead` follows, or `RegisterUnclear` when no answer came."""


class WriteRegister(Record, frozen=True):
    """Compare-and-set. `RegisterWrote` follows, or `RegisterUnclear` when no answer came."""

    document: Document
    token: int


class Lead(Record, frozen=True):
    """Be the coordinator from now on, beginning with what is written down.

    `holder_possible` is set when an earlier one may still be holding leases.
    """

    document: Document
    holder_possible: bool


class Confirm(Record, frozen=True):
    """Tell the coordinator that this version is written down."""

    version: int


class StepDown(Record, frozen=True):
    """Be the coordinator no more: forget its state, close its connections."""

    reason: str


class Call(Record, frozen=True):
    """Dial this node: it leads, or may lead by now."""

    node: str


class LearnOutcome(Record, frozen=True):
    """The job is over already."""

    outcome: Outcome


class WakeLeadership(Record, frozen=True):
    """Come back with `LeadershipTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


LeadershipEffect = (
    ReadRegister | WriteRegister | Lead | Confirm | StepDown | Call | LearnOutcome | WakeLeadership
)


class Pending(Struct):
    """A write whose fate is not known yet."""

    purpose: Literal["claim", "renew", "resign"]
    document: Document
    token: int
    sent_at: float
    version: int = 0
    holder_possible: bool = True
    unclear: bool = False
    """No answer came, and none will: it has to be found out."""


class LeadershipState(Struct):
    """What one node knows about who leads."""

    node: str
    terms: Leases
    seen: Document | None = None
    token: int = 0
    moved_at: float | None = None
    """When the document was last seen to change, on our clock."""
    pending: Pending | None = None
    leading: Document | None = None
    """What we last wrote, while we lead."""
    written_at: float = 0.0
    """When we sent the last write that succeeded."""
    unheld_at: float = 0.0
    """When a heartbeat was last answered without a hold."""
    wanted: LedgerWanted | None = None
    leader: str = ""
    successors: tuple[str, ...] = ()
    tried: int = 0
    calling: bool = False
    """The node waits to be told whom to dial."""
    dead: str = ""
    """The leader of whose end there is proof."""
    writes: int = 0
    sits_out_until: float = 0.0
    read_pending: bool = False


def step(state: LeadershipState, event: LeadershipEvent, now: float) -> list[LeadershipEffect]:
    """Advance by one event."""
    match event:
        case LeadershipStarted():
            return _read(state)
        case RegisterRead():
            state.read_pending = False
            return _saw(state, event.document, event.token, now)
        case RegisterWrote():
            return _wrote(state, event, now)
        case RegisterUnclear():
            return _unclear(state, event, now)
        case LedgerWanted():
            state.wanted = event
            return _write_next(state, now)
        case LeaderTetherEnded():
            return _leader_died(state, event.leader, now)
        case DialWanted():
            return _whom_to_dial(state, now)
        case Pointed():
            state.leader, state.successors, state.tried = event.leader, event.successors, 0
            state.calling = False
            return _watch(state)
        case Outranked():
            return _step_down(state, f"another coordinator leads (tenure {event.tenure})")
        case ResignationWanted():
            return _resign(state, now)
        case LeadershipTimerFired():
            return _timer(state, event.name, now)


# What the leader may do.


def may_speak(state: LeadershipState, now: float) -> bool:
    """Whether the tenure still lasts. Asked when a frame is sent."""
    return state.leading is not None and now < state.written_at + state.terms.tenure_s


def may_answer(state: LeadershipState, all_heard: bool, now: float) -> bool:
    """Whether a heartbeat may be answered: in tenure, or on hold with nobody missing."""
    if may_speak(state, now):
        state.unheld_at = now
        return True
    if state.leading is None or state.leading.ledger.size == 0:
        return False
    return all_heard and now < state.unheld_at + state.terms.hold_s


def gate(
    state: LeadershipState, message: ToNode, all_heard: bool, now: float
) -> Literal["send", "keep", "drop"]:
    """What becomes of a frame that the coordinator wants to send: asked when it is sent.

    What may not be said now is kept until the tenure is renewed, and forgotten with it.
    """
    if isinstance(message, HeartbeatAnswered):
        return "send" if may_answer(state, all_heard, now) else "drop"
    return "send" if may_speak(state, now) else "keep"


# Reading.


def _read(state: LeadershipState) -> list[LeadershipEffect]:
    if state.read_pending:
        return []
    state.read_pending = True
    return [ReadRegister()]


def _saw(
    state: LeadershipState, document: Document | None, token: int, now: float
) -> list[LeadershipEffect]:
    """Take in what the register holds."""
    if state.pending is not None:
        # While an answer may still come, it alone tells: what was read may be older.
        return _resolve(state, document, token, now) if state.pending.unclear else []
    if state.leading is not None:
        return _check_own(state, document)
    moved = state.moved_at is None or token != state.token
    state.seen, state.token = document, token
    if moved:
        state.moved_at = now
    if document is not None and document.ledger.outcome is not None:
        return [LearnOutcome(document.ledger.outcome)]
    if document is not None:
        state.leader, state.successors = document.leader, document.successors
    if document is None or document.leader in ("", state.dead):
        return _claim_in_turn(state, now, since=None)
    effects = _claim_in_turn(state, now, since=state.moved_at)
    if effects:
        return effects
    if state.calling and document.leader != state.node:
        state.calling, state.tried = False, 1
        return [Call(document.leader), *_watch(state)]
    return _watch(state)


def _check_own(state: LeadershipState, document: Document | None) -> list[LeadershipEffect]:
    if document is None or state.leading is None or document.tenure <= state.leading.tenure:
        return []
    return _step_down(state, f"{document.leader or 'somebody'} has taken over")


def _watch(state: LeadershipState) -> list[LeadershipEffect]:
    """Successors keep an eye on the register; the others leave it alone, unless they seek."""
    if state.leading is not None or not (state.node in state.successors or state.calling):
        return []
    return [WakeLeadership(WATCH_TIMER, state.terms.tenure_s / 3)]


def _timer(state: LeadershipState, name: str, now: float) -> list[LeadershipEffect]:
    if name == RENEW_TIMER and state.leading is not None:
        return [*_write_next(state, now, renew=True), _renew_later(state)]
    if name == WATCH_TIMER and state.pending is not None and state.pending.unclear:
        return _read(state)
    if name == WATCH_TIMER and state.leading is None and state.pending is None:
        return _read(state)
    return []


def _renew_later(state: LeadershipState) -> WakeLeadership:
    return WakeLeadership(RENEW_TIMER, state.terms.tenure_s / 3)


# Taking over.


def _turn(state: LeadershipState) -> float:
    """How long after everybody else may this node try."""
    if state.node in state.successors:
        return state.successors.index(state.node) * STAGGER_S
    return (len(state.successors) + _spread(state)) * STAGGER_S


def _spread(state: LeadershipState) -> float:
    return 1 + 4 * zlib.crc32(f"{state.node}/{state.writes}".encode()) / 2**32


def _claim_in_turn(
    state: LeadershipState, now: float, since: float | None
) -> list[LeadershipEffect]:
    """Claim the place, if it is free and it is our turn; else look again when it may be."""
    if now < state.sits_out_until:
        return [WakeLeadership(WATCH_TIMER, state.sits_out_until - now)] if state.calling else []
    if since is None:
        return _claim(state, now, holder_possible=False)
    if not (state.node in state.successors or state.calling):
        return []
    at = since + state.terms.takeover_s + _turn(state)
    if now < at:
        return []
    return _claim(state, now, holder_possible=True)


def _leader_died(state: LeadershipState, leader: str, now: float) -> list[LeadershipEffect]:
    """Proof, not suspicion: there is nobody who could still speak or hold."""
    state.dead = leader
    if state.leading is not None or state.pending is not None or state.seen is None:
        return _read(state)
    if state.seen.leader != leader or state.node not in state.successors:
        return _read(state)
    return _claim(state, now, holder_possible=False)


def _claim(state: LeadershipState, now: float, *, holder_possible: bool) -> list[LeadershipEffect]:
    state.writes += 1
    last = state.seen
    claim = Document(
        instance=last.instance if last is not None else 1,
        epoch=last.epoch + 1 if last is not None else 1,
        counter=last.counter + 1 if last is not None else 1,
        nonce=f"{state.node}/{state.writes}",
        leader=state.node,
        successors=last.successors if last is not None else (),
        ledger=last.ledger if last is not None else Ledger(),
    )
    state.pending = Pending("claim", claim, state.token, now, holder_possible=holder_possible)
    return [WriteRegister(claim, state.token)]


# Writing.


def _write_next(
    state: LeadershipState, now: float, *, renew: bool = False
) -> list[LeadershipEffect]:
    """One write at a time; what is wanted meanwhile goes with the next."""
    if state.leading is None or state.pending is not None:
        return []
    if state.wanted is None and not renew:
        return []
    state.writes += 1
    last, wanted = state.leading, state.wanted
    document = Document(
        instance=last.instance,
        epoch=last.epoch,
        counter=last.counter + 1,
        nonce=f"{state.node}/{state.writes}",
        leader=state.node,
        successors=wanted.successors if wanted else last.successors,
        ledger=wanted.ledger if wanted else last.ledger,
    )
    version = wanted.version if wanted else 0
    state.wanted = None
    state.pending = Pending("renew", document, state.token, now, version)
    return [WriteRegister(document, state.token)]


def _answers(nonce: str, pending: Pending) -> bool:
    """Whether this is the answer to that write; nobody says so where only one can be under way."""
    return nonce in ("", pending.document.nonce)


def _wrote(state: LeadershipState, event: RegisterWrote, now: float) -> list[LeadershipEffect]:
    if state.pending is None or not _answers(event.nonce, state.pending):
        return []
    if event.has_set:
        return _succeeded(state, state.pending, event.token, now)
    return _resolve(state, event.document, event.token, now, certain=True)


def _unclear(state: LeadershipState, event: RegisterUnclear, now: float) -> list[LeadershipEffect]:
    if not event.wrote:
        state.read_pending = False
        return [WakeLeadership(WATCH_TIMER, state.terms.tenure_s / 3)]
    if state.pending is None or not _answers(event.nonce, state.pending):
        return []
    state.pending.unclear = True
    return _read(state)


def _resolve(
    state: LeadershipState,
    document: Document | None,
    token: int,
    now: float,
    *,
    certain: bool = False,
) -> list[LeadershipEffect]:
    """The fate of our write, from what is there now."""
    pending = state.pending
    assert pending is not None, "nothing was written"
    if document is not None and document.nonce == pending.document.nonce:
        return _succeeded(state, pending, token, now)
    if token == pending.token and not certain:
        return _retry(state)  # Not there (yet): the same write again can only succeed once.
    if document is not None and document.counter < pending.document.counter and not certain:
        return _retry(state)  # A stale answer.
    return _failed(state, pending, document, token, now)


def _retry(state: LeadershipState) -> list[LeadershipEffect]:
    assert state.pending is not None, "nothing was written"
    state.pending.unclear = False
    return [WriteRegister(state.pending.document, state.pending.token)]


def _succeeded(
    state: LeadershipState, pending: Pending, token: int, now: float
) -> list[LeadershipEffect]:
    state.pending, state.token = None, token
    state.seen, state.moved_at = pending.document, now
    if pending.purpose == "resign":
        state.leading = None
        return []
    state.written_at = max(state.written_at, pending.sent_at)
    if pending.purpose == "claim":
        state.leading, state.leader = pending.document, state.node
        state.unheld_at = pending.sent_at
        return [Lead(pending.document, pending.holder_possible), _renew_later(state)]
    if state.leading is None:
        return []
    state.leading = pending.document
    effects: list[LeadershipEffect] = [Confirm(pending.version)]
    return effects + _write_next(state, now)


def _failed(
    state: LeadershipState,
    pending: Pending,
    document: Document | None,
    token: int,
    now: float,
) -> list[LeadershipEffect]:
    """Somebody else wrote: their word stands."""
    state.pending = None
    effects: list[LeadershipEffect] = []
    if state.leading is not None:
        effects = _step_down(state, "another coordinator has taken over")
    return effects + _saw(state, document, token, now)


# The end of a tenure.


def _step_down(state: LeadershipState, reason: str) -> list[LeadershipEffect]:
    if state.leading is None:
        return []
    state.leading = state.pending = state.wanted = None
    state.leader = ""
    return [StepDown(reason), *_read(state)]


def _resign(state: LeadershipState, now: float) -> list[LeadershipEffect]:
    """Give the place away: the document names no leader, and we do not ask for it at once."""
    if state.leading is None or state.pending is not None:
        return []
    state.writes += 1
    last = state.leading
    document = Document(
        instance=last.instance,
        epoch=last.epoch,
        counter=last.counter + 1,
        nonce=f"{state.node}/{state.writes}",
        leader="",
        successors=last.successors,
        ledger=last.ledger,
    )
    state.pending = Pending("resign", document, state.token, now)
    state.leading, state.wanted = None, None
    state.sits_out_until = now + 2 * state.terms.takeover_s
    return [StepDown("it has resigned"), WriteRegister(document, state.token)]


def _whom_to_dial(state: LeadershipState, now: float) -> list[LeadershipEffect]:
    """The leader first, then its successors, the register only then."""
    if state.leading is not None:
        return [Call(state.node)]
    known = [name for name in (state.leader, *state.successors) if name]
    candidates = [name for name in dict.fromkeys(known) if name != state.node]
    if state.tried < len(candidates):
        state.tried += 1
        return [Call(candidates[state.tried - 1])]
    state.tried = 0
    state.calling = True
    return _read(state)
