"""Who is the coordinator, where nodes find and replace each other through a register.

A register is one document with compare-and-set: `read() -> (document, token)` and
`write(document, token) -> (document, token, has_set)`. Some can do more: tell of every change
by themselves, or know that the last writer has fallen silent. This machine runs on every node.

Rules
9.  The document is small; at rest only the leader writes, and only successors read.
10. Write before word: what the coordinator wants written is confirmed to it only after its
    compare-and-set succeeded.
11. An unclear result is *unknown*: the very same write is tried again, and read, until our own
    nonce or somebody else's later write shows; nothing is confirmed before. Reads may be stale:
    every decision rests on a compare-and-set that succeeded.
12. A term ends `term_s` after *sending* the last write that succeeded; beyond it the leader
    says nothing (`may_speak`, asked when a frame is sent). Others may take over `takeover_s`
    after they last saw the counter move, by compare-and-set on the very token they saw:
    successors one after the other, anyone else later. The end of the leader's tether proves it
    dead: a successor takes over at once. So does, in nobody's turn, a node on whose machine the
    leader was, where the machine proves that it has ended (`core.policy.liveness_locks`).
13. A node that lost the leader dials it and the successors, and asks the register only then.
15. Register out of reach: *hold*. Heartbeats of the running round are still answered while all
    its members are heard, for `hold_s` after the last answer that needed no hold. Nothing else.
16. A leader that resigns gives the place away and sits out one election.

Why 12 is safe: the leader counts from when it sent, the others from when they saw, which is
later; and term_s(1+d) < takeover_s, so the old term is over before a new one can begin.

A register that lost its content (a store that was restarted empty) is written again by the leader
within its term: nobody else can have taken its place. Others wait for that as for any sign of
life, and then claim from what they saw last, above every term that they know of. They wait anew
where it was out of reach since: it may have held somebody's claim and lost its content again.
Whoever never saw anything begins a new instance, which is above every older one.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.election.claiming import claim_in_turn, watch
from holdfast.core.election.io import (
    Announce,
    Confirm,
    DialNodes,
    DialWanted,
    ElectionEffect,
    ElectionEvent,
    ElectionStarted,
    ElectionTimerFired,
    ForgetRegister,
    Lead,
    LeaderTetherEnded,
    LearnOutcome,
    LedgerWanted,
    NobodyFound,
    NodeLeaves,
    NodesEnded,
    OutcomeKnown,
    Outranked,
    Pointed,
    ReadRegister,
    RegisterForgot,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    ResignationWanted,
    StepDown,
    WakeElection,
    WriteRegister,
)
from holdfast.core.election.state import (
    FORGOTTEN_AFTER_S,
    LEAVE_TIMER,
    RENEW_TIMER,
    RESIGN_TIMER,
    WATCH_TIMER,
    WORTH_SAYING,
    ElectionState,
    PendingWrite,
    is_dead,
    may_speak,
    next_document,
)
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.naming import host_of

AGAIN = "use another --rdzv-id, or try again in a minute"


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
            return _in_reach(state) + _saw(
                state, event.document, event.token, now, expired=event.expired
            )
        case RegisterWrote():
            return _in_reach(state) + _wrote(state, event, now)
        case ElectionTimerFired():
            return _timer(state, event.name, now)
        case ElectionStarted():
            return _read(state)
        case RegisterUnclear():
            return _unclear(state, event, now)
        case LedgerWanted():
            # What a coordinator wanted whose term is over must not be written in the next one.
            state.wanted = event if state.leading is not None else None
            return _write_next(state, now)
        case LeaderTetherEnded():
            return _leader_died(state, event.leader, now)
        case NodesEnded():
            state.ended |= set(event.nodes)
            return _looks_again(state, now)
        case DialWanted():
            return _whom_to_dial(state, now)
        case Pointed():
            state.leader, state.successors = event.leader, event.successors
            state.places = event.places
            state.above = max(state.above, event.term)
            state.calling = state.tried = False
            state.welcomed = True
            return watch(state, now)
        case Outranked():
            state.above = max(state.above, event.term)
            return _step_down(state, "another coordinator leads by now")
        case ResignationWanted():
            state.leaves = event.leaves
            return _resign(state, now)
        case NodeLeaves():
            state.leaving = True
            return [WakeElection(LEAVE_TIMER, state.resign_s)]
        case OutcomeKnown():
            return _retire(state, now)
        case RegisterForgot():
            return []


# Reading.


def _read(state: ElectionState) -> list[ElectionEffect]:
    if state.read_pending:
        return []
    state.read_pending = True
    return [ReadRegister()]


def _saw(
    state: ElectionState,
    document: Document | None,
    token: int,
    now: float,
    *,
    expired: bool = False,
) -> list[ElectionEffect]:
    """Take in what the register holds; `expired` if it has itself seen the writer's silence."""
    if state.pending is not None:
        # While an answer may still come, it alone tells: what was read may be older.
        return _resolve(state, document, token, now) if state.pending.unclear else []
    if state.leading is not None:
        return _check_own(state, document)
    if state.moved_at is None or token != state.token:
        state.moved_at = now
    if expired:
        state.moved_at = min(state.moved_at, now - state.terms.takeover_s)
    lost = document is None and state.seen is not None
    state.seen = document = document or state.seen
    state.token = token
    if document is None:
        return claim_in_turn(state, now, free=True)
    if document.ledger.outcome is not None:
        # Whoever has a coordinator hears it from there, in full: what is written down is short.
        return _learn(state, document, now) if state.calling else []
    # Whoever watches sees a new leader before it misses the old one.
    term = document.term
    replaced = term > state.above and state.leader not in ("", document.leader)
    state.above = max(state.above, term)
    state.leader, state.successors = document.leader, document.successors
    state.places = document.places
    # A register that lost its content tells nothing of whoever leads by now.
    free = (not document.leader or is_dead(state, document.leader)) and not lost
    effects = claim_in_turn(state, now, free=free)
    if effects:
        return effects
    if (state.calling or (replaced and document.leader)) and _candidates(state):
        return [*_call(state), *watch(state, now)]
    return watch(state, now)


