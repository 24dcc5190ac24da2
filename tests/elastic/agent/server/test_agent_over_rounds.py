"""Agents over a real coordinator, while the round that they belong to ends under them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.elastic.agent.server.api import WorkerState
from holdfast.elastic.agent.server.worker_group import assigned_workers
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler
from holdfast.elastic.rendezvous.store import StoreOverError

from ....free_ports import free_port
from ....waiting import DEADLINE_S, until
from ...agents_of_threads import OURS, Meeting, Place, agent, library


@pytest.fixture
def handlers() -> Iterator[list[DynamicRendezvousHandler]]:
    """Two nodes of one job, which both need."""
    place = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {"close_timeout": 5}
    params = RendezvousParameters("holdfast", place, uuid.uuid4().hex, 2, 2, None, **settings)
    made = [get_rendezvous_handler(params) for _ in range(2)]
    both = [each for each in made if isinstance(each, DynamicRendezvousHandler)]
    assert len(both) == 2
    yield both
    with ThreadPoolExecutor() as pool:
        list(pool.map(DynamicRendezvousHandler.shutdown, both))


def test_whoever_waits_for_a_key_is_told_that_the_round_is_over(
    handlers: list[DynamicRendezvousHandler],
) -> None:
    one, other = handlers
    with ThreadPoolExecutor() as pool:
        infos = list(pool.map(DynamicRendezvousHandler.next_rendezvous, handlers))
        waiting = pool.submit(infos[0].store.get, "what nobody sets")
        again = pool.submit(other.next_rendezvous)
        with pytest.raises(StoreOverError):
            waiting.result(DEADLINE_S)
        assert one.next_rendezvous().world_size == 2
        again.result(DEADLINE_S)


def test_an_agent_meets_again_when_the_round_ends_before_all_have_their_ranks(
    handlers: list[DynamicRendezvousHandler],
) -> None:
    one, other = handlers
    ours = agent(library(OURS), _rank, Meeting(), rdzv_handler=one, exit_barrier_timeout=0)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ours.run)
        assert other.next_rendezvous().world_size == 2  # And it says nothing of its workers.
        info = other.next_rendezvous()
        spec = ours.get_worker_group().spec
        ranks = {worker.global_rank for worker in assigned_workers(info.store, info.rank, 2, spec)}
        result = running.result(DEADLINE_S)
    assert result.state == WorkerState.SUCCEEDED
    assert ranks | result.return_values.keys() == {0, 1, 2, 3}
    assert ours.attempts == 1


def test_one_that_has_finished_is_not_kept_waiting_for_one_that_failed_for_good(
    handlers: list[DynamicRendezvousHandler], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = handlers
    ours = agent(library(OURS), _rank, Meeting(), rdzv_handler=one, exit_barrier_timeout=3600)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ours.run)
        info = other.next_rendezvous()
        assigned_workers(info.store, info.rank, 2, ours.get_worker_group().spec)
        until(lambda: ours._in_exit_barrier)
        other.workers_failed("rank 3 ended with exit code 1")
        result = running.result(DEADLINE_S)
    assert result.state == WorkerState.SUCCEEDED
    caplog.clear()  # What the barrier raised is logged, and its frames hold the store.


def _rank(place: Place) -> int:
    return int(place.rank)
