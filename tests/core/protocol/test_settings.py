"""Nodes that were told different things about one job."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator_io import Explain, Tell
from holdfast.core.policy.config import JobConfig, Leases, Program, RestartPolicy
from holdfast.core.protocol.messages import NodeGreeted, Welcomed
from holdfast.core.protocol.settings import JOBS, differing, of_job, warn_node

from ..coordinator.coordinated_job import Job

PLAIN = JobConfig("job", Program("script", "train.py"))
OTHER = replace(PLAIN, min_nodes=1, max_nodes=4, restarts=RestartPolicy(max_restarts=7))


def greeting(job: Job, node: str, config: JobConfig) -> NodeGreeted:
    return NodeGreeted(job.info(node), settings=of_job(config))


def test_what_was_not_told_is_not_sent() -> None:
    assert of_job(PLAIN) == {}
    assert of_job(OTHER) == {"--nnodes": "1:4", "--max-restarts": "7"}


def test_every_setting_of_the_job_is_an_option() -> None:
    from holdfast.cli.table import BY_NAME

    assert all(option.removeprefix("--") in BY_NAME for option in JOBS)


def test_a_node_with_other_settings_is_told_which_and_whose_count() -> None:
    job = Job(2)
    effects = job.hear("a", greeting(job, "a", OTHER))
    welcome = next(e.message for e in effects if isinstance(e, Tell))
    assert isinstance(welcome, Welcomed)
    assert welcome.warning == (
        "this node was started with --nnodes 1:4, --max-restarts 7, but the job runs with "
        "--nnodes 2, --max-restarts 0: the coordinator's settings count"
    )
    said = [effect.text for effect in effects if isinstance(effect, Explain)]
    assert "\n".join(said) == (
        "host-a was started with --nnodes 1:4, --max-restarts 7: the settings given here count, "
        "--nnodes 2, --max-restarts 0"
    )


def test_it_is_said_once_however_often_the_node_reconnects() -> None:
    job = Job(2)
    job.hear("a", greeting(job, "a", OTHER))
    again = job.hear("a", greeting(job, "a", OTHER))
    assert not [effect for effect in again if isinstance(effect, Explain)]


def test_nodes_that_were_told_the_same_are_not_warned() -> None:
    job = Job(2)
    effects = job.hear("a", greeting(job, "a", replace(PLAIN, min_nodes=2, max_nodes=2)))
    assert not [effect for effect in effects if isinstance(effect, Explain)]
    assert [e.message.warning for e in effects if isinstance(e, Tell)] == [""]  # type: ignore[union-attr]


def test_a_lease_of_its_own_is_said_to_be_unsafe() -> None:
    assert differing(of_job(OTHER), {}) == [], "of a node that says nothing, nothing is known"
    found = differing({}, of_job(replace(PLAIN, leases=Leases(lease_s=60.0))))
    assert "give all nodes the same --lease" in warn_node(found)


def test_a_crowd_of_differing_nodes_is_not_counted_aloud() -> None:
    job = Job(100)
    said = 0
    for number in range(100):
        effects = job.hear(f"n{number}", greeting(job, f"n{number}", OTHER))
        said += sum(isinstance(e, Explain) and "started with" in e.text for e in effects)
    assert said == 8


def test_what_a_node_says_is_printed_only_if_it_can_be() -> None:
    for forged in ("1\nholdfast: the job succeeded", "9" * 1000, "\x1b[2J"):
        assert differing({}, {"--lease": forged}) == [("--lease", "10", "(unreadable)")]