def _learn(state: ElectionState, document: Document, now: float) -> list[ElectionEffect]:
    """The job is over; whoever wrote that may be dead, and cannot tidy up."""
    assert document.ledger.outcome is not None, "it is not over"
    learn = LearnOutcome(document.ledger.outcome, document.term)
    if state.welcomed:
        return [learn, *_retire(state, now)]
    return [Announce(f"this job has already finished, before this node came; {AGAIN}"), learn]


def _check_own(state: ElectionState, document: Document | None) -> list[ElectionEffect]:
    if document is None or state.leading is None or document.term <= state.leading.term:
        return []
    return _step_down(state, f"{host_of(document.leader) or 'somebody'} has taken over")


# Whether it can be reached.


def _in_reach(state: ElectionState) -> list[ElectionEffect]:
    unanswered, state.unanswered = state.unanswered, 0
    return [Announce("the register answers again")] if unanswered >= WORTH_SAYING else []


def _out_of_reach(state: ElectionState, event: RegisterUnclear) -> list[ElectionEffect]:
    """Say so once; somebody who looks for a coordinator has to try again later."""
    effects: list[ElectionEffect] = []
    text = f"the register cannot be reached: {event.reason or 'no answer came'}"
    state.unanswered += 1
    if state.calling:
        effects.append(NobodyFound(text, event.refused and state.moved_at is None))
    # Whoever has only begun to look says so anyhow, with the reason.
    is_new_here = state.calling and state.seen is None
    if state.unanswered == WORTH_SAYING and not is_new_here:
        holds = f"; a round that runs goes on for at most {state.terms.hold_s:g} s"
        effects.append(Announce(text + holds if state.leading is not None else text))
    return effects


def _timer(state: ElectionState, name: str, now: float) -> list[ElectionEffect]:
    if name == RENEW_TIMER and state.mute and state.pending and not may_speak(state, now):
        # Its own node, too, has to look for whoever may lead by now.
        return _step_down(state, "its register was out of reach for too long")
    if name == RENEW_TIMER and state.leading is not None:
        return [*_write_next(state, now, renew=True), _renew_later(state)]
    if name == RESIGN_TIMER:
        return _resign(state, now)
    if name == LEAVE_TIMER:
        state.leaving = False
    if name == WATCH_TIMER and state.pending is not None and state.pending.unclear:
        return _read(state)
    if name == WATCH_TIMER and state.leading is None and state.pending is None:
        return _read(state)
    return []


