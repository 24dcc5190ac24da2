"""Rounds of a job whose nodes have fixed ranks: `a` is started with rank 0, `b` with 1, …

`b2` is another node that was started with the rank of `b`.
"""

from __future__ import annotations

from msgspec import structs
from tests.core.coordinator.coordinated_job import (
    Job,
    assignment,
    explained,
    failure,
    members,
    outcome,
    told,
)

from holdfast.core.coordinator_io import CoordinatorEffect, Tell
from holdfast.core.membership import NodeGone, NodeSuspected
from holdfast.core.policy import sentences
from holdfast.core.policy.config import Rendezvous
from holdfast.core.protocol.messages import NodeDraining, NodeGreeted, RoundReport, Seen, StandBy
from holdfast.core.protocol.model import Endpoint, NodeInfo, Term

GONE = "all its processes have ended"


class FixedJob(Job):
    """Each node is given its rank and the master."""

    def __init__(self, nodes: int, **policy: object) -> None:
        super().__init__(nodes, **policy)  # type: ignore[arg-type]
        static = Rendezvous(backend="static")
        self.state.config = structs.replace(self.state.config, rendezvous=static)
        self.given: dict[str, int | None] = {}
        """Ranks of nodes that their names do not tell."""

    def info(self, node: str, role: str = "default") -> NodeInfo:
        rank = self.given.get(node, ord(node[0]) - ord("a"))
        return structs.replace(super().info(node, role), rank_hint=rank)

    def endpoint(self) -> Endpoint:
        return Endpoint("master", 29500)


def running(*nodes: str, **policy: object) -> FixedJob:
    job = FixedJob(len(nodes), **policy)
    job.join(*nodes)
    assert job.state.group.round is not None
    return job


def standing_by(effects: list[CoordinatorEffect]) -> dict[str, str]:
    tells = [effect for effect in effects if isinstance(effect, Tell)]
    return {one.node: one.message.reason for one in tells if isinstance(one.message, StandBy)}


def test_nodes_sit_at_their_ranks_whatever_the_order_in_which_they_come() -> None:
    job = FixedJob(3)
    job.join("c", "a")
    assert members(job.join("b")) == ["a", "b", "c"]


def test_the_job_says_which_ranks_it_waits_for() -> None:
    job = FixedJob(6)
    said = "1 of at least 6 nodes; waiting for 5 more: ranks 0, 1, 3 and 2 more"
    assert explained(job.join("c")) == said
    job.join("a", "b", "d")
    assert explained(job.join("e")) == f"{sentences.too_few_yet(5, 6, None)}: rank 5"


def test_a_job_that_fails_for_want_of_a_node_names_its_rank() -> None:
    job = FixedJob(2)
    job.join("a")
    ended = outcome(job.wake(600.0))
    assert (ended.verdict, ended.exit_status) == ("not_formed", 3)
    assert ended.reason == f"{sentences.too_few_came(1, 2, 600.0)}; missing: rank 1"


def test_a_restart_keeps_every_rank() -> None:
    job = running("a", "b", "c", max_restarts=1)
    job.fail("b", failure(2))
    for node in "cba":
        effects = job.stop(node)
    assert explained(effects).startswith("rank 2")
    assert members(effects) == ["a", "b", "c"]
    assert job.state.group.budget.charges == 1


def test_who_is_missing_is_said_when_a_pause_is_over() -> None:
    job = running("a", "b", max_restarts=2)
    for number in (1, 2):
        job.fail("a", failure(0), round=number)
        job.stop("a", round=number)
        effects = job.stop("b", round=number)
    assert "restarting in " in explained(effects)
    assert "rank" not in explained(job.take(NodeGone("b", GONE)))
    assert explained(job.wake(60.0)) == f"{sentences.too_few_yet(1, 2, 600.0)}: rank 1"


def test_a_node_that_was_restarted_has_its_rank_again() -> None:
    job = running("a", "b", "c")
    job.take(NodeGone("b", GONE))
    job.stop("a")
    assert f"{sentences.too_few_yet(2, 3, 600.0)}: rank 1" in explained(job.stop("c"))
    assert members(job.join("b2")) == ["a", "b2", "c"]
    assert job.state.group.budget.charges == 0


def test_rank_0_that_was_restarted_is_rank_0_again() -> None:
    job = running("a", "b")
    job.take(NodeGone("a", GONE))
    job.stop("b")
    assert members(job.join("a2")) == ["a2", "b"]


def test_the_later_of_two_with_one_rank_is_told_why_it_stands_by() -> None:
    job = running("a", "b")
    effects = job.join("b2")
    assert told(effects) == {}
    assert standing_by(effects) == {"b2": sentences.rank_taken(1, "host-b")}
    job.take(NodeGone("b", GONE))
    assert members(job.stop("a")) == ["a", "b2"]


