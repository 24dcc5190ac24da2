"""Handlers meet over a real coordinator, part, and meet again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast.elastic.rendezvous import c10d_rendezvous_backend
from holdfast.elastic.rendezvous import dynamic_rendezvous as dynamic
from holdfast.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler

from ...etcd_cluster import EtcdCluster, EtcdOptions
from ...free_ports import free_port
from ...waiting import until

DEADLINE_S = 30.0


class InMemory(RendezvousBackend):
    """The least that a backend can be."""

    def __init__(self) -> None:
        self.content: tuple[bytes, int] | None = None
        self.lock = threading.Lock()

    @property
    def name(self) -> str:
        return "in memory"

    def get_state(self) -> tuple[bytes, int] | None:
        return self.content

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        with self.lock:
            if token != (self.content[1] if self.content else None):
                return None if self.content is None else (*self.content, False)
            self.content = (state, (token or 0) + 1)
            return (*self.content, True)


Make = Callable[..., DynamicRendezvousHandler]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    options = EtcdOptions(enable_v2=True)
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), options=options) as cluster:
        yield cluster


CARRIERS = [
    "embedded",
    "given",
    "file",
    "etcd",
    "etcd-v2",
    pytest.param("tcp store", marks=pytest.mark.torch),
]
BOTH_PLACES = pytest.mark.parametrize("make", ["embedded", "etcd"], indirect=True)
"""For what handlers do once they have met: the coordinator is the first one's, or anybody's."""
Maker = Callable[[RendezvousParameters], DynamicRendezvousHandler]


def maker_for(carrier: str, request: pytest.FixtureRequest) -> tuple[str, str, Maker]:
    """The name of a backend, its endpoint, and what makes handlers for it."""
    backend = InMemory()
    match carrier:
        case "file":
            return "file", str(request.getfixturevalue("tmp_path")), create_handler
        case "etcd" | "etcd-v2":
            return carrier, request.getfixturevalue("etcd").endpoints, create_handler
        case "given":
            return "in memory", "", lambda params: dynamic.create_handler(None, backend, params)
        case "tcp store":
            request.getfixturevalue("pytorch_in_this_process")

            def over_a_store(params: RendezvousParameters) -> DynamicRendezvousHandler:
                own, store = c10d_rendezvous_backend.create_backend(params)
                return dynamic.create_handler(store, own, params)

            return "c10d", f"127.0.0.1:{free_port()}", over_a_store
    return "holdfast", f"127.0.0.1:{free_port()}", create_handler


@pytest.fixture(params=CARRIERS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes handlers of one job; all are shut down in the end.

    The last call is over at once when all that can be there are. Where a round is to form without
    some of them, it takes `least` to see that the others are in it, and a short last call.
    """
    handlers: list[DynamicRendezvousHandler] = []
    name, place, maker = maker_for(request.param, request)
    run_id = uuid.uuid4().hex

    def one(
        least: int = 1, most: int = 2, join_s: int = 30, close_s: int = 20, last_call_s: int = 30
    ) -> DynamicRendezvousHandler:
        times = {
            "join_timeout": join_s,
            "last_call_timeout": last_call_s,
            "close_timeout": close_s,
        }
        params = RendezvousParameters(name, place, run_id, least, most, "127.0.0.1", **times)
        handlers.append(maker(params))
        return handlers[-1]

    yield one
    with ThreadPoolExecutor() as pool:
        list(pool.map(DynamicRendezvousHandler.shutdown, handlers))
    handlers.clear()  # With the last of them a store that was made here is closed.


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def meet(pool: ThreadPoolExecutor, *handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
    found: list[Future[RendezvousInfo]] = [pool.submit(each.next_rendezvous) for each in handlers]
    return [each.result(DEADLINE_S) for each in found]


def test_two_meet_and_share_a_store(make: Make, pool: ThreadPoolExecutor) -> None:
    infos = meet(pool, make(2, 2), make(2, 2))
    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    places = {
        (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port)
        for info in infos
        if info.bootstrap_store_info
    }
    assert len(places) == 1


def test_one_that_comes_again_takes_the_others_along(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other = make(2, 2), make(2, 2)
    before = meet(pool, one, other)
    before[0].store.set("key", "of the first round")
    assert other.num_nodes_waiting() == 0
    again = pool.submit(one.next_rendezvous)
    until(other.num_nodes_waiting)
    after = [again.result(0) if again.done() else None, other.next_rendezvous()]
    after[0] = again.result(DEADLINE_S)
    assert sorted(info.rank for info in after if info) == [0, 1]
    assert other.num_nodes_waiting() == 0
    assert after[1] is not None
    assert not after[1].store.check(["key"])


def test_a_third_is_taken_in(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second = make(2, 3, last_call_s=1), make(2, 3, last_call_s=1)
    meet(pool, first, second)
    third = pool.submit(make(2, 3, last_call_s=1).next_rendezvous)
    until(first.num_nodes_waiting)
    until(second.num_nodes_waiting)
    infos = [*meet(pool, first, second), third.result(DEADLINE_S)]
    assert sorted(info.rank for info in infos) == [0, 1, 2]


@BOTH_PLACES
def test_one_who_is_done_does_not_disturb_the_others(make: Make, pool: ThreadPoolExecutor) -> None:
    host, other = make(1, 2), make(1, 2)
    host_info = pool.submit(host.next_rendezvous)
    until(lambda: is_reached(host))
    assert meet(pool, other)[0].world_size == 2
    host_info.result(DEADLINE_S)
    assert other.shutdown()
    assert host.num_nodes_waiting() == 0
    assert host.shutdown()
    # The round was not ended: its coordinator has seen it succeed, and said so.
    assert host._membership is not None
    assert host._membership.is_closed


@BOTH_PLACES
def test_a_failure_for_good_ends_the_job_for_all(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other = make(2, 2), make(2, 2)
    meet(pool, one, other)

    def fail() -> None:
        try:
            raise RuntimeError("for good")
        finally:
            one.shutdown()

    failing = pool.submit(fail)
    until(other.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError):
        other.next_rendezvous()
    assert other.is_closed()
    with pytest.raises(RuntimeError):
        failing.result(DEADLINE_S)


@BOTH_PLACES
def test_workers_that_failed_for_good_end_the_job_for_all(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, other = make(2, 2), make(2, 2)
    meet(pool, one, other)
    one.workers_failed("rank 0 ended with exit code 1")
    done = pool.submit(one.shutdown)
    until(other.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError, match="rank 0 ended with exit code 1"):
        other.next_rendezvous()
    assert done.result(DEADLINE_S)


@BOTH_PLACES
def test_a_failure_for_good_is_known_to_one_that_takes_long_to_stop(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, other = make(1, 2, close_s=1), make(1, 2, close_s=1)
    first = pool.submit(one.next_rendezvous)
    until(lambda: is_reached(one))
    other.next_rendezvous()
    first.result(DEADLINE_S)
    one.workers_failed("rank 0 ended with exit code 1")
    done = pool.submit(one.shutdown)
    until(other.num_nodes_waiting)
    with pytest.raises(TimeoutError):
        done.result(1.5)  # Longer than its own time to close: the other needs it.
    with pytest.raises(RendezvousClosedError, match="rank 0 ended with exit code 1"):
        other.next_rendezvous()
    assert done.result(DEADLINE_S)


@BOTH_PLACES
def test_one_who_goes_closes_nothing(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other = make(1, 2), make(1, 2)
    first = pool.submit(one.next_rendezvous)
    until(lambda: is_reached(one))
    other.next_rendezvous()
    first.result(DEADLINE_S)
    other.leave()
    until(one.num_nodes_waiting)
    assert one.next_rendezvous().world_size == 1
    assert not one.is_closed()


@BOTH_PLACES
def test_a_closed_rendezvous_goes_on_until_its_round_is_over(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, other = make(2, 3, last_call_s=1), make(2, 3, last_call_s=1)
    meet(pool, one, other)
    other.set_closed()
    assert other.is_closed()
    late = make(2, 3, last_call_s=1)
    newcomer = pool.submit(late.next_rendezvous)
    until(lambda: is_reached(late))
    assert one.num_nodes_waiting() == other.num_nodes_waiting() == 0
    assert not one.is_closed()
    again = pool.submit(one.next_rendezvous)
    until(other.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError):
        other.next_rendezvous()
    for waiting in (again, newcomer):
        with pytest.raises(RendezvousClosedError):
            waiting.result(DEADLINE_S)
    assert one.is_closed()


@BOTH_PLACES
def test_whoever_waits_is_told_that_the_rendezvous_was_closed(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, other = make(2, 2), make(2, 2)
    waiting = pool.submit(one.next_rendezvous)
    until(lambda: is_reached(one))
    other.set_closed()
    with pytest.raises(RendezvousClosedError, match="was closed"):
        waiting.result(DEADLINE_S)


@BOTH_PLACES
def test_nobody_waits_for_one_who_has_finished(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other = make(2, 2), make(2, 2)
    meet(pool, one, other)
    hosting = [each for each in (one, other) if each._membership and each._membership.is_hosting]
    stays, goes = (one, other) if one in hosting else (other, one)
    goes.workers_succeeded()
    assert goes.num_nodes_waiting() == 0
    assert goes.shutdown()
    assert stays.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError, match="has finished"):
        stays.next_rendezvous()


@BOTH_PLACES
def test_one_who_has_finished_goes_when_another_fails(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other = make(2, 2), make(2, 2)
    meet(pool, one, other)
    one.workers_succeeded()  # And it waits for the other one to finish.
    with pytest.raises(RendezvousClosedError, match="has finished"):
        other.next_rendezvous()
    assert one.shutdown()


@BOTH_PLACES
def test_one_who_waits_in_vain_closes_nothing(make: Make, pool: ThreadPoolExecutor) -> None:
    one, other, spare = make(2, 2), make(2, 2), make(2, 2, join_s=1)
    meet(pool, one, other)

    def wait_in_vain() -> None:
        try:
            spare.next_rendezvous()
        finally:
            spare.shutdown()

    with pytest.raises(RendezvousTimeoutError):
        pool.submit(wait_in_vain).result(DEADLINE_S)
    assert one.num_nodes_waiting() == 0
    again = pool.submit(one.next_rendezvous)
    until(other.num_nodes_waiting)
    assert other.next_rendezvous().world_size == 2
    assert again.result(DEADLINE_S).world_size == 2


@BOTH_PLACES
def test_a_spare_may_go_when_the_others_have_done_the_work(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, spare = make(1, 1), make(1, 1)
    meet(pool, one)
    waiting = pool.submit(spare.next_rendezvous)
    until(lambda: (member := spare._membership) is not None and member.stood_by)
    assert one.shutdown()
    with pytest.raises(RendezvousGracefulExitError):
        waiting.result(DEADLINE_S)


@pytest.mark.parametrize("make", ["given", "file", "etcd", "etcd-v2"], indirect=True)
def test_who_comes_after_the_end_is_told_that_nothing_was_done_for_it(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    """Else a job that is launched again at once would seem to have succeeded."""
    one = make(1, 1)
    meet(pool, one)
    assert one.shutdown()
    with pytest.raises(RendezvousClosedError, match="another run id, or this one in a minute"):
        make(1, 1).next_rendezvous()


@BOTH_PLACES
def test_an_exception_that_was_handled_before_is_no_failure(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    one, other = make(2, 2), make(2, 2)

    def live_while_handling_something_else() -> bool:
        try:
            raise ImportError("of something that is not needed")
        except ImportError:
            one.next_rendezvous()
            return one.shutdown()

    done = pool.submit(live_while_handling_something_else)
    other.next_rendezvous()
    assert other.shutdown()
    assert done.result(DEADLINE_S)


def test_jobs_of_the_same_name_at_other_ports_know_nothing_of_each_other() -> None:
    run_id = uuid.uuid4().hex
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    params = [RendezvousParameters("c10d", place, run_id, 1, 1, "127.0.0.1") for place in places]
    running, another = (create_handler(each) for each in params)
    try:
        running.next_rendezvous()
        running.set_closed()
        assert another.next_rendezvous().round == 1
    finally:
        running.shutdown()
        another.shutdown()


@BOTH_PLACES
def test_too_few_is_a_timeout(make: Make) -> None:
    with pytest.raises(RendezvousTimeoutError):
        make(2, 2, join_s=1).next_rendezvous()


SCRIPT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler
backend, place, run_id = sys.argv[1:]
params = RendezvousParameters(backend, place, run_id, 1, 2, "127.0.0.1", last_call_timeout=20)
handler = create_handler(params)
met = ThreadPoolExecutor().submit(handler.next_rendezvous)
while handler._membership is None or not handler._membership.is_in_touch:
    time.sleep(0.01)
print("hosting" if handler._membership.is_hosting else "reached", flush=True)
print(met.result().rank, met.result().world_size, flush=True)
time.sleep(600)
"""


def start_another(backend: str, place: str, run_id: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, backend, place, run_id]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def is_reached(handler: DynamicRendezvousHandler) -> bool:
    return handler._membership is not None and handler._membership.is_in_touch


def test_one_whose_process_is_killed_is_missed_at_once(pool: ThreadPoolExecutor) -> None:
    place, run_id = f"127.0.0.1:{free_port()}", uuid.uuid4().hex
    params = RendezvousParameters("holdfast", place, run_id, 1, 2, last_call_timeout=100)
    handler = create_handler(params)
    met = pool.submit(handler.next_rendezvous)
    until(lambda: is_reached(handler))
    with start_another("holdfast", place, run_id) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reached\n"
            assert process.stdout.readline() == "1 2\n"
            assert met.result(DEADLINE_S).world_size == 2
            os.kill(process.pid, signal.SIGKILL)
            until(handler.num_nodes_waiting)
            assert handler.next_rendezvous().world_size == 1
        finally:
            process.kill()
    assert handler.shutdown()


def test_whoever_carries_the_coordinator_may_be_killed_where_there_is_a_register(
    etcd: EtcdCluster, pool: ThreadPoolExecutor
) -> None:
    run_id = uuid.uuid4().hex
    with start_another("etcd", etcd.endpoints, run_id) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hosting\n"
            params = RendezvousParameters(
                "etcd", etcd.endpoints, run_id, 1, 2, "127.0.0.1", last_call_timeout=20
            )
            handler = create_handler(params)
            assert handler.next_rendezvous().world_size == 2
            os.kill(process.pid, signal.SIGKILL)
            until(handler.num_nodes_waiting)
            info = handler.next_rendezvous()
            assert (info.rank, info.world_size) == (0, 1)
            info.store.set("key", "value")
            assert info.store.get("key") == b"value"
        finally:
            process.kill()
    assert handler.shutdown()


def test_static_nodes_have_the_ranks_and_the_master_that_they_were_given(
    pool: ThreadPoolExecutor,
) -> None:
    master, meeting = free_port(), free_port()
    run_id = uuid.uuid4().hex
    handlers = [
        get_rendezvous_handler(
            RendezvousParameters(
                "static", f"127.0.0.1:{master}", run_id, 2, 2, rank=rank, coordinator_port=meeting
            )
        )
        for rank in (1, 0)
    ]
    found = [pool.submit(each.next_rendezvous) for each in handlers]
    infos = [each.result(DEADLINE_S) for each in found]
    assert [info.rank for info in infos] == [1, 0]
    for info in infos:
        assert info.bootstrap_store_info is not None
        assert info.bootstrap_store_info.master_port == master
    list(pool.map(lambda each: each.shutdown(), handlers))


@pytest.mark.parametrize("backend", ["holdfast", "c10d"])
def test_one_node_meets_itself(backend: str) -> None:
    params = RendezvousParameters(backend, "127.0.0.1:0", uuid.uuid4().hex, 1, 1)
    handler = get_rendezvous_handler(params)
    assert handler.get_backend() == backend
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    info.store.set("key", "value")
    assert info.store.get("key") == b"value"
    again = handler.next_rendezvous()
    assert not again.store.check(["key"])
    assert handler.shutdown()


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
def test_a_timeout_is_above_zero(name: str) -> None:
    assert getattr(RendezvousTimeout(**{name: timedelta(seconds=3)}), name).seconds == 3
    with pytest.raises(ValueError, match=name):
        RendezvousTimeout(**{name: timedelta(0)})


@pytest.mark.torch
def test_a_backend_in_a_store_answers_as_pytorchs_does() -> None:
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as theirs

    ours = c10d_rendezvous_backend.C10dRendezvousBackend(HashStore(), "job")
    other = theirs.C10dRendezvousBackend(HashStore(), "job")
    assert ours.name == other.name

    def story(backend: Any) -> list[object]:
        told: list[object] = [backend.get_state(), backend.set_state(b"x", b"no token")]
        told.append(backend.set_state(b"one"))
        token = backend.get_state()[1]
        told += [backend.set_state(b"two"), backend.set_state(b"two", b"no token")]
        told += [backend.set_state(b"two", 7), backend.set_state(b"two", token)]
        return [*told, backend.get_state()]

    assert story(ours) == story(other)
