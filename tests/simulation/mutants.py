"""Bugs, planted one at a time into the core: what each breaks, where it goes, what shows it.

A mutant replaces a piece of one function's source; the function's code is exchanged in place, so
that everybody who holds the function runs the mutated one. If the piece is not there any more,
the mutant does not apply, and has to be written anew.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    rule: str
    """Of the design: §3 forming, §4 leases and fencing, §5 the coordinator, §6 restarts."""
    target: str
    """module:function, or module:Class.method."""
    old: str
    new: str
    profile: str
    seeds: tuple[int, ...]
    """The first seed of the profile that shows it."""
    also: tuple[tuple[str, str, str], ...] = ()
    """Further places, where one rule is kept by two."""


def _function(target: str) -> FunctionType:
    module_name, _, path = target.partition(":")
    found: object = importlib.import_module(f"holdfast.core.{module_name}")
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{target} is not a function"
    return found


def _mutated(target: str, old: str, new: str) -> tuple[FunctionType, CodeType]:
    function = _function(target)
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    assert old in source, f"{target} has changed: {old!r} is not in it"
    namespace: dict[str, object] = {}
    mutated = "from __future__ import annotations\n" + source.replace(old, new, 1)
    exec(compile(mutated, function.__code__.co_filename, "exec"), function.__globals__, namespace)
    replacement = namespace[function.__name__]
    assert isinstance(replacement, FunctionType)
    return function, replacement.__code__


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The core with the bug in it."""
    places = ((mutant.target, mutant.old, mutant.new), *mutant.also)
    exchanged = [_mutated(*place) for place in places]
    originals = [(function, function.__code__) for function, _ in exchanged]
    for function, code in exchanged:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in originals:
            function.__code__ = code