def _renew_later(state: ElectionState) -> WakeElection:
    return WakeElection(RENEW_TIMER, state.terms.term_s / 3)


def _looks_again(state: ElectionState, now: float) -> list[ElectionEffect]:
    """The leader of which the register tells may have been on this machine."""
    idle = state.leading is None and state.pending is None
    if not idle or state.seen is None or state.seen.leader not in state.ended:
        return []
    return claim_in_turn(state, now, free=True)


def _leader_died(state: ElectionState, leader: str, now: float) -> list[ElectionEffect]:
    """Proof, not suspicion: there is nobody who could still speak or hold."""
    state.dead = leader
    if state.node not in state.successors:
        return []  # There may be thousands of us: rule 13.
    if state.leading is not None or state.pending is not None or state.seen is None:
        return _read(state)
    if state.seen.leader != leader:
        return _read(state)
    return claim_in_turn(state, now, free=True)


# Writing.


def _write_next(state: ElectionState, now: float, *, renew: bool = False) -> list[ElectionEffect]:
    """One write at a time; what is wanted meanwhile goes with the next."""
    if state.leading is None or state.pending is not None:
        return []
    if state.wanted is None and not renew:
        return []
    last, wanted = state.leading, state.wanted
    changes: dict[str, object] = {}
    if wanted is not None:
        places = {state.node: state.place} if state.place is not None else {}
        changes = {"successors": wanted.successors, "ledger": wanted.ledger}
        changes["places"] = {**wanted.places, **places}
    document = next_document(state, last, **changes)
    version = wanted.version if wanted else 0
    state.wanted = None
    state.pending = PendingWrite("renew", document, state.token, now, version)
    return [WriteRegister(document, state.token)]


def _answers(nonce: str, pending: PendingWrite) -> bool:
    """Whether this is the answer to that write; nobody says so where only one can be under way."""
    return nonce in ("", pending.document.nonce)


def _wrote(state: ElectionState, event: RegisterWrote, now: float) -> list[ElectionEffect]:
    if state.pending is None or not _answers(event.nonce, state.pending):
        return []
    if event.has_set:
        return _succeeded(state, state.pending, event.token, now)
    return _resolve(state, event.document, event.token, now, certain=True)


def _unclear(state: ElectionState, event: RegisterUnclear, now: float) -> list[ElectionEffect]:
    effects = _out_of_reach(state, event)
    if not event.wrote:
        state.read_pending = state.watching = False
        return [*effects, WakeElection(WATCH_TIMER, state.terms.term_s / 3)]
    if state.pending is None or not _answers(event.nonce, state.pending):
        return effects
    state.pending.unclear = True
    return effects + _read(state)


def _resolve(
    state: ElectionState,
    document: Document | None,
    token: int,
    now: float,
    *,
    certain: bool = False,
) -> list[ElectionEffect]:
    """The fate of our write, from what is there now."""
    pending = state.pending
    assert pending is not None, "nothing was written"
    if document is not None and document.nonce == pending.document.nonce:
        return _succeeded(state, pending, token, now)
    if document is None and certain and may_speak(state, now):
        pending.token = token
        return _retry(state)  # All is lost, and nobody can have taken our place: write it again.
    if (document is None or token == pending.token) and not certain:
        return _retry(state)  # Not there (yet): the same write again can only succeed once.
    if document is not None and document.counter < pending.document.counter and not certain:
        return _retry(state)  # A stale answer.
    return _failed(state, pending, document, token, now)


def _retry(state: ElectionState) -> list[ElectionEffect]:
    assert state.pending is not None, "nothing was written"
    state.pending.unclear = False
    return [WriteRegister(state.pending.document, state.pending.token)]


