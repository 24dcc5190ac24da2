"""Tests under real schedulers: a Slurm cluster and two MPIs, made once for all of them.

Only where they are asked for (TEST_SCHEDULERS=1, which `make test-schedulers` sets): they take
minutes, and they need packages that no other test does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import passed_key
from .placed_job import PlacedJob
from .slurm_cluster import SlurmCluster, missing

NODES = 4
TIMEOUT_S = 400
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is in this folder is marked, and skipped where it is not wanted or cannot be."""
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    if not mine:
        return
    reason = missing() if os.environ.get("TEST_SCHEDULERS") else "make test-schedulers runs these"
    for item in mine:
        item.add_marker(pytest.mark.schedulers)
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Four nodes; nothing of them is left after the last test."""
    # A short path: sockets have names of at most 107 bytes.
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"), NODES)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def slurm(cluster: SlurmCluster, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """The cluster, idle before and after each test; what a test left on a node fails it."""
    yield cluster
    passed = request.node.stash.get(passed_key, False)
    cluster.empty()
    left = cluster.left()
    cluster.sweep()
    if left and passed:
        pytest.fail(f"left on the nodes: {left}", pytrace=False)


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path, holdfast: Path) -> PlacedJob:
    """A job whose workers a test follows and steers."""
    return PlacedJob(slurm, tmp_path, holdfast)
