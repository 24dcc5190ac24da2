"""A node whose workers somebody else runs: what it is told, and what it tells."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from msgspec.structs import replace

from holdfast.core.policy import timing
from holdfast.core.policy.config import JobConfig, Leases, Rendezvous
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    job_config,
)
from holdfast.elastic.rendezvous.membership import Membership, NotMet

DEADLINE_S = 60.0


SHORT_S = 5.0
"""A lease that can be waited for; silence of half of it ends a round."""


def planted() -> None:
    raise ValueError("planted")


def config_of(place: str, run_id: str, least: int, most: int, lease_s: float = 30.0) -> JobConfig:
    spans = [timedelta(seconds=each) for each in (30, 1, 5)]
    every = timedelta(seconds=5)
    settings = RendezvousSettings(run_id, least, most, RendezvousTimeout(*spans), every, 3)
    leases = timing.derive(Leases(), {"lease_s": lease_s})
    return replace(job_config(settings), rendezvous=Rendezvous("holdfast", place), leases=leases)


def free_place() -> str:
    from ...free_ports import free_port  # Here, since a program below imports this file alone.

    return f"127.0.0.1:{free_port()}"


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def join() -> Iterator[Callable[[JobConfig], Membership]]:
    joined: list[Membership] = []

    def one(config: JobConfig) -> Membership:
        joined.append(Membership(config))
        return joined[-1]

    yield one
    for each in joined:
        each.leave(5.0)


HOST = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_membership import SHORT_S, config_of
from holdfast.elastic.rendezvous.membership import Membership
membership = Membership(config_of(sys.argv[2], sys.argv[3], 2, 2, SHORT_S))
while not membership.is_in_touch:
    time.sleep(0.01)
print("hosting", flush=True)
membership.meet(30.0)
time.sleep(600)
"""


def test_a_lease_that_runs_out_is_told_though_nobody_answers(
    join: Callable[[JobConfig], Membership],
) -> None:
    place, run_id = free_place(), uuid.uuid4().hex
    command = [sys.executable, "-c", HOST, os.path.dirname(__file__), place, run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "hosting\n"
            membership = join(config_of(place, run_id, 2, 2, SHORT_S))
            assert membership.meet(DEADLINE_S).size == 2
            assert not membership.is_wanted
            host.send_signal(signal.SIGSTOP)
            wait_until(lambda: membership.is_wanted)
            assert not membership.is_closed
            with pytest.raises(TimeoutError):
                membership.meet(0.5)
        finally:
            host.kill()


def test_a_node_has_no_seat_before_it_asks_for_one(
    join: Callable[[JobConfig], Membership],
) -> None:
    config = config_of(free_place(), uuid.uuid4().hex, 1, 2)
    idle, eager = join(config), join(config)
    assert eager.meet(DEADLINE_S).size == 1
    assert not eager.is_wanted
    with ThreadPoolExecutor() as pool:
        late = pool.submit(idle.meet, DEADLINE_S)
        wait_until(lambda: eager.is_wanted)
        assert eager.meet(DEADLINE_S).size == 2
        assert late.result(DEADLINE_S).round == 2


def test_whoever_leaves_is_missed_and_the_job_goes_on(
    join: Callable[[JobConfig], Membership],
) -> None:
    config = config_of(free_place(), uuid.uuid4().hex, 1, 2)
    host = join(config)
    wait_until(lambda: host.is_in_touch)
    other = join(config)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each.meet(DEADLINE_S), (host, other)))
    assert other.leave(5.0)
    wait_until(lambda: host.is_wanted)
    assert host.meet(DEADLINE_S).size == 1
    assert not host.is_closed


def test_a_node_that_breaks_off_is_told_before_others_take_its_place(
    join: Callable[[JobConfig], Membership], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(free_place(), uuid.uuid4().hex, 1, 2)
    host = join(config)
    wait_until(lambda: host.is_in_touch)
    other = join(config)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each.meet(DEADLINE_S), (host, other)))
    other._node.calls.put(planted)
    wait_until(lambda: other.is_wanted)
    assert other.has_ended
    assert not other.is_closed
    with pytest.raises(NotMet, match="ValueError"):
        other.meet(DEADLINE_S)
    assert "ended with an error" in caplog.text


def test_an_error_in_the_clean_up_leaves_nothing_behind(
    join: Callable[[JobConfig], Membership], caplog: pytest.LogCaptureFixture
) -> None:
    node = join(config_of(free_place(), uuid.uuid4().hex, 1, 2))
    wait_until(lambda: node.is_in_touch)
    engine = node._node._engine
    assert engine is not None
    close = engine.close

    def close_badly() -> None:
        close()
        raise OSError("in the clean-up")

    engine.close = close_badly  # type: ignore[method-assign]
    node._node.calls.put(planted)
    wait_until(lambda: not node._thread.is_alive())
    assert node.has_ended
    assert not node._node.calls._is_open
    assert "in the clean-up" in caplog.text


def test_a_port_that_cannot_be_had_is_told(join: Callable[[JobConfig], Membership]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        config = replace(config_of(place, uuid.uuid4().hex, 1, 2), is_host=True)
        with pytest.raises(NotMet, match="cannot listen"):
            join(config).meet(DEADLINE_S)


def test_two_nodes_that_are_both_told_to_host_meet(
    join: Callable[[JobConfig], Membership],
) -> None:
    config = replace(config_of(free_place(), uuid.uuid4().hex, 2, 2), is_host=True)
    with ThreadPoolExecutor() as pool:
        seats = list(pool.map(lambda _: join(config).meet(DEADLINE_S), range(2)))
    assert sorted(seat.rank for seat in seats) == [0, 1]


def test_jobs_meet_at_one_place_at_the_same_time_and_one_after_the_other(
    join: Callable[[JobConfig], Membership],
) -> None:
    place = free_place()
    configs = [config_of(place, uuid.uuid4().hex, 2, 2) for _ in range(3)]
    nodes = [join(config) for config in (*configs, *configs)]
    with ThreadPoolExecutor() as pool:
        seats = list(pool.map(lambda node: node.meet(DEADLINE_S), nodes))
        assert [(one.rank, one.size) for one in seats].count((0, 2)) == 3
        for done in (nodes[0], nodes[3]):
            done.note_success()
        list(pool.map(lambda node: node.leave(DEADLINE_S), (nodes[0], nodes[3])))
        late = config_of(place, uuid.uuid4().hex, 2, 2)
        newcomers = [join(late), join(late)]
        seats = list(pool.map(lambda node: node.meet(DEADLINE_S), newcomers))
    assert sorted(seat.rank for seat in seats) == [0, 1]
    for node in (nodes[1], nodes[2], nodes[4], nodes[5]):
        assert not node.is_wanted
        assert node.is_seated


def test_a_job_that_nobody_hosts_at_the_place_of_another_one_is_told_so_at_once(
    join: Callable[[JobConfig], Membership], caplog: pytest.LogCaptureFixture
) -> None:
    place = free_place()
    first = join(config_of(place, "first", 2, 2))
    wait_until(lambda: first.is_in_touch)
    join(replace(config_of(place, "second", 2, 2), is_host=False))

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    wait_until(warnings)
    assert "serves job first, not second" in warnings()[0]
    assert "another port" in warnings()[0]