MUTANTS = (
    # §3: forming a round.
    Mutant(
        "a round forms while a member is neither back nor gone",
        "§3.2",
        "coordinator_ending:settle_round",
        "not current.is_over",
        "not (current.back or current.gone)",
        "mixed",
        (),
    ),
    Mutant(
        "the seat of a slow survivor goes to a spare",
        "§3.2",
        "coordinator_ending:settle_round",
        "not current.is_over",
        "len(current.back) + len(current.gone) < state.config.min_nodes",
        "slow",
        (),
    ),
    Mutant(
        "the surplus gets a seat too",
        "§3.4",
        "rounds:decide",
        "return Form(view.maximum)",
        "return Form(view.candidates)",
        "slow",
        (),
    ),
    Mutant(
        "a surplus node fails the job",
        "§3.4",
        "rounds:decide",
        "    if view.candidates >= view.maximum:\n",
        "    if view.candidates > view.maximum:\n        return Fail('too many nodes')\n"
        "    if view.candidates >= view.maximum:\n",
        "slow",
        (),
    ),
    Mutant(
        "arrivals start the wait for too few nodes again",
        "§3.5",
        "coordinator_forming:_count",
        "if state.short_since is None:",
        "if True:",
        "shortage",
        (),
    ),
    Mutant(
        "too few nodes are enough",
        "§3.5",
        "rounds:decide",
        "view.candidates < view.minimum",
        "view.candidates < 1",
        "shortage",
        (),
    ),
    Mutant(
        "the last call is waited for on every restart",
        "§3.6",
        "rounds:decide",
        "if view.first_round:",
        "if True:",
        "one failure",
        (),
    ),
    Mutant(
        "a newcomer ends the round at once",
        "§3.7",
        "rounds:make_room",
        "view.newcomer_since + view.timeouts.scale_up_delay_s",
        "view.newcomer_since",
        "growth",
        (),
    ),
    Mutant(
        "a newcomer ends a round that has just begun",
        "§3.7",
        "rounds:make_room",
        "view.started_at + wait_s",
        "view.started_at",
        "growth",
        (),
    ),
    Mutant(
        "newcomers are never taken in",
        "§3.7",
        "rounds:make_room",
        "if view.closing or",
        "if True or",
        "growth",
        (),
    ),
    Mutant(
        "a round number is used again",
        "§3",
        "coordinator_forming:_prepare",
        "state.round_number += 1",
        "state.round_number = max(state.round_number, 1)",
        "one failure",
        (),
    ),
    Mutant(
        "rank 0 of the next round is anybody",
        "§3",
        "coordinator_forming:_in_order",
        "return (*state.former, *(name for _, _, name in sorted(others)))",
        "return ()",
        "growth",
        (),
    ),
    Mutant(
        "a node that leaves closes the job",
        "§3",
        "coordinator_ending:left",
        "    return _without(",
        "    return close(state, Outcome('failed', message.reason, 1))\n    return _without(",
        "drains",
        (),
    ),
    Mutant(
        "a lost node closes the job",
        "§3",
        "coordinator_ending:gone",
        "    return [Disconnect(node), *lost]",
        "    return close(state, Outcome('failed', reason, 1))",
        "deaths",
        (),
    ),
    # §4: leases, loss and fencing.
    Mutant(
        "nobody holds the deadline of the lease",
        "§4.1",
        "agent_contact:hold",
        "return [HoldLease(state.lease.stop_at, state.lease.kill_at)]",
        "return []",
        "network",
        (),
    ),
    Mutant(
        "a node whose lease ran out goes on as if nothing had happened",
        "§4.4",
        "agent:_lease_ran_out",
        "if state.phase is not Phase.RUNNING:",
        "if True:",
        "network",
        (),
    ),
    Mutant(
        "a suspicion is taken for death",
        "§4.5",
        "leases:LeaseBook._judge",
        "now >= watch.heard_at + self.terms.gone_after_s",
        "now >= watch.heard_at + self.terms.suspect_s",
        "network",
        (),
    ),
    Mutant(
        "a suspicion does not end the round",
        "§4.5",
        "coordinator_ending:suspected",
        "    current = state.round\n",
        "    return []\n",
        "network",
        (),
    ),
    Mutant(
        "a broken connection is taken for death",
        "§4.6",
        "desk:disconnected",
        "desk.book.disconnected(node, now)",
        "desk.book.tether_ended(node, now)",
        "network",
        (),
    ),
    Mutant(
        "the coordinator's own stall expires nodes",
        "§4.7",
        "leases:LeaseBook.check",
        "if stalled_s > self.terms.tether_s:",
        "if False:",
        "sleep",
        (),
    ),
    Mutant(
        "the coordinator's own stall lets deadlines pass",
        "§4.7",
        "coordinator:_extend",
        "if late_s <= state.config.leases.tether_s:",
        "if True:",
        "sleep",
        (),
    ),
    # §5: the coordinator's own death.
    Mutant(
        "a round is announced before it is written",
        "§5.10",
        "coordinator_forming:_prepare",
        "    return []",
        "    return written(state, state.version, now)",
        "one failure",
        (),
    ),
    Mutant(
        "the end is announced before it is written",
        "§5.10",
        "coordinator_ending:close",
        "    return []",
        "    state.outcome_told = True\n"
        "    from holdfast.core.messages import CloseJob\n"
        "    return [Tell(name, CloseJob(outcome)) for name in sorted(state.unaware)]",
        "one failure",
        (),
    ),
    Mutant(
        "an unclear write is taken for done",
        "§5.11",
        "leadership:_unclear",
        "    state.pending.unclear = True\n    return _read(state)",
        "    return _succeeded(state, state.pending, state.token + 1, now)",
        "register",
        (),
    ),
    Mutant(
        "an unclear write is taken for failed",
        "§5.11",
        "leadership:_unclear",
        "    state.pending.unclear = True\n    return _read(state)",
        "    return _failed(state, state.pending, state.seen, state.token, now)",
        "register",
        (),
    ),
    Mutant(
        "the tenure counts from the reply",
        "§5.12",
        "leadership:_succeeded",
        "max(state.written_at, pending.sent_at)",
        "now",
        "register",
        (),
    ),
    Mutant(
        "the leader speaks on after its tenure",
        "§5.12",
        "leadership:may_speak",
        "and now < state.written_at + state.terms.tenure_s",
        "",
        "leader",
        (),
    ),
    Mutant(
        "others take over too early",
        "§5.12",
        "leadership:_claim_in_turn",
        "since + state.terms.takeover_s",
        "since + 0.3 * state.terms.takeover_s",
        "register",
        (),
    ),
    Mutant(
        "a claim goes on under the same epoch",
        "§5.12",
        "leadership:_claim",
        "last.epoch + 1 if",
        "last.epoch if",
        "leader",
        (),
    ),
    Mutant(
        "nobody asks the register who leads",
        "§5.13",
        "leadership:_whom_to_dial",
        "    state.calling = True\n    return _read(state)",
        "    return []",
        "leader",
        (),
    ),
    Mutant(
        "a new leader forms before all have reported",
        "§5.14",
        "coordinator:take_over",
        "if written.size and written.outcome is None:",
        "if False:",
        "leader",
        (),
    ),
    Mutant(
        "a new leader forgets the charges",
        "§5.14",
        "coordinator:take_over",
        "state.charges = state.restart_count = written.charges",
        "state.charges = state.restart_count = 0",
        "mixed",
        (),
    ),
    Mutant(
        "leases are held although a member is silent",
        "§5.15",
        "leadership:may_answer",
        "return all_heard and now",
        "return now",
        "register",
        (),
    ),
    Mutant(
        "leases are held for ever",
        "§5.15",
        "leadership:may_answer",
        "return all_heard and now < state.unheld_at + state.terms.hold_s",
        "return all_heard",
        "register",
        (),
    ),
    Mutant(
        "a leader that resigned takes part in the next election",
        "§5.16",
        "leadership:_resign",
        "state.sits_out_until = now + 2 * state.terms.takeover_s",
        "state.sits_out_until = 0.0",
        "leader",
        (),
    ),
    Mutant(
        "a host without its record does not ask what nodes have seen",
        "§5, embedded",
        "coordinator:_inherit",
        "    effects: list[CoordinatorEffect] = []\n",
        "    return []\n",
        "embedded",
        (),
    ),
    # §6: restarts.
    Mutant(
        "the victims of a lost node are charged",
        "§6",
        "coordinator_ending:_judge",
        " and not _lost(ended)",
        "",
        "deaths",
        (),
    ),
    Mutant(
        "failures are not charged",
        "§6",
        "coordinator_ending:_charge",
        "state.charges += 1",
        "pass",
        "one failure",
        (),
    ),
    Mutant(
        "the budget is one restart larger than it is",
        "§6",
        "restarts:decide",
        "counted > policy.max_restarts",
        "counted > policy.max_restarts + 1",
        "workers",
        (),
    ),
    Mutant(
        "every ending that comes with a failure is charged",
        "§6",
        "coordinator_ending:_judge",
        'ended.ending == "failure" and cause is not None and not _lost(ended)',
        "cause is not None",
        "mixed",
        (),
    ),
    Mutant(
        "a node says that it has stopped before its workers have",
        "§3.3",
        "agent:_stop_round",
        "return [said, *stop_workers",
        "early = Report(RoundStopped(message.round, (), state.assignment.master))\n"
        "    return [said, early, *stop_workers",
        "slow",
        (),
    ),
    Mutant(
        "a hung import holds the job up",
        "§3.3",
        "agent:_timer",
        "if name == PRELOAD_TIMER and preparing:",
        "if False:",
        "one failure",
        (),
    ),
    Mutant(
        "the loss of a node that has finished is a loss",
        "§3",
        "coordinator_ending:_without",
        "if node in current.succeeded:",
        "if False:",
        "endings",
        (),
    ),
    Mutant(
        "the lease counts from the reply",
        "§4.1",
        "agent_contact:answered",
        "    return hold(state) if alive(state) else []",
        "    late_s = max(state.lease.sent.values(), default=state.lease.good_from)\n"
        "    state.lease.good_from = late_s + state.config.leases.heartbeat_s\n"
        "    return hold(state) if alive(state) else []",
        "network",
        (),
    ),
    Mutant(
        "the lease lasts longer than was agreed",
        "§4.1",
        "leases:NodeLease.kill_at",
        "self.good_from + self.terms.lease_s",
        "self.good_from + 1.5 * self.terms.lease_s",
        "network",
        (),
    ),
    Mutant(
        "an older coordinator is obeyed",
        "§4.2",
        "agent_contact:heed",
        "if tenure < state.tenure:",
        "if False:",
        "leader",
        (),
        (
            (
                "coordinator:_greeted",
                "if message.seen.tenure > state.tenure and not state.embedded:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "a word about an older round counts for the current one",
        "§4.3",
        "coordinator_state:current_round",
        "state.round is not None and state.round.number == number",
        "state.round is not None",
        "mixed",
        (),
    ),
    Mutant(
        "a round is started without a lease, and nobody minds",
        "§4.3",
        "agent:_run",
        "not state.lease.good(now)",
        "False",
        "leader",
        (),
        (
            (
                "leases:NodeLease.kill_at",
                "0.0 if self.good_from is None else",
                "1e9 if self.good_from is None else",
            ),
            (
                "desk:receive",
                "        effects = _heartbeat(desk, node, Heartbeat(message.heartbeat), now)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a new leader forgets the last round",
        "§5.14",
        "coordinator:take_over",
        "    state.version = 1\n",
        "    state.version = 1\n    written = Ledger(0, 0, written.charges, written.outcome)\n",
        "leader",
        (),
    ),
)
