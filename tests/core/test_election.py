"""Who is the coordinator: the rules of `core.election`, on an imaginary register."""

from __future__ import annotations

import pytest
from msgspec import structs

from holdfast.core import election
from holdfast.core.border import (
    CoordinatorLost,
    Depose,
    Dial,
    HandOverAsked,
    KnowEnded,
    Resign,
    Retire,
    Say,
    Told,
    Write,
    Written,
)
from holdfast.core.election import (
    DialNodes,
    ElectionEffect,
    ElectionEvent,
    ElectionStarted,
    ElectionState,
    ElectionTimerFired,
    ForgetRegister,
    HoldJudged,
    Lead,
    LeaderTetherEnded,
    ReadRegister,
    RegisterForgot,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    Role,
    StepDown,
    WakeElection,
    WatchRegister,
    WriteRegister,
    is_needed,
    may_send,
    may_speak,
)
from holdfast.core.policy import sentences
from holdfast.core.policy.config import Leases
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.messages import CloseJob, HeartbeatAnswered, StopRound, Welcomed
from holdfast.core.protocol.model import Endpoint, Outcome, Term

TERMS = Leases()


class Register:
    """One document with compare-and-set; it can lose a reply."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self.token = 0

    def write(self, request: WriteRegister) -> RegisterWrote:
        done = request.token == self.token
        if done:
            self.document, self.token = request.document, self.token + 1
        return RegisterWrote(done, self.document, self.token)

    def read(self) -> RegisterRead:
        return RegisterRead(self.document, self.token)


class Node:
    """The election as one node sees it, with all its requests answered at once."""

    def __init__(self, name: str, register: Register, now: float = 0.0) -> None:
        self.state = ElectionState(name, TERMS)
        self.register = register
        self.now = now
        self.answers = True

    def take(self, event: ElectionEvent) -> list[ElectionEffect]:
        effects = election.step(self.state, event, self.now)
        for effect in list(effects):
            if not self.answers:
                continue
            if isinstance(effect, ReadRegister):
                effects += self.take(self.register.read())
            elif isinstance(effect, WriteRegister):
                effects += self.take(self.register.write(effect))
        return effects

    @property
    def leads(self) -> bool:
        return self.state.role is Role.LEADER


def welcomed(
    by: str, successors: tuple[str, ...], addresses: dict[str, Endpoint] | None = None
) -> Told:
    return Told(Welcomed(leader=by, successors=successors, addresses=addresses or {}), Term())


def of_kind(effects: list[ElectionEffect], *kinds: type) -> list[ElectionEffect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


def leader(successors: tuple[str, ...] = ("b", "c")) -> Node:
    node = Node("a", Register())
    node.take(ElectionStarted())
    node.take(Write(1, Ledger(1, 3), successors))
    assert node.leads
    return node


def follower(name: str, of: Node) -> Node:
    node = Node(name, of.register, of.now)
    assert of.register.document is not None
    node.take(welcomed("a", of.register.document.successors))
    node.take(ElectionStarted())
    return node


def test_an_empty_register_is_claimed_and_then_led() -> None:
    node = Node("a", Register())
    (lead,) = of_kind(node.take(ElectionStarted()), Lead)
    assert isinstance(lead, Lead)
    assert (lead.document.term, lead.document.leader) == (Term(1, 1), "a")
    assert not lead.holder_possible


def test_of_two_who_claim_one_wins_and_the_other_follows() -> None:
    register = Register()
    one, other = Node("a", register), Node("b", register)
    other.answers = False
    other.take(ElectionStarted())
    (claim,) = of_kind(other.take(RegisterRead(None, 0)), WriteRegister)
    one.take(ElectionStarted())
    assert isinstance(claim, WriteRegister)
    effects = other.take(register.write(claim))
    assert one.leads
    assert of_kind(effects, Lead) == []


def test_10_what_is_wanted_written_is_confirmed_after_it_is() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(Write(2, Ledger(2, 3), ())), WriteRegister)
    assert isinstance(write, WriteRegister)
    assert of_kind(node.take(node.register.write(write)), Written) == [Written(2)]


def test_10_one_write_at_a_time_and_the_newest_goes_next() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(Write(2, Ledger(2, 3), ())), WriteRegister)
    assert node.take(Write(3, Ledger(3, 3), ())) == []
    assert node.take(Write(4, Ledger(4, 3), ())) == []
    assert isinstance(write, WriteRegister)
    effects = node.take(node.register.write(write))
    (following,) = of_kind(effects, WriteRegister)
    assert isinstance(following, WriteRegister)
    assert following.document.ledger.round == 4


def test_11_a_lost_reply_to_a_write_that_was_done_is_found_out() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(Write(2, Ledger(2, 3), ())), WriteRegister)
    assert isinstance(write, WriteRegister)
    node.register.write(write)
    assert node.take(RegisterUnclear(wrote=True)) == [ReadRegister()]
    assert of_kind(node.take(node.register.read()), Written) == [Written(2)]


def test_11_a_write_that_did_not_arrive_is_tried_again_as_it_was() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(Write(2, Ledger(2, 3), ())), WriteRegister)
    node.take(RegisterUnclear(wrote=True))
    assert node.take(node.register.read()) == [write]


def test_11_a_write_that_stays_unclear_is_not_given_up_by_a_leader() -> None:
    node = leader()
    node.answers = False
    node.take(Write(2, Ledger(2, 3), ()))
    node.take(RegisterUnclear(wrote=True))
    node.take(RegisterUnclear(wrote=False))
    node.answers = True
    node.now += 1.0
    effects = node.take(ElectionTimerFired("watch"))
    assert of_kind(effects, Written) == [Written(2)]


def test_12_a_leader_speaks_only_within_its_term() -> None:
    node = leader()
    assert may_speak(node.state, 2.9)
    assert not may_speak(node.state, 3.0)
    node.now = 2.0
    node.take(ElectionTimerFired("renew"))
    assert may_speak(node.state, 4.9)


def test_12_the_term_counts_from_when_the_write_was_sent() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(ElectionTimerFired("renew")), WriteRegister)
    assert isinstance(write, WriteRegister)
    node.now = 2.5
    node.take(node.register.write(write))
    assert not may_speak(node.state, 3.0)


@pytest.mark.parametrize(("name", "at"), [("b", 4.0), ("c", 4.5)])
def test_12_successors_take_over_one_after_the_other(name: str, at: float) -> None:
    node = follower(name, leader())
    node.now = at - 0.1
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []
    node.now = at
    (lead,) = of_kind(node.take(ElectionTimerFired("watch")), Lead)
    assert isinstance(lead, Lead)
    assert lead.document.term == Term(1, 2)
    assert lead.document.ledger == Ledger(1, 3, held=True), "the silent one may hold its round"
    assert lead.holder_possible


def test_12_a_counter_that_moves_keeps_everybody_away() -> None:
    first = leader()
    node = follower("b", first)
    for at in (2.0, 5.0, 8.0):
        first.now = node.now = at
        first.take(ElectionTimerFired("renew"))
        assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []


def test_12_the_end_of_the_leader_s_tether_lets_a_successor_take_over_at_once() -> None:
    node = follower("b", leader())
    node.now = 0.1
    (lead,) = of_kind(node.take(LeaderTetherEnded("a")), Lead)
    assert isinstance(lead, Lead)
    assert not lead.holder_possible


def test_12_a_newcomer_on_the_machine_where_the_leader_ended_takes_over_at_once() -> None:
    old = leader()
    newcomer = Node("new", old.register, old.now)
    newcomer.take(ElectionStarted())
    assert not of_kind(newcomer.take(KnowEnded(("spare",))), Lead), "another one ended there"
    (lead,) = of_kind(newcomer.take(KnowEnded(("a",))), Lead)
    assert isinstance(lead, Lead)
    assert (lead.dead, lead.holder_possible) == ("a", False)


def test_12_it_does_when_it_learns_of_the_leader_only_later() -> None:
    old = leader()
    newcomer = Node("new", old.register, old.now)
    newcomer.take(KnowEnded(("a",)))
    assert of_kind(newcomer.take(ElectionStarted()), Lead)


def test_12_who_leads_meanwhile_is_left_alone() -> None:
    old = leader()
    newcomer = Node("new", old.register, old.now)
    newcomer.take(KnowEnded(("z",)))
    newcomer.take(ElectionStarted())
    assert not newcomer.leads
    assert not of_kind(old.take(KnowEnded(("a",))), StepDown), "it is not of this machine's dead"


def test_an_old_leader_that_writes_again_learns_that_it_was_replaced() -> None:
    first = leader()
    second = follower("b", first)
    second.now = 4.0
    second.take(ElectionTimerFired("watch"))
    assert second.leads
    first.now = 6.0
    effects = first.take(ElectionTimerFired("renew"))
    assert of_kind(effects, StepDown)
    assert not first.leads


def test_a_leader_that_hears_of_a_higher_term_steps_down() -> None:
    node = leader()
    node.answers = False
    assert of_kind(node.take(Depose(Term(1, 2))), StepDown)
    assert not may_speak(node.state, node.now)


def test_13_the_leader_and_its_successors_are_dialled_and_only_then_the_register_is_asked() -> None:
    node = follower("d", leader())
    addresses = {"a": Endpoint("10.0.0.1", 7), "c": Endpoint("10.0.0.3", 7)}
    node.take(welcomed("a", ("b", "c"), addresses))
    node.answers = False
    calls = [node.take(Dial()) for _ in range(2)]
    assert calls[0] == [DialNodes(("a", "b", "c"), (addresses["a"], addresses["c"]))]
    assert calls[1] == [ReadRegister()]


def heard(now: float) -> bool:
    return True


def unheard(now: float) -> bool:
    return False


def test_15_on_hold_only_heartbeats_are_answered_and_only_while_all_are_heard() -> None:
    node = leader()
    answer, stop = HeartbeatAnswered(1), StopRound(1, "x")
    for all_heard in (heard, unheard):
        assert may_send(node.state, stop, all_heard, 2.9) == "send"
        assert may_send(node.state, answer, all_heard, 2.9) == "send"
        assert may_send(node.state, stop, all_heard, 10.0) == "keep"
    assert may_send(node.state, answer, heard, 10.0) == "send"
    assert may_send(node.state, answer, unheard, 10.0) == "drop"


def test_15_a_hold_ends_after_its_time() -> None:
    node = leader()
    ends_at = TERMS.term_s + TERMS.hold_s
    assert may_send(node.state, HeartbeatAnswered(1), lambda now: True, ends_at - 0.1) == "send"
    assert may_send(node.state, HeartbeatAnswered(1), lambda now: True, ends_at) == "drop"


@pytest.mark.parametrize("allowed", [True, False])
def test_15_a_leader_that_may_not_hold_gives_its_own_node_free(allowed: bool) -> None:
    node = leader()
    node.answers = False
    node.take(ElectionTimerFired("renew"))
    node.now = 4.0
    node.take(HoldJudged(allowed))
    assert bool(of_kind(node.take(ElectionTimerFired("renew")), StepDown)) is not allowed


def test_queries_change_nothing() -> None:
    node = leader()
    before = structs.replace(node.state)
    for message in (HeartbeatAnswered(1), StopRound(1, "x")):
        may_send(node.state, message, lambda now: False, 10.0)
    may_speak(node.state, 10.0)
    is_needed(node.state, None)
    assert node.state == before


def test_16_who_resigns_names_nobody_and_sits_out() -> None:
    node = leader()
    effects = node.take(Resign("cut off"))
    assert of_kind(effects, StepDown)
    assert node.register.document is not None
    assert node.register.document.leader == ""
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []
    successor = follower("b", node)
    assert successor.leads


def test_16_it_sits_out_from_when_others_can_see_that_it_has_resigned() -> None:
    node = leader()
    node.answers = False
    (write,) = of_kind(node.take(Resign("cut off")), WriteRegister)
    assert isinstance(write, WriteRegister)
    node.now, node.answers = 30.0, True
    node.take(node.register.write(write))
    node.take(Dial())
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []
    node.now = 40.0
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead)


def test_a_job_that_is_over_is_learned_from_the_register_and_not_led_again() -> None:
    first = leader()
    over = Outcome("succeeded", "all workers succeeded", 0)
    assert first.register.document is not None
    first.register.document = structs.replace(first.register.document, ledger=Ledger(1, 3, 0, over))
    node = Node("z", first.register, now=100.0)
    assert of_kind(node.take(ElectionStarted()), Told) == [], "the leader may tell it"
    learned = Told(CloseJob(over), first.register.document.term)
    assert learned in node.take(Dial()) + node.take(Dial())
    assert not node.leads


def test_the_seat_of_a_leader_that_is_dead_goes_with_the_takeover_and_no_further() -> None:
    first = leader()
    first.take(Write(2, Ledger(1, 3, leader_seat=2), ("b", "c")))
    node = follower("b", first)
    (lead,) = of_kind(node.take(LeaderTetherEnded("a")), Lead)
    assert isinstance(lead, Lead)
    assert (lead.dead, lead.dead_seat) == ("a", 2)
    assert lead.document.ledger.leader_seat is None, "b's own seat is not known yet"


def test_the_seat_of_a_leader_that_is_only_silent_is_not_taken() -> None:
    first = leader()
    first.take(Write(2, Ledger(1, 3, leader_seat=2), ("b", "c")))
    node = follower("b", first)
    node.now = 4.0
    (lead,) = of_kind(node.take(ElectionTimerFired("watch")), Lead)
    assert isinstance(lead, Lead)
    assert (lead.dead, lead.dead_seat) == ("", None)


def test_a_leader_that_leaves_says_so_after_all_else_is_written() -> None:
    first = leader()
    first.answers = False
    (write,) = of_kind(first.take(Write(2, Ledger(2, 3, leader_seat=0), ("b",))), WriteRegister)
    assert isinstance(write, WriteRegister)
    assert first.take(Resign("its node leaves", leaves=True)) == []
    effects = first.take(first.register.write(write))
    assert of_kind(effects, Written) == [Written(2)], "what was written is still to be said"
    assert first.leads
    first.answers = True
    assert of_kind(first.take(ElectionTimerFired("resign")), StepDown)
    assert first.register.document is not None
    assert (first.register.document.leader, first.register.document.left) == ("", "a")
    node = follower("b", first)
    assert (node.leads, node.state.role is Role.LEADER) == (True, True)
    assert node.register.document is not None
    assert node.register.document.left == ""


def test_who_takes_over_from_a_leader_that_left_knows_its_seat_is_empty() -> None:
    first = leader()
    first.take(Write(2, Ledger(2, 3, leader_seat=0), ("b",)))
    first.take(Resign("its node leaves", leaves=True))
    node = Node("b", first.register, first.now)
    (lead,) = of_kind(node.take(ElectionStarted()), Lead)
    assert isinstance(lead, Lead)
    assert (lead.dead, lead.dead_seat, lead.holder_possible) == ("a", 0, False)


def test_a_register_that_saw_the_silence_itself_spares_a_newcomer_the_wait() -> None:
    register = leader(successors=()).register
    node = Node("z", register, now=0.1)
    node.answers = False
    node.take(ElectionStarted())
    node.take(Dial())
    read = structs.replace(register.read(), expired=True)
    effects = node.take(read)
    assert of_kind(effects, WriteRegister) == [], "even then one after the other"
    node.now = 3.0
    node.take(Dial())
    (claim,) = of_kind(node.take(read), WriteRegister)
    assert isinstance(claim, WriteRegister)
    assert claim.document.leader == "z"


def test_a_register_that_tells_of_changes_is_not_asked_again_and_again() -> None:
    node = Node("b", leader().register)
    node.state.can_watch = True
    effects = node.take(welcomed("a", ("b",)))
    effects += node.take(ElectionStarted())
    assert of_kind(effects, WatchRegister) == [WatchRegister(True)]
    wakes = of_kind(effects, WakeElection)
    assert wakes[-1] == WakeElection("watch", TERMS.takeover_s)
    assert of_kind(node.take(welcomed("a", ("c",))), WatchRegister) == [WatchRegister(False)]


def test_a_watch_that_broke_off_is_begun_again() -> None:
    node = Node("b", leader().register)
    node.state.can_watch = True
    node.take(welcomed("a", ("b",)))
    node.take(RegisterUnclear(False, reason="the server went"))
    effects = node.take(ElectionTimerFired("watch"))
    assert of_kind(effects, WatchRegister) == [WatchRegister(True)]


def emptied(of: Node) -> Register:
    of.register.document, of.register.token = None, 0
    return of.register


def test_a_register_that_was_emptied_is_written_again_by_its_leader() -> None:
    first = leader()
    register = emptied(first)
    effects = first.take(ElectionTimerFired("renew"))
    assert of_kind(effects, StepDown) == []
    assert first.leads
    assert register.document is not None
    assert (register.document.leader, register.document.ledger) == ("a", Ledger(1, 3))


def test_others_claim_an_emptied_register_above_what_they_saw_and_not_before_it_is_time() -> None:
    first = leader()
    node = follower("b", first)
    emptied(first)
    node.now = 1.0
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []
    node.now = 5.0
    (lead,) = of_kind(node.take(ElectionTimerFired("watch")), Lead)
    assert isinstance(lead, Lead)
    assert lead.document.term == Term(1, 2)
    assert lead.document.ledger == Ledger(1, 3, held=True)
    assert lead.holder_possible


def test_an_emptied_register_that_was_out_of_reach_since_may_have_held_a_claim() -> None:
    first = leader()
    node = follower("b", first)
    emptied(first)
    node.now = 1.0
    node.take(ElectionTimerFired("watch"))
    node.now = 4.0
    node.take(RegisterUnclear(wrote=False))
    node.now = 6.0
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead) == []
    node.now = 10.0
    assert of_kind(node.take(ElectionTimerFired("watch")), Lead)


def test_who_was_outranked_claims_above_that_the_next_time() -> None:
    node = leader(successors=())
    node.answers = False
    node.take(Depose(Term(9, 4)))
    node.answers = True
    effects: list[ElectionEffect] = []
    for at in (1.0, 20.0, 30.0):  # It is seen to stand still, then it is time.
        node.now = at
        node.take(RegisterUnclear(False))
        effects += node.take(Dial())
    (lead,) = of_kind(effects, Lead)
    assert isinstance(lead, Lead)
    assert lead.document.term == Term(9, 5)


def test_a_register_out_of_reach_is_spoken_of_once_and_when_it_is_back() -> None:
    node = leader()
    node.answers = False
    said = []
    for _ in range(4):
        said += of_kind(node.take(RegisterUnclear(False, reason="nobody answers")), Say)
    assert said == [Say(sentences.register_unreachable("nobody answers", 60.0))]
    back = of_kind(node.take(node.register.read()), Say)
    assert back == [Say(sentences.REGISTER_ANSWERS)]


def test_who_seeks_a_coordinator_hears_why_there_is_none() -> None:
    node = Node("a", Register())
    node.answers = False
    node.take(Dial())
    effects = node.take(RegisterUnclear(False, reason="wrong password", refused=True))
    why = "the register cannot be reached: wrong password"
    assert of_kind(effects, CoordinatorLost) == [CoordinatorLost(why, permanent=True)]


def test_a_register_that_cannot_forget_is_left_for_the_next_job_of_its_name() -> None:
    first = leader()
    over = Outcome("succeeded", "all workers succeeded", 0)
    first.take(Write(2, Ledger(1, 3, 0, over), ("b",)))
    first.take(Retire())
    node = Node("z", first.register, now=100.0)
    node.take(ElectionStarted())
    node.now = 110.0
    (lead,) = of_kind(node.take(Dial()) + node.take(Dial()), Lead)
    assert isinstance(lead, Lead)
    assert lead.document.term > Term(1, 1)
    assert lead.document.ledger == Ledger()


def test_a_register_that_can_forget_is_asked_to_and_the_node_is_needed_until_then() -> None:
    first = leader()
    first.state.can_forget = True
    assert of_kind(first.take(Retire()), ForgetRegister) == [ForgetRegister(60.0)]
    assert is_needed(first.state, None)
    assert first.take(ElectionTimerFired("renew")) == [], "nothing else matters any more"
    first.take(RegisterForgot())
    assert not is_needed(first.state, None)


def test_a_node_that_leaves_is_needed_until_its_place_is_given_away_or_it_has_waited() -> None:
    first = leader()
    assert not is_needed(first.state, None)
    first.answers = False
    first.take(HandOverAsked())
    first.take(Resign("its node leaves", leaves=True))
    assert is_needed(first.state, None), "the register has not answered"
    first.take(ElectionTimerFired("leave"))
    assert not is_needed(first.state, None)


def test_the_possibility_of_a_hold_outlives_the_one_who_took_over() -> None:
    first = leader()
    second = follower("b", first)
    second.now = 4.0
    assert of_kind(second.take(ElectionTimerFired("watch")), Lead)
    third = Node("c", first.register, now=4.1)
    third.take(welcomed("b", ("c",)))
    third.take(ElectionStarted())
    third.state.successors = ("c",)
    (lead,) = of_kind(third.take(LeaderTetherEnded("b")), Lead)
    assert isinstance(lead, Lead)
    assert lead.holder_possible, "that b is dead says nothing of a"


def test_a_claim_that_took_long_to_get_through_is_renewed_before_anything_is_said() -> None:
    node = Node("a", Register())
    node.answers = False
    node.take(ElectionStarted())
    (claim,) = of_kind(node.take(node.register.read()), WriteRegister)
    assert isinstance(claim, WriteRegister)
    node.now = 40.0
    effects = node.take(node.register.write(claim))
    assert of_kind(effects, Lead) == []
    (renewal,) = of_kind(effects, WriteRegister)
    assert isinstance(renewal, WriteRegister)
    assert of_kind(node.take(node.register.write(renewal)), Lead)
    assert may_speak(node.state, 42.9)
