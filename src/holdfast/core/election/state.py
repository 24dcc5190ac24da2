"""What one node knows about who leads, and what the leader may do with it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.coordinator import CoordinatorState, is_owed
from holdfast.core.election.io import LedgerWanted
from holdfast.core.policy.config import Leases
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.messages import HeartbeatAnswered, ToNode
from holdfast.core.protocol.model import Endpoint, Term

RENEW_TIMER = "renew"
WATCH_TIMER = "watch"
RESIGN_TIMER = "resign"
LEAVE_TIMER = "leave"
FORGOTTEN_AFTER_S = 60.0
"""How long latecomers learn the outcome from the register, where it can forget."""
STAGGER_S = 0.5
"""How much later each further successor tries."""
CROWD_S = 1.0
"""Over how long many nodes that start together spread their first claims: the first one wins,
and the more there are the sooner it comes."""
FEW = 8
"""So many need not spread out."""
WORTH_SAYING = 2
"""One lost answer is nothing to speak of; from the second in a row on the user is told."""


class PendingWrite(Struct, omit_defaults=True):
    """A write whose fate is not known yet."""

    purpose: Literal["claim", "renew", "resign"]
    document: Document
    token: int
    sent_at: float
    version: int = 0
    holder_possible: bool = True
    dead: str = ""
    dead_seat: int | None = None
    unclear: bool = False
    """No answer came, and none will: it has to be found out."""


class ElectionState(Struct, omit_defaults=True):
    """What one node knows about who leads."""

    node: str
    terms: Leases
    crowd: int = 1
    """How many nodes there may be."""
    instance: int = 1
    """Of a job of which nothing is known; a later one is larger."""
    place: Endpoint | None = None
    """Where this node can be dialled."""
    pushes: bool = False
    """Whether the register tells of its changes, if it is asked to."""
    can_forget: bool = False
    """Whether the register forgets the job by itself, if it is asked to."""
    resign_s: float = 3.0
    """How long a node that is done waits until its place is handed over."""
    seen: Document | None = None
    """The last document that was there."""
    token: int = 0
    moved_at: float | None = None
    """When the document was last seen to change, on our clock."""
    freed_at: float | None = None
    """Since when nobody has led for certain, as far as it was seen here."""
    pending: PendingWrite | None = None
    leading: Document | None = None
    """What we last wrote, while we lead."""
    written_at: float = 0.0
    """When we sent the last write that succeeded."""
    mute: bool = False
    """Beyond its term, and without a right to hold: a heartbeat went unanswered for that."""
    unheld_at: float = 0.0
    """When a heartbeat was last answered without a hold."""
    wanted: LedgerWanted | None = None
    leader: str = ""
    successors: tuple[str, ...] = ()
    places: dict[str, Endpoint] = field(default_factory=dict)
    tried: bool = False
    """All that were known have been dialled: the register is next."""
    calling: bool = False
    """The node waits to be told whom to dial."""
    dead: str = ""
    """The leader of whose end there is proof."""
    ended: frozenset[str] = frozenset()
    """Nodes that have ended on this machine, by proof: one of them may have been the leader."""
    above: Term = Term()
    """The highest term that is known of: a claim goes above it, whatever the register says."""
    writes: int = 0
    leaves: bool = False
    """Nothing of any round is on this node any more."""
    is_over: bool = False
    """The job is over, and everybody knows."""
    resigns: bool = False
    """It is to give its place away when the write that is under way has been answered."""
    welcomed: bool = False
    """A coordinator has known this node."""
    leaving: bool = False
    """The node is done, and for a little while others may need it."""
    retiring: bool = False
    """The register is being asked to forget the job: nothing else matters any more."""
    forgotten: bool = False
    sits_out_until: float = 0.0
    read_pending: bool = False
    watching: bool = False
    unanswered: int = 0
    """How many requests in a row the register has not answered."""


def is_dead(state: ElectionState, leader: str) -> bool:
    """Whether there is proof that nothing of this node runs, and so holds or speaks, any more."""
    return bool(leader) and (leader == state.dead or leader in state.ended)


def snapshot(state: ElectionState) -> ElectionState:
    """What is known at this moment, for a journal: what comes later does not change it."""
    pending = state.pending
    return replace(state, pending=replace(pending) if pending is not None else None)


def may_speak(state: ElectionState, now: float) -> bool:
    """Whether the term still lasts. Asked when a frame is sent."""
    return state.leading is not None and now < state.written_at + state.terms.term_s


def is_needed(state: ElectionState, coordinator: CoordinatorState | None) -> bool:
    """Whether others still need this node, though it is done; it may be the coordinator."""
    if state.retiring:
        return not state.forgotten
    if coordinator is not None and is_owed(coordinator):
        return True
    # What has to be written first may never be: the register may be out of reach.
    is_unwritten = coordinator is not None and coordinator.outcome is not None
    return state.leaving and (is_unwritten or is_resigning(state))


def is_resigning(state: ElectionState) -> bool:
    if state.is_over and state.unanswered:
        return False  # It would only have been tidied up.
    return state.resigns or (state.pending is not None and state.pending.purpose == "resign")


def may_answer(state: ElectionState, all_heard: bool, now: float) -> bool:
    """Whether a heartbeat may be answered: in term, or on hold with nobody missing."""
    if may_speak(state, now):
        state.unheld_at = now
        return True
    if state.leading is None or state.leading.ledger.size == 0:
        return False
    state.mute = not (all_heard and now < state.unheld_at + state.terms.hold_s)
    return not state.mute


def gate(
    state: ElectionState, message: ToNode, all_heard: bool, now: float
) -> Literal["send", "keep", "drop"]:
    """What becomes of a frame that the coordinator wants to send: asked when it is sent.

    What may not be said now is kept until the term is renewed, and forgotten with it.
    """
    if isinstance(message, HeartbeatAnswered):
        return "send" if may_answer(state, all_heard, now) else "drop"
    return "send" if may_speak(state, now) else "keep"


def next_document(state: ElectionState, last: Document, **changes: object) -> Document:
    """The document after that one, by this node: unlike any other that was ever written."""
    state.writes += 1
    places = dict(last.places)
    if state.place is not None:
        places[state.node] = state.place
    unique = {
        "counter": last.counter + 1,
        "nonce": f"{state.node}/{state.writes}",
        "leader": state.node,
        "left": "",
        "places": places,
    }
    document = replace(last, **{**unique, **changes})
    known = (document.leader, *document.successors)
    return replace(document, places={n: p for n, p in document.places.items() if n in known})