def test_two_with_one_rank_do_not_make_up_for_a_missing_one() -> None:
    job = FixedJob(3)
    job.join("a", "b")
    effects = job.join("b2")
    assert told(effects) == {}
    assert list(standing_by(effects)) == ["b2"]
    said = "2 of at least 3 nodes; waiting for 1 more: rank 2; rank 1 is claimed by "
    assert explained(effects) == said + "host-b and by host-b2"
    effects = job.join("c")
    assert members(effects) == ["a", "b", "c"]
    assert list(standing_by(effects)) == ["b2"]


def test_the_later_of_two_is_told_although_it_was_ready_first() -> None:
    job = FixedJob(3)
    job.greet("b")
    assert standing_by(job.join("b2")) == {}
    assert list(standing_by(job.join("b"))) == ["b2"]
    job.join("a")
    assert members(job.join("c")) == ["a", "b", "c"]


def test_of_two_only_the_later_is_told_when_their_connections_come_back() -> None:
    job = FixedJob(3)
    job.join("a", "b", "b2")
    assert list(standing_by(job.greet("b", endpoint=job.endpoint()))) == ["b2"]
    assert list(standing_by(job.greet("b2", endpoint=job.endpoint()))) == ["b2"]


def test_a_node_that_is_suspected_loses_its_rank_to_another_that_claims_it() -> None:
    job = FixedJob(2)
    job.join("b")
    job.take(NodeSuspected("b", "silent"))
    job.join("b2")
    assert members(job.join("a")) == ["a", "b2"]


def test_a_node_that_has_state_goes_before_one_that_came_in_its_place() -> None:
    job = running("a", "b", "c")
    job.take(NodeGone("b", GONE))
    job.take(NodeGone("c", GONE))
    job.stop("a")
    job.join("b2")
    back = RoundReport(round=1, group_rank=1, group_size=3, condition="stopped")
    seen = Seen(Term(1, 1), round=1)
    job.hear("b", NodeGreeted(job.info("b"), seen, back, job.endpoint()))
    effects = job.join("c")
    assert members(effects) == ["a", "b", "c"]
    assert list(standing_by(effects)) == ["b2"]


def test_ranks_that_the_job_does_not_have_are_refused_in_words() -> None:
    job = running("a", "b")
    assert standing_by(job.join("c")) == {"c": sentences.rank_too_high(2, 2)}
    job.given["d"] = None
    assert standing_by(job.join("d")) == {"d": sentences.NO_RANK}


def test_strangers_do_not_make_up_for_a_missing_rank() -> None:
    job = FixedJob(2)
    job.given["z"] = None
    effects = job.join("a", "c", "z")
    assert told(effects) == {}
    assert members(job.join("b")) == ["a", "b"]


def test_any_role_may_have_any_rank() -> None:
    job = FixedJob(2)
    job.join("a", role="trainer")
    job.join("b", role="server")
    job.take(NodeGone("b", GONE))
    job.stop("a")
    assert members(job.join("b2", role="trainer")) == ["a", "b2"]


def test_a_node_that_leaves_is_waited_for() -> None:
    job = running("a", "b")
    job.hear("b", NodeDraining("SIGTERM"))
    job.wake(5.0)
    job.stop("b")
    assert f"{sentences.too_few_yet(1, 2, 600.0)}: rank 1" in explained(job.stop("a"))


def test_each_node_gets_the_master_as_it_was_given_there() -> None:
    job = FixedJob(2)
    job.join("a")
    job.endpoint = lambda: Endpoint("master.example", 29500)  # type: ignore[method-assign]
    effects = job.join("b")
    assert assignment(effects, "a").master == Endpoint("master", 29500)
    assert assignment(effects, "b").master == Endpoint("master.example", 29500)


def test_a_crowd_is_counted_but_gone_through_only_near_its_end() -> None:
    job = FixedJob(30)
    job.given |= {**{f"n{rank}": rank for rank in range(30)}, "twin": 3}
    said = [explained(job.join(f"n{rank}")) for rank in range(20)]
    assert "rank" in said[7]
    assert said[8:] == [""] * 12
    job.now += 60.0
    assert explained(job.join("twin")).startswith(sentences.too_few_yet(21, 30, None))
    effects = job.join(*(f"n{rank}" for rank in range(20, 29)))
    assert told(effects) == {}, "thirty have come, and two of them as rank 3"
    effects = job.join("n29")
    assert members(effects) == [f"n{rank}" for rank in range(30)]
    assert list(standing_by(effects)) == ["twin"]
