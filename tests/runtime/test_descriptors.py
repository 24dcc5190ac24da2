"""How many connections each kind of guest may have."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import pytest

from holdfast.runtime import descriptors
from holdfast.runtime.descriptors import Kind, most

KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(descriptors, "_needs", {"workers": 0, "nodes": 0})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lower(soft: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("soft", [256, 1024, 4096])
@pytest.mark.parametrize("workers", [0, 8])
def test_all_shares_and_the_process_itself_fit_into_its_limit(
    limit: None, monkeypatch: pytest.MonkeyPatch, soft: int, workers: int
) -> None:
    monkeypatch.setitem(descriptors._needs, "workers", workers)
    lower(soft)
    own, lines = descriptors.own(soft), descriptors.lines_of_workers(soft)
    assert lines >= workers, "each worker has a connection to the channel"
    assert sum(most(kind) for kind in KINDS) + own - lines <= soft
    assert all(most(kind) >= descriptors.LEAST for kind in KINDS)


def test_many_workers_leave_room_for_guests(limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(descriptors._needs, "workers", 1000)
    lower(256)
    assert most("control") >= 64
    assert sum(most(kind) for kind in KINDS) - descriptors.lines_of_workers(256) <= 128


def test_a_large_job_has_more_connections_than_a_small_one(limit: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20_000:
        pytest.skip(f"needs 20,000 descriptors, and {hard} are allowed here")
    lower(1024)
    descriptors.expect_nodes(2)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024, "that needs no more"
    descriptors.expect_nodes(1000)
    assert most("control") >= descriptors.PER_NODE * 1000


def test_a_limit_that_cannot_be_raised_is_kept() -> None:
    """Both limits are low: a process of its own, which does not get them back."""
    script = """
import resource
from holdfast.runtime import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))
descriptors.provide(workers=2, nodes=4)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)
descriptors.provide(workers=2, nodes=10_000)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ, timeout=60)
