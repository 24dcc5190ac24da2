"""The host that carries the coordinator dies and comes back, and the job with it."""

from __future__ import annotations

import shutil

import pytest

from .conftest import MakeJob
from .nodes_job import CONF

pytestmark = pytest.mark.root

WORDS = ("--nnodes=2:3", CONF, "--max-restarts=0")


@pytest.mark.thorough(but=("True",))
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_job_goes_on_when_its_coordinators_host_is_back(
    make_job: MakeJob, snapshot: bool
) -> None:
    """With what it had written to its disk, or with an empty one: the others remember."""
    job = make_job(3)
    first, second, third = job.start_all(*WORDS)
    number = job.until_stepping(world=3)
    first.kill_all()
    if not snapshot:
        shutil.rmtree(job.home_of(first.host))
    again = job.start(first.host, *WORDS)
    number = job.until_stepping(world=3, after=number)
    assert job.hosts_of(number)[-1] == "host1", "those with state come first"
    job.finish(second, third, again)


@pytest.mark.thorough
def test_an_agent_of_the_coordinators_host_that_was_killed_alone_is_replaced(
    make_job: MakeJob,
) -> None:
    job = make_job(2)
    first, second = job.start_all("--nnodes=2", CONF, "--max-restarts=0")
    number = job.until_stepping(world=2)
    first.kill()
    again = job.start(first.host, "--nnodes=2", CONF, "--max-restarts=0")
    job.until_stepping(world=2, after=number)
    job.finish(second, again)
