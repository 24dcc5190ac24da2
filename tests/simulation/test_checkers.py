"""Each checker sees a doctored history for what it is, and has nothing to say about a good one."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest
from msgspec.structs import replace
from tools.simulator import Fault, make_plan, simulate
from tools.simulator.checkers import CHECKERS, check
from tools.simulator.facts import (
    AgentBegan,
    AgentDied,
    AgentFinished,
    CoreRaised,
    Delivered,
    EndedForHang,
    Fact,
    FaultStruck,
    FirstWord,
    HangDecided,
    Late,
    LeaderEnded,
    LeaseRenewed,
    NodeDeclaredGone,
    NodeStalled,
    Recorded,
    RoundEnding,
    RoundFormed,
    Spoke,
    StartedBeforeReaped,
    SteppedDown,
    WorkerBegan,
    WorkerEnded,
    WorkerReleased,
    WorkerSaved,
)
from tools.simulator.plan import HostPlan, Plan, RegisterPlan

from holdfast.core.policy.config import Leases
from holdfast.core.protocol.document import Document, HostKept, Ledger, roll
from holdfast.core.protocol.messages import CloseJob, HeartbeatAnswered, RunRound
from holdfast.core.protocol.model import Assignment, Endpoint, Outcome, Ranks, Term

A, B = "host0-1", "host1-1"
FIRST = Term(1, 1)
SUCCESS = Outcome("succeeded", "all workers succeeded", 0)


def plan(**changes: object) -> Plan:
    """Two hosts with one worker each, without faults, under a shared register."""
    seed = next(s for s in range(1000) if not make_plan(s, "one failure").embedded)
    base = replace(make_plan(seed, "one failure"), register=RegisterPlan("forgetful"))
    config = replace(base.config, min_nodes=1, max_nodes=2, leases=Leases())
    hosts = (HostPlan(), HostPlan())
    return replace(base, config=config, hosts=hosts, faults=(), **changes)


def told(node: str, rank: int, *, at: float = 1.0, round: int = 1, size: int = 2) -> Delivered:
    worker = (Ranks(0, rank, rank),)
    master = Endpoint("host0", 1)
    assignment = Assignment(round, 0, rank, size, size, size, worker, master)
    return Delivered(at, node, FIRST, RunRound(assignment), True)


def record(at: float, number: int, counter: int, **ledger: object) -> Recorded:
    written = Ledger(number, 2, **ledger)  # type: ignore[arg-type]
    return Recorded(at, 0, Document(1, 1, counter, f"{A}/{counter}", A, (), written))


def document(
    epoch: int, counter: int, leader: str, *, successors: tuple[str, ...] = ()
) -> Document:
    return Document(1, epoch, counter, f"{leader}/{counter}", leader, successors, Ledger(1, 2))


OUT = HostKept(roll(("host1",)), 3, 1, 60.0)
TROUBLE = [WorkerEnded(2.1 + n / 10, 1, B, 1, 1, "failed") for n in range(3)]
"""What keeps the second host out."""
STILL = (NodeStalled(3.0, 0, A, 1), NodeStalled(3.0, 1, B, 1))
"""All workers of the round do nothing any more."""
EMPTIED = FaultStruck(2.5, "register restarts empty", 0, 2.6)
"""What the first of two rounds that run at once knows nothing of."""


def good() -> list[Fact]:
    """A round of two that succeeds."""
    return [
        AgentBegan(0.0, 0, A),
        AgentBegan(0.0, 1, B),
        LeaseRenewed(0.5, A, 90.0),
        LeaseRenewed(0.5, B, 90.0),
        record(0.9, 1, 1),
        told(A, 0),
        told(B, 1),
        WorkerBegan(2.0, 0, A, 1, 0),
        WorkerBegan(2.0, 1, B, 1, 1),
        WorkerEnded(9.0, 0, A, 1, 0, "succeeded"),
        WorkerEnded(9.0, 1, B, 1, 1, "succeeded"),
        record(9.5, 1, 2, outcome=SUCCESS),
        Delivered(9.6, A, FIRST, CloseJob(SUCCESS), True),
        AgentFinished(9.7, 0, A, SUCCESS, True),
    ]


def inserted(*facts: Fact) -> list[Fact]:
    """The good history with these in it, where their time has them."""
    return sorted([*good(), *facts], key=lambda fact: fact.at)


def without(kind: type[Fact]) -> list[Fact]:
    return [fact for fact in good() if not isinstance(fact, kind)]


DOCTORED: list[tuple[str, str, list[Fact]]] = [
    ("one_round", "two rounds at once", inserted(WorkerBegan(3.0, 1, B, 2, 1))),
    ("one_speaker", "a word after the term", inserted(Spoke(3.0, 0, "said StopRound"))),
    (
        "one_speaker",
        "a takeover that is too early",
        inserted(Recorded(1.0, 1, Document(1, 2, 5, "x", B, (), Ledger(1, 2)))),
    ),
    (
        "one_speaker",
        "two under one term",
        inserted(FirstWord(3.0, 0, A, FIRST), FirstWord(3.1, 1, B, FIRST)),
    ),
    (
        "one_speaker",
        "a place given up for nothing",
        inserted(SteppedDown(3.0, 0, A, False)),
    ),
    (
        "only_forward",
        "back behind what it was shown",
        inserted(Recorded(3.0, 1, document(2, 5, B), known=document(3, 4, A))),
    ),
    (
        "only_forward",
        "the term of another",
        inserted(Recorded(3.0, 1, document(3, 5, B), known=document(3, 4, A))),
    ),
    (
        "succession",
        "a leader whom nobody follows",
        inserted(
            Recorded(1.5, 0, document(1, 2, A, successors=(B,))),
            FaultStruck(7.0, "node is killed", 0, 9.0, A),
            LeaderEnded(7.1, 0, A, False),
        ),
    ),
    (
        "untouched",
        "a worker stopped for want of a register",
        inserted(
            FaultStruck(6.0, "register down", 0, 8.0),
            WorkerEnded(7.0, 1, B, 1, 1, "stopped"),
        ),
    ),
    (
        "quarantined",
        "a host on which nothing went wrong",
        inserted(record(1.5, 1, 2, hosts=(OUT,))),
    ),
    (
        "quarantined",
        "in a round all the same",
        inserted(*TROUBLE, record(2.5, 2, 3, hosts=(OUT,)), told(B, 1, at=3.0, round=2)),
    ),
    (
        "quarantined",
        "nobody knows of it any more",
        inserted(*TROUBLE, record(2.5, 1, 3, hosts=(OUT,)), record(3.0, 1, 4)),
    ),
    ("dense_ranks", "the same place twice", inserted(told(B, 0, at=1.1))),
    (
        "limits",
        "too many nodes",
        inserted(RoundFormed(1.05, FIRST, 2), told(B, 2, at=1.1, round=2, size=3)),
    ),
    ("only_forward", "an old round", inserted(WorkerBegan(0.1, 0, A, 4, 0))),
    (
        "only_forward",
        "an old coordinator",
        inserted(
            Delivered(3.0, A, Term(1, 2), HeartbeatAnswered(1), True),
            Delivered(3.1, A, FIRST, HeartbeatAnswered(2), True),
        ),
    ),
    ("only_forward", "a counter twice", inserted(record(1.5, 1, 1))),
    (
        "closing",
        "a failure within the budget",
        [*good()[:-3], record(9.5, 1, 2, outcome=Outcome("failed", "one node left", 1))],
    ),
    (
        "closing",
        "a success that is none",
        [f for f in good() if not (isinstance(f, WorkerEnded) and f.node == B)],
    ),
    (
        "closing",
        "given up too early",
        [*good()[:-3], record(9.5, 1, 2, outcome=Outcome("not_formed", "too few", 3))],
    ),
    ("budget", "a charge without a failure", inserted(record(3.0, 1, 2, charges=1))),
    (
        "budget",
        "victims of a dead node",
        inserted(
            AgentDied(3.0, 0, A),
            WorkerEnded(3.0, 0, A, 1, 0, "killed"),
            WorkerEnded(3.1, 1, B, 1, 1, "victim"),
            record(3.5, 1, 2, charges=1),
        ),
    ),
    ("leases", "no lease at all", without(LeaseRenewed)),
    ("leases", "beyond the lease", inserted(WorkerEnded(200.0, 0, A, 1, 0, "killed"))),
    (
        "leases",
        "beyond the agent",
        inserted(AgentDied(3.0, 0, A)),
    ),
    ("leases", "before the old is reaped", inserted(StartedBeforeReaped(3.0, 0, A, 1))),
    ("written_first", "a round before it is written", good()[:4] + good()[5:]),
    (
        "written_first",
        "an end before it is written",
        inserted(Delivered(3.0, A, FIRST, CloseJob(SUCCESS), True)),
    ),
    ("healthy_nodes", "a healthy node", inserted(NodeDeclaredGone(3.0, B, 0, True))),
    (
        "seats",
        "a survivor without a seat",
        inserted(told(A, 0, at=9.8, round=2, size=1)),
    ),
    ("progress", "no progress", inserted(Late(50.0, "the job does not run"))),
    (
        "progress",
        "another outcome",
        inserted(AgentFinished(9.8, 1, B, Outcome("failed", "of its own", 1), False)),
    ),
    ("core", "an error", inserted(CoreRaised(3.0, 0, "KeyError"))),
    (
        "promptness",
        "a round that had just begun",
        inserted(RoundEnding(3.0, 1, "newcomers", 0, 0.0, 9.0)),
    ),
    (
        "saving",
        "two steps of one round",
        inserted(WorkerSaved(3.0, 0, A, 1, 0, 1, 40), WorkerSaved(3.1, 1, B, 1, 1, 1, 41)),
    ),
    (
        "saving",
        "a worker is let go on after another has saved",
        inserted(WorkerSaved(3.0, 0, A, 1, 0, 1, 40, 2), WorkerReleased(3.1, B, 1, 1, 1, 2)),
    ),
    (
        "stalls",
        "a hang while a node moves",
        inserted(NodeStalled(3.0, 0, A, 1), HangDecided(4.0, 0, 1)),
    ),
    (
        "stalls",
        "two workers ended for one hang",
        inserted(*STILL, EndedForHang(4.1, A, 1, 0), EndedForHang(4.2, A, 1, 0)),
    ),
    ("stalls", "a hang that nobody is told of", [*inserted(*STILL)[:-5], Late(90.0, "")]),
]


def test_a_good_history_breaks_no_promise() -> None:
    assert check(plan(), good()) == []


@pytest.mark.parametrize(
    ("checker", "what", "history"), DOCTORED, ids=[f"{c}: {w}" for c, w, _ in DOCTORED]
)
def test_a_doctored_history_is_seen(checker: str, what: str, history: list[Fact]) -> None:
    still = (Fault(3.0, "job stands still"),) if checker == "stalls" else ()
    struck = replace(plan(), faults=still or plan().faults)
    found = [violation.checker for violation in check(struck, history)]
    assert checker in found, what


def test_two_instances_may_run_at_once_only_after_the_register_was_emptied() -> None:
    fresh = WorkerBegan(3.0, 1, B, 1, 0, instance=2)
    before = {violation.checker for violation in check(plan(), inserted(fresh))}
    after = {violation.checker for violation in check(plan(), inserted(EMPTIED, fresh))}
    assert "one_round" in before
    assert "one_round" not in after


def test_two_rounds_of_one_instance_may_never_run_at_once() -> None:
    history = inserted(EMPTIED, WorkerBegan(3.0, 1, B, 2, 0))
    assert "one_round" in {violation.checker for violation in check(plan(), history)}


def test_charges_may_be_forgotten_only_with_what_the_register_held() -> None:
    charged = [
        WorkerEnded(2.1, 0, A, 1, 0, "failed"),
        record(2.2, 1, 2, charges=1),
    ]
    forgotten = Recorded(3.0, 0, document(2, 3, B), blank=True)
    before = {violation.checker for violation in check(plan(), inserted(*charged, forgotten))}
    after = check(plan(), inserted(*charged, EMPTIED, forgotten))
    assert "budget" in before
    assert "budget" not in {violation.checker for violation in after}


def test_a_last_call_on_a_restart_is_seen() -> None:
    fault = Fault(3.0, "worker fails")
    struck = plan(heal_at=100.0)
    history: list[Fact] = [
        WorkerBegan(1.0, 0, A, 1, 0),
        FaultStruck(fault.at, fault.kind, 0, 3.0, A),
        WorkerEnded(3.0, 0, A, 1, 0, "failed"),
        WorkerBegan(3.0 + struck.config.timeouts.last_call_s, 0, A, 2, 0),
    ]
    assert "promptness" in {violation.checker for violation in check(struck, history)}


def test_a_lease_that_is_waited_for_where_all_came_back_is_seen() -> None:
    """All were killed, and are started again where their notes are."""
    struck = replace(plan(), faults=(Fault(2.0, "all are killed"),))
    lease_s = struck.config.leases.lease_s
    history = [
        WorkerBegan(1.0, 0, A, 1, 0),
        FaultStruck(2.0, "all are killed", 0, 2.0),
        WorkerEnded(2.0, 0, A, 1, 0, "killed"),
        AgentBegan(2.5, 0, "host0-2"),
    ]
    soon, late = (WorkerBegan(2.5 + wait_s, 0, "host0-2", 2, 0) for wait_s in (1.0, 3 * lease_s))
    seen = [{one.checker for one in check(struck, [*history, last])} for last in (soon, late)]
    assert ["promptness" in each for each in seen] == [False, True]


def test_every_checker_has_a_doctored_history() -> None:
    names = {checker.__name__.rpartition(".")[2] for checker in CHECKERS}
    assert names <= {checker for checker, _, _ in DOCTORED}


def test_a_real_run_has_facts_for_every_checker() -> None:
    unseen = {WorkerBegan, WorkerEnded, LeaseRenewed, Delivered, Recorded, RoundEnding}
    for seed in range(20):
        unseen -= {type(fact) for fact in simulate(make_plan(seed)).history}
        if not unseen:
            return
    pytest.fail(f"no run has {unseen}")


def _shown(function: ast.FunctionDef, loop: ast.For, names: dict[str, object]) -> set[object]:
    """The kinds of facts that a loop over `only(history, …)` is shown."""
    local = [node for node in function.body if isinstance(node, ast.Assign)]
    tuples = {ast.unparse(node.targets[0]): node.value for node in local}
    found: set[object] = set()
    for kind in loop.iter.args[1:]:  # type: ignore[attr-defined]
        value = kind.value if isinstance(kind, ast.Starred) else kind
        named = eval(ast.unparse(tuples.get(ast.unparse(value), value)), names)
        found |= set(named) if isinstance(kind, ast.Starred) else {named}
    return found


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.__name__)
def test_a_checker_is_shown_every_fact_that_it_looks_for(checker: ModuleType) -> None:
    names = vars(checker)
    facts = {n for n, v in names.items() if isinstance(v, type) and issubclass(v, Fact)}
    functions = ast.walk(ast.parse(inspect.getsource(checker)))
    for function in (each for each in functions if isinstance(each, ast.FunctionDef)):
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        for loop in (each for each in loops if ast.unparse(each.iter).startswith("only(")):
            said = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name)}
            assert {names[name] for name in said & facts} <= _shown(function, loop, names)
