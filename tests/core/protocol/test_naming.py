"""What a node is called."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import node as agent
from holdfast.core.coordinator_io import Explain, Tell
from holdfast.core.features.of_node import new_node
from holdfast.core.membership import NodeGone, NodeSuspected
from holdfast.core.node import greeting
from holdfast.core.node_io import Told
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import (
    NodeDraining,
    NodeGreeted,
    NodeJoined,
    StopRound,
    Welcomed,
)
from holdfast.core.protocol.model import NodeInfo, Term
from holdfast.core.protocol.naming import Names, on_itself

from ..coordinator.coordinated_job import Job


def info(node: str, host: str = "vm", name: str = "") -> NodeInfo:
    return NodeInfo(node, host, slots=2, name=name)


def on_one_host(*nodes: str) -> Job:
    job = Job(len(nodes))
    for node in nodes:
        job.hear(node, NodeGreeted(info(node)))
        job.hear(node, NodeJoined(info(node), job.endpoint()))
    return job


def test_a_node_is_called_by_its_host_and_a_second_one_there_by_a_number() -> None:
    names = Names()
    assert [names.give(info(node)) for node in "abc"] == ["vm", "vm/2", "vm/3"]
    assert names.give(info("d", "other")) == "other"


def test_a_name_is_free_again_when_its_node_is_gone() -> None:
    names = Names()
    names.give(info("a"))
    names.give(info("b"))
    names.release("vm")
    assert names.give(info("c")) == "vm"
    names.release("vm/2")
    assert names.give(info("d")) == "vm/2"


def test_a_node_keeps_its_name_under_a_new_coordinator() -> None:
    names = Names()
    assert names.give(info("b", name="vm/2")) == "vm/2"
    assert names.give(info("a", name="vm")) == "vm"
    assert names.give(info("c")) == "vm/3"


def test_nobody_can_call_itself_what_it_likes() -> None:
    names = Names()
    assert names.give(info("a", name="other")) == "vm"
    assert names.give(info("b", name="vm/2\nholdfast: forged")) == "vm/2"
    assert names.give(info("c", name="vm/2")) == "vm/3"
    assert names.give(info("d", name="vm/0")) == "vm/4"


def test_a_node_is_told_its_name() -> None:
    job = Job(2)
    job.hear("a", NodeGreeted(info("a")))
    effects = job.hear("b", NodeGreeted(info("b")))
    welcomes = [effect.message for effect in effects if isinstance(effect, Tell)]
    assert [one.name for one in welcomes if isinstance(one, Welcomed)] == ["vm/2"]


def test_who_leaves_is_named_and_told_apart_from_others_on_its_host() -> None:
    job = on_one_host("a", "b")
    job.hear("b", NodeDraining("SIGTERM was sent to its agent"))
    effects = job.wake(5.0)
    stops = [e.message for e in effects if isinstance(e, Tell)]
    assert {(stop.reason, stop.about) for stop in stops if isinstance(stop, StopRound)} == {
        ("vm/2 is leaving: SIGTERM was sent to its agent", "vm/2")
    }


def test_who_is_lost_is_told_apart_too() -> None:
    job = on_one_host("a", "b")
    job.take(NodeSuspected("b", "it has been silent for 5.0 s"))
    job.stop("a")
    effects = job.take(NodeGone("b", "it was silent for 12.1 s"))
    told = next(effect for effect in effects if isinstance(effect, Explain))
    assert told.text.startswith("vm/2 was lost: it was silent for 12.1 s; ")


def test_on_itself_a_node_says_this_node() -> None:
    text = "vm/2 is leaving: SIGTERM was sent to its agent"
    assert on_itself(text, "vm/2", "vm/2").startswith("this node is leaving: ")
    assert on_itself(text, "vm/2", "vm") == text
    assert on_itself(text, "", "vm/2") == text


def test_a_returning_node_that_was_renamed_is_known_by_its_new_name() -> None:
    job = on_one_host("a", "b")
    job.hear("b", NodeGreeted(replace(info("b"), name="vm")))
    assert job.state.members["b"].name == "vm/2"


def test_a_failure_is_told_under_the_name_of_its_node() -> None:
    state = new_node(replace(JobConfig("job", Program("script", "x")), max_nodes=2), "b", "vm")
    agent.step(state, Told(Welcomed(name="vm/2"), Term(1, 1)), 0.0)
    assert state.name == "vm/2"
    assert greeting(state, 0.0).info.name == "vm/2"