def _succeeded(
    state: ElectionState, pending: PendingWrite, token: int, now: float
) -> list[ElectionEffect]:
    state.pending, state.token = None, token
    state.seen, state.moved_at = pending.document, now
    if pending.purpose == "claim" and now >= pending.sent_at + state.terms.term_s * 2 / 3:
        # It took so long to get through that hardly any term is left to begin with.
        state.pending = replace(
            pending, document=next_document(state, pending.document), token=token, sent_at=now
        )
        return [WriteRegister(state.pending.document, token)]
    if pending.purpose == "resign":
        state.leading = None
        _sit_out(state, now)  # From now on others can see it.
        return []
    state.written_at, state.mute = max(state.written_at, pending.sent_at), False
    if pending.purpose == "claim":
        state.leading, state.leader = pending.document, state.node
        state.calling = state.tried = False
        state.unheld_at = pending.sent_at
        possible, dead, seat = pending.holder_possible, pending.dead, pending.dead_seat
        lead = Lead(pending.document, possible, dead, seat)
        return [lead, *watch(state, now), _renew_later(state)]
    if state.leading is None:
        return []
    state.leading = pending.document
    effects: list[ElectionEffect] = [Confirm(pending.version)]
    effects += _write_next(state, now)
    if state.resigns and state.pending is None:
        # Only after what this write was for has been said.
        effects.append(WakeElection(RESIGN_TIMER, 0.0))
    return effects


def _failed(
    state: ElectionState,
    pending: PendingWrite,
    document: Document | None,
    token: int,
    now: float,
) -> list[ElectionEffect]:
    """Somebody else wrote: their word stands."""
    state.pending = None
    effects: list[ElectionEffect] = []
    if state.leading is not None:
        effects = _step_down(state, "another coordinator has taken over")
    return effects + _saw(state, document, token, now)


# The end of a term.


def _step_down(state: ElectionState, reason: str) -> list[ElectionEffect]:
    if state.leading is None:
        return []
    state.successors, state.places = state.leading.successors, state.leading.places
    state.leading = state.pending = state.wanted = None
    state.mute = False
    state.leader, state.resigns = "", False
    return [StepDown(reason), *_read(state)]


def _resign(state: ElectionState, now: float) -> list[ElectionEffect]:
    """Give the place away: the document names no leader, and we do not ask for it at once."""
    if state.leading is None:
        return []
    if state.pending is not None or state.wanted is not None:
        state.resigns = True  # As soon as all is written that has to be.
        return _write_next(state, now)
    ledger, left = state.leading.ledger, state.node if state.leaves else ""
    if not left:
        ledger = replace(ledger, leader_seat=None)
    document = next_document(state, state.leading, leader="", ledger=ledger, left=left)
    if state.is_over:
        document = replace(
            document, instance=document.instance + 1, epoch=0, successors=(), ledger=Ledger()
        )
    state.pending = PendingWrite("resign", document, state.token, now)
    state.leading, state.wanted, state.resigns = None, None, False
    _sit_out(state, now)
    return [StepDown("it has resigned"), WriteRegister(document, state.token)]


def _sit_out(state: ElectionState, now: float) -> None:
    state.sits_out_until = now + 2 * state.terms.takeover_s


def _retire(state: ElectionState, now: float) -> list[ElectionEffect]:
    """The register may forget the job after a while; one that cannot is left as if new."""
    if state.can_forget:
        state.retiring = True
        return [ForgetRegister(FORGOTTEN_AFTER_S)]
    state.leaves, state.is_over = False, True
    return _resign(state, now)


def _whom_to_dial(state: ElectionState, now: float) -> list[ElectionEffect]:
    """The leader and its successors, the register only then."""
    if state.leading is not None:
        return [DialNodes((state.node,))]
    if not state.tried and _candidates(state):
        return _call(state)
    state.tried, state.calling = False, True
    return _read(state)


def _candidates(state: ElectionState) -> tuple[str, ...]:
    known = dict.fromkeys(name for name in (state.leader, *state.successors) if name)
    return tuple(name for name in known if name != state.node and not is_dead(state, name))


def _call(state: ElectionState) -> list[ElectionEffect]:
    state.calling, state.tried = False, True
    nodes = _candidates(state)
    places = [state.places[name] for name in nodes if name in state.places]
    return [DialNodes(nodes, tuple(places))]
