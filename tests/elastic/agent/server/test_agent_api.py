"""`SimpleElasticAgent` with the four hooks over a handler of its abstract methods.

A test that takes `of` runs against PyTorch's as well, with the very same subclass; the others
are about what only ours does.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ....waiting import DEADLINE_S, until
from ... import agents_of_threads as threads
from ...agents_of_threads import Meeting

agent, handler = threads.agent, threads.handler
run_all = threads.run_all
Library = Any
LONG_S = 3600.0


@pytest.fixture(params=[threads.OURS, pytest.param(threads.THEIRS, marks=pytest.mark.torch)])
def of(request: pytest.FixtureRequest) -> Library:
    return threads.library(request.param)


@pytest.fixture
def ours() -> Library:
    return threads.library(threads.OURS)


@pytest.fixture
def theirs() -> Library:
    return threads.library(threads.THEIRS)


@pytest.fixture
def metrics(of: Library) -> Iterator[list[tuple[str, Any]]]:
    """What is put, by name and value."""
    put: list[tuple[str, Any]] = []

    class Noting(of.metrics.MetricHandler):  # type: ignore[misc]
        def emit(self, metric_data: Any) -> None:
            put.append((metric_data.name, metric_data.value))

    of.metrics.configure(Noting(), "torchelastic")
    yield put
    of.metrics.configure(of.metrics.NullMetricHandler(), "torchelastic")


@pytest.fixture
def events(of: Library, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    recorded: list[Any] = []
    monkeypatch.setattr(of.agent, "record", lambda event, to: recorded.append(event))
    return recorded


# --- workers, to their end ----------------------------------------------------------------


def rank_of(place: Any) -> int:
    return int(place.rank) * 10


def failing(place: Any) -> None:
    raise ValueError(place.rank)


def failing_at_first(place: Any) -> str:
    if place.attempt == 0 and place.local_rank == 1:
        raise ValueError
    return f"attempt {place.attempt}"


def until_stopped(place: Any) -> None:
    assert place.is_to_stop.wait(DEADLINE_S)


def until_two_agents(place: Any) -> Any:
    """Ends when there are twice as many workers as one agent has."""
    if place.world_size == 2:
        until_stopped(place)
    return place.world_size


def test_values_come_back_by_global_rank(of: Library) -> None:
    one = agent(of, rank_of, Meeting())
    result = one.run()
    assert result == of.agent.RunResult(of.agent.WorkerState.SUCCEEDED, {0: 0, 1: 10}, {})
    assert not result.is_failed()
    group = one.get_worker_group()
    assert (group.group_rank, group.group_world_size) == (0, 1)
    assert (group.master_addr, group.master_port) == ("host", 1)
    assert group.state == of.agent.WorkerState.SUCCEEDED
    assert group.store is one._store
    assert [worker.id for worker in group.workers] == ["thread 0", "thread 1"]
    assert one.shutdowns == [({"timeout": 7},)]


def test_a_failed_group_is_restarted_as_a_whole(of: Library) -> None:
    one = agent(of, failing_at_first, Meeting(), max_restarts=3)
    result = one.run()
    assert result.return_values == {0: "attempt 1", 1: "attempt 1"}
    assert (one.attempts, one._remaining_restarts) == (2, 2)


def test_a_failure_with_no_restarts_left_is_a_result(of: Library) -> None:
    one = agent(of, failing, Meeting(), max_restarts=2)
    result = one.run()
    assert result.is_failed()
    assert set(result.failures) <= {0, 1}
    assert result.failures
    assert result.return_values == {}
    assert (one.attempts, one._remaining_restarts) == (3, 0)
    assert one._worker_group.state == of.agent.WorkerState.FAILED


def test_the_group_is_restarted_for_a_newcomer_at_no_cost(of: Library) -> None:
    meeting = Meeting(1)
    first = agent(of, until_two_agents, meeting, max_restarts=0)
    second = agent(of, until_two_agents, meeting, max_restarts=0)
    thread = threading.Thread(target=first.run)
    thread.start()
    until(lambda: first._worker_group.state == of.agent.WorkerState.HEALTHY)
    meeting.size = 2
    result = second.run()
    thread.join(DEADLINE_S)
    assert set(result.return_values.values()) == {4}
    assert (first.attempts, first._remaining_restarts) == (2, 0)
    assert first._worker_group.state == of.agent.WorkerState.SUCCEEDED


def test_a_state_that_nobody_knows_is_an_error(of: Library) -> None:
    one = agent(of, until_stopped, Meeting())
    one._monitor_workers = lambda group: of.agent.RunResult(of.agent.WorkerState.UNKNOWN)
    with pytest.raises(Exception, match="UNKNOWN"):
        one.run()
    assert len(one.shutdowns) == 1


def test_a_handler_that_raises_ends_the_run(of: Library) -> None:
    own = handler(of, Meeting())
    own.next_rendezvous = lambda: (_ for _ in ()).throw(of.rendezvous.RendezvousClosedError("over"))
    one = agent(of, rank_of, Meeting(), rdzv_handler=own)
    with pytest.raises(of.rendezvous.RendezvousClosedError):
        one.run()
    assert len(one.shutdowns) == 1


def test_masters_of_the_specification_count_more(of: Library) -> None:
    one = agent(of, rank_of, Meeting(), master_addr="elsewhere", master_port=99)
    one.run()
    assert (one._worker_group.master_addr, one._worker_group.master_port) == ("elsewhere", 99)


# --- ranks --------------------------------------------------------------------------------


ROLES = [("master", 8), ("trainer", 1), ("trainer", 2), ("ps", 5), ("trainer", 3), ("ps", 2)]


def test_ranks_are_dense_over_the_job_and_each_role(of: Library) -> None:
    meeting = Meeting(len(ROLES))
    agents = [agent(of, rank_of, meeting, role=r, local_world_size=n) for r, n in ROLES]
    run_all(agents)
    workers = [(one, worker) for one in agents for worker in one._worker_group.workers]
    assert sorted(worker.global_rank for _, worker in workers) == list(range(21))
    assert {worker.world_size for _, worker in workers} == {21}
    for role, size in {"master": 8, "trainer": 6, "ps": 7}.items():
        own = [worker for one, worker in workers if one._worker_group.spec.role == role]
        assert sorted(worker.role_rank for worker in own) == list(range(size))
        assert {worker.role_world_size for worker in own} == {size}
    for one in agents:
        ranks = [worker.global_rank for worker in one._worker_group.workers]
        assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def ranks_of(worker: Any) -> tuple[int, ...]:
    names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
    return tuple(getattr(worker, name) for name in names)


def test_agents_that_are_alike_by_the_word_of_the_user_exchange_nothing(
    of: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    one = agent(of, rank_of, Meeting())
    workers = one._assign_worker_ranks(None, 2, 5, one._worker_group.spec)
    assert [ranks_of(worker) for worker in workers] == [(0, 4, 4, 10, 10), (1, 5, 5, 10, 10)]


def test_a_store_without_calls_for_many_keys_will_do(ours: Library) -> None:
    meeting = Meeting(2, threads.Store)
    results = run_all([agent(ours, rank_of, meeting), agent(ours, rank_of, meeting)])
    assert sorted(rank for one in results for rank in one.return_values) == [0, 1, 2, 3]


@pytest.mark.thorough(but=("ours first",))
@pytest.mark.torch
@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_agents_of_both_can_be_in_one_group(ours: Library, theirs: Library, order: str) -> None:
    meeting = Meeting(2)
    libraries = [ours, theirs] if order == "ours first" else [theirs, ours]
    agents = [agent(one, rank_of, meeting, local_world_size=2) for one in libraries]
    first = threading.Thread(target=agents[0].run)
    first.start()
    until(lambda: meeting.waiting == 1)
    agents[1].run()
    first.join(DEADLINE_S)
    ranks = [[worker.global_rank for worker in one._worker_group.workers] for one in agents]
    assert ranks == [[0, 1], [2, 3]]


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "PrefixStore"])
def test_stores_of_pytorch_will_do(ours: Library, tmp_path: Path, kind: str) -> None:
    dist = importlib.import_module("torch.distributed")
    one_for_all = {
        "HashStore": dist.HashStore,
        "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 2),
        "PrefixStore": lambda: dist.PrefixStore("round", dist.HashStore()),
    }[kind]()
    meeting = Meeting(2, lambda: one_for_all)
    results = run_all([agent(ours, rank_of, meeting), agent(ours, rank_of, meeting)])
    assert sorted(rank for one in results for rank in one.return_values) == [0, 1, 2, 3]


def test_agents_agree_on_a_master_where_the_rendezvous_names_none(ours: Library) -> None:
    meeting = Meeting(2)
    agents = [
        agent(
            ours,
            rank_of,
            meeting,
            local_addr="127.0.0.1",
            rdzv_handler=handler(ours, meeting, master=None),
        )
        for _ in range(2)
    ]
    run_all(agents)
    masters = {(one._worker_group.master_addr, one._worker_group.master_port) for one in agents}
    assert len(masters) == 1
    ((address, port),) = masters
    assert address == "127.0.0.1"
    assert port > 0


# --- the exit barrier ---------------------------------------------------------------------


def test_an_agent_that_is_done_waits_for_the_others(of: Library) -> None:
    meeting = Meeting(2)
    may_end = threading.Event()
    first = agent(of, rank_of, meeting)
    second = agent(of, lambda place: may_end.wait(DEADLINE_S), meeting)
    threads_ = [threading.Thread(target=one.run) for one in (first, second)]
    for thread in threads_:
        thread.start()
    until(lambda: first._in_exit_barrier)
    assert first.shutdowns == []
    may_end.set()
    for thread in threads_:
        thread.join(DEADLINE_S)
    assert not first._in_exit_barrier
    assert len(first.shutdowns) == len(second.shutdowns) == 1


def test_a_barrier_that_nobody_comes_to_does_not_fail_the_run(of: Library) -> None:
    meeting = Meeting(2)
    is_over = threading.Event()
    first = agent(of, rank_of, meeting, exit_barrier_timeout=0)
    second = agent(of, lambda place: is_over.wait(DEADLINE_S), meeting)
    thread = threading.Thread(target=second.run)
    thread.start()
    result = first.run()
    is_over.set()
    thread.join(DEADLINE_S)
    assert not result.is_failed()
    assert len(result.return_values) == 2


def test_the_barrier_can_be_replaced_and_may_raise(
    of: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def broken(**settings: Any) -> None:
        calls.append(settings)
        raise RuntimeError("no")

    monkeypatch.setattr(of.store, "barrier", broken)
    one = agent(of, rank_of, Meeting(), exit_barrier_timeout=11)
    assert not one.run().is_failed()
    assert calls == [
        {
            "store": one._store,
            "world_size": 1,
            "key_prefix": "torchelastic/agent/terminal_state",
            "barrier_timeout": 11,
        }
    ]


def test_nobody_is_waited_for_after_a_failure(of: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    one = agent(of, failing, Meeting(), max_restarts=0)
    monkeypatch.setattr(one, "_exit_barrier", lambda: pytest.fail("the barrier was entered"))
    assert one.run().is_failed()


# --- signals and other ends ---------------------------------------------------------------


def test_a_signal_goes_to_the_workers_and_then_to_the_caller(of: Library) -> None:
    one = agent(of, until_stopped, Meeting())
    error = of.multiprocessing.SignalException("sent", signal.SIGUSR1)
    one._monitor_workers = lambda group: (_ for _ in ()).throw(error)
    with pytest.raises(of.multiprocessing.SignalException) as raised:
        one.run()
    assert raised.value is error
    assert one.shutdowns == [(signal.SIGUSR1, {"timeout": 7})]


def test_a_signal_in_the_barrier_is_no_success(
    of: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**settings: Any) -> None:
        raise of.multiprocessing.SignalException("sent", signal.SIGTERM)

    monkeypatch.setattr(of.store, "barrier", interrupted)
    one = agent(of, rank_of, Meeting())
    with pytest.raises(of.multiprocessing.SignalException):
        one.run()
    assert one.shutdowns == [(signal.SIGTERM, {"timeout": 7})]


def test_a_real_signal_ends_the_waiting_at_once(ours: Library) -> None:
    heard: list[int] = []
    is_done = threading.Event()

    def sending(place: Any) -> None:
        if place.local_rank == 0:
            until(lambda: one._worker_group.state == ours.agent.WorkerState.HEALTHY)
            while not heard:  # One that comes just before a wait does not end it, in any Python.
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.02)
            is_done.set()
        until_stopped(place)

    def on_signal(number: int, frame: object) -> None:
        sent = signal.Signals(number)
        if not heard:
            heard.append(number)
            raise ours.multiprocessing.SignalException(f"sent {sent.name}", sent)

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        one = agent(ours, sending, Meeting(), monitor_interval=LONG_S)
        with pytest.raises(ours.multiprocessing.SignalException):
            one.run()
        assert is_done.wait(LONG_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert one.shutdowns == [(signal.SIGUSR1, {"timeout": 7})]


def graceful(of: Library) -> Any:
    own = handler(of, Meeting())
    own.next_rendezvous = lambda: (_ for _ in ()).throw(
        of.rendezvous.RendezvousGracefulExitError("not needed")
    )
    return own


def test_a_node_that_is_not_needed_returns_a_result(ours: Library) -> None:
    one = agent(ours, rank_of, Meeting(), rdzv_handler=graceful(ours))
    result = one.run()
    assert result == ours.agent.RunResult(ours.agent.WorkerState.STOPPED)
    assert not result.is_failed()
    assert len(one.shutdowns) == 1


@pytest.mark.torch
def test_a_handler_of_theirs_may_say_so_too(ours: Library, theirs: Library) -> None:
    one = agent(ours, rank_of, Meeting(), rdzv_handler=graceful(theirs))
    assert one.run().state == ours.agent.WorkerState.STOPPED


@pytest.mark.torch
def test_a_handler_of_theirs_drives_our_agent(ours: Library, theirs: Library) -> None:
    one = agent(ours, rank_of, Meeting(), rdzv_handler=handler(theirs, Meeting()))
    assert one.run().return_values == {0: 0, 1: 10}


def test_workers_that_stay_unhealthy_have_failed(ours: Library) -> None:
    one = agent(ours, until_stopped, Meeting(), max_restarts=1)
    states = ours.agent.WorkerState
    one._monitor_workers = lambda group: ours.agent.RunResult(states.UNHEALTHY)
    result = one.run()
    assert result.is_failed()
    assert (one.attempts, one._remaining_restarts) == (2, 0)


def told(of: Library, meeting: Meeting, problem: Exception | None = None) -> Any:
    """A handler that wants to know how the workers end."""

    class Told(type(handler(of, meeting))):  # type: ignore[misc]
        heard: ClassVar[list[str]] = []

        def workers_succeeded(self) -> None:
            self.hear("succeeded")

        def workers_failed(self, reason: str) -> None:
            self.hear(reason)

        def hear(self, what: str) -> None:
            self.heard.append(what)
            if problem is not None:
                raise problem

    return Told()


@pytest.mark.parametrize("problem", [None, OSError("nobody listens")], ids=["heard", "raises"])
def test_a_handler_is_told_of_success_before_the_exit_barrier(
    ours: Library, problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = told(ours, Meeting(), problem)
    at_the_barrier: list[list[str]] = []
    one = agent(ours, rank_of, Meeting(), rdzv_handler=listening)
    monkeypatch.setattr(one, "_exit_barrier", lambda: at_the_barrier.append([*listening.heard]))
    assert not one.run().is_failed()
    assert at_the_barrier == [["succeeded"]]
    assert listening.heard == ["succeeded"]


@pytest.mark.parametrize("problem", [None, OSError("nobody listens")], ids=["heard", "raises"])
def test_a_handler_is_told_once_that_the_workers_failed_for_good_and_why(
    ours: Library, problem: Exception | None
) -> None:
    def one_fails(place: threads.Place) -> None:
        if place.rank == 1:
            raise ValueError
        until_stopped(place)

    listening = told(ours, Meeting(), problem)
    one = agent(ours, one_fails, Meeting(), rdzv_handler=listening, max_restarts=1)
    assert one.run().is_failed()
    assert one.attempts == 2
    (reason,) = listening.heard
    assert reason.startswith("rank 1 failed with exit code 1")


def test_a_signal_while_a_handler_is_told_is_for_the_caller(ours: Library) -> None:
    interrupted = ours.multiprocessing.SignalException("sent", signal.SIGTERM)
    listening = told(ours, Meeting(), interrupted)
    one = agent(ours, rank_of, Meeting(), rdzv_handler=listening)
    with pytest.raises(ours.multiprocessing.SignalException):
        one.run()


# --- the seams ----------------------------------------------------------------------------

SEAMS = [
    "_invoke_run",
    "_initialize_workers",
    "_rendezvous",
    "_assign_worker_ranks",
    "_start_workers",
    "_monitor_workers",
    "_restart_workers",
    "_stop_workers",
    "_exit_barrier",
    "_shutdown",
]


def test_every_step_goes_through_the_object(of: Library) -> None:
    one = agent(of, failing_at_first, Meeting(), max_restarts=1)
    called: list[str] = []

    def noting(name: str) -> Any:
        original = getattr(one, name)

        @functools.wraps(original)
        def noted(*args: Any, **settings: Any) -> Any:
            if called[-1:] != [name]:  # How often workers are looked at is a matter of time.
                called.append(name)
            return original(*args, **settings)

        return noted

    for name in SEAMS:
        setattr(one, name, noting(name))
    one.run()
    start = ["_initialize_workers", "_rendezvous", "_assign_worker_ranks", "_start_workers"]
    assert called == [
        "_invoke_run",
        *start,
        "_monitor_workers",
        "_restart_workers",
        "_stop_workers",
        *start,
        "_monitor_workers",
        "_exit_barrier",
        "_shutdown",
        "_stop_workers",  # by the hook of this very agent
    ]


def test_the_run_takes_time(ours: Library) -> None:
    one = agent(ours, rank_of, Meeting())
    assert one._total_execution_time == 0
    one.run()
    assert isinstance(one._total_execution_time, int)
    assert one._total_execution_time > 0


# --- metrics and events -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "max_restarts", "ending", "flakiness"),
    [
        (rank_of, 3, "run_success_no_retries", 0),
        (failing_at_first, 3, "run_success_with_retries", 25),
        (failing, 0, "run_failed_no_retries", 100),
        (failing, 1, "run_failed_with_retries", 100),
    ],
)
def test_metrics_say_how_the_run_ended(
    of: Library,
    metrics: list[tuple[str, Any]],
    program: Any,
    max_restarts: int,
    ending: str,
    flakiness: int,
) -> None:
    agent(of, program, Meeting(), max_restarts=max_restarts).run()
    endings = {
        name.removeprefix("workers.trainer."): value
        for name, value in metrics
        if name.startswith("workers.trainer.run_")
    }
    names = [f"run_{end}_{r}_retries" for end in ("success", "failed") for r in ("no", "with")]
    assert endings == {"run_total": 1, **dict.fromkeys(names, 0), ending: 1}
    assert ("workers.trainer.flakiness", flakiness) in metrics
    state = "failed" if "failed" in ending else "succeeded"
    assert (f"workers.trainer.{state}", 1) in metrics


def test_metrics_say_what_was_seen_and_how_long_it_took(
    of: Library, metrics: list[tuple[str, Any]]
) -> None:
    agent(of, failing_at_first, Meeting(), max_restarts=3).run()
    left = [value for name, value in metrics if name == "workers.trainer.remaining_restarts"]
    assert sorted(set(left)) == [2, 3]
    assert left == sorted(left, reverse=True)
    names = {name for name, _ in metrics}
    steps = ("_rendezvous", "_assign_worker_ranks", "_initialize_workers", "_restart_workers")
    for step in (*steps, "run"):
        assert f"SimpleElasticAgent.{step}.success" in names
        assert f"SimpleElasticAgent.{step}.duration.ms" in names


def test_events_tell_the_story_of_a_run(of: Library, events: list[Any]) -> None:
    one = agent(of, failing_at_first, Meeting(), max_restarts=3)
    one.run()
    told = [(event.name.rpartition(".")[2], event.source.value) for event in events]
    start = [("RENDEZVOUS", "AGENT"), ("ASSIGN_WORKER_RANKS", "AGENT"), *2 * [("START", "WORKER")]]
    assert told == [*start, *start, *2 * [("SUCCEEDED", "WORKER")]]
    assert {event.name.rpartition(".")[0] for event in events} == {"torchelastic.worker.status"}
    durations = [event.metadata["duration_ms"] for event in events[:3]]
    assert durations[0] > 0
    assert durations[2] is None


def test_an_event_says_where_it_comes_from(of: Library, events: list[Any]) -> None:
    one = agent(of, failing, Meeting(), max_restarts=0, local_world_size=1)
    one.run()
    last = dict(events[-1].metadata)
    assert last.pop("hostname")
    assert last.pop("total_run_time") >= 0
    assert "message" in json.loads(last.pop("raw_error"))
    assert json.loads(last.pop("metadata")) == {
        "group_world_size": 1,
        "entry_point": "failing",
        "local_rank": [0],
        "role_rank": [0],
        "role_world_size": [1],
        "exit_code": [1],
        "worker_pid": [0],
    }
    assert last == {
        "run_id": "run",
        "global_rank": 0,
        "group_rank": 0,
        "worker_id": "thread 0",
        "role": "trainer",
        "state": "FAILED",
        "rdzv_backend": "memory",
        "agent_restarts": 0,
        "duration_ms": None,
    }


def test_workers_that_others_took_down_were_terminated(of: Library, events: list[Any]) -> None:
    def half(place: Any) -> None:
        if place.local_rank == 0:
            raise ValueError
        until_stopped(place)

    agent(of, half, Meeting(), max_restarts=0).run()
    assert [event.metadata["state"] for event in events[-2:]] == ["FAILED", "TERMINATED"]


def test_an_agent_tells_of_its_own_end(of: Library) -> None:
    one = agent(of, rank_of, Meeting())
    one._shutdown()
    assert one.get_event_succeeded().name == "torchelastic.worker.status.SUCCEEDED"
    try:
        raise KeyError("what happened")
    except KeyError:
        event = one.get_event_failed()
    assert event.name == "torchelastic.worker.status.FAILED"
    assert event.source.value == "AGENT"
    assert "what happened" in event.metadata["raw_error"]


def test_success_without_values_is_success(ours: Library) -> None:
    one = agent(ours, until_stopped, Meeting())
    done = ours.agent.RunResult(ours.agent.WorkerState.SUCCEEDED)
    one._monitor_workers = lambda group: done
    assert one.run() is done


# --- the records --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"local_world_size": 0}, {"monitor_interval": 0}, {"monitor_interval": -1.0}],
    ids=str,
)
def test_a_size_or_interval_that_is_not_positive_is_refused(
    of: Library, wrong: dict[str, Any]
) -> None:
    settings = {"role": "r", "local_world_size": 1, "rdzv_handler": None, "entrypoint": rank_of}
    with pytest.raises(AssertionError):
        of.agent.WorkerSpec(**{**settings, **wrong})


def test_something_to_run_is_needed(of: Library) -> None:
    with pytest.raises(AssertionError):
        of.agent.WorkerSpec("r", 1, None)


def test_the_old_name_of_the_entrypoint_warns(of: Library) -> None:
    with pytest.warns(DeprecationWarning, match="entrypoint"):
        spec = of.agent.WorkerSpec("r", 1, None, fn=rank_of)
    assert spec.entrypoint is rank_of


def test_an_entrypoint_has_a_name(of: Library) -> None:
    spec = of.agent.WorkerSpec("r", 1, None, entrypoint=Meeting.join)
    assert spec.get_entrypoint_name() == "Meeting.join"
    spec.entrypoint = "/usr/bin/program"
    assert spec.get_entrypoint_name() == "program"


def test_a_specification_has_the_same_fields_in_the_same_order(of: Library) -> None:
    spec = of.agent.WorkerSpec("r", 1, None, entrypoint="p")
    assert vars(spec) == {
        "role": "r",
        "local_world_size": 1,
        "rdzv_handler": None,
        "fn": None,
        "entrypoint": "p",
        "args": (),
        "max_restarts": 3,
        "monitor_interval": 0.1,
        "master_port": None,
        "master_addr": None,
        "local_addr": None,
        "event_log_handler": "null",
        "numa_options": None,
        "duplicate_stdout_filters": None,
        "duplicate_stderr_filters": None,
        "virtual_local_rank": False,
    }


def test_a_new_group_has_workers_without_ranks(of: Library) -> None:
    group = of.agent.WorkerGroup(of.agent.WorkerSpec("r", 2, None, entrypoint="p"))
    assert [ranks_of(worker) for worker in group.workers] == [(n, -1, -1, -1, -1) for n in range(2)]
    assert group.state == of.agent.WorkerState.INIT
    assert group.store is group.group_rank is group.group_world_size is None
    assert group.master_addr is group.master_port is None


def test_states_are_words(of: Library) -> None:
    states = of.agent.WorkerState
    assert [state.value for state in states] == [
        "UNKNOWN",
        "INIT",
        "HEALTHY",
        "UNHEALTHY",
        "STOPPED",
        "SUCCEEDED",
        "FAILED",
    ]
    assert states.FAILED == "FAILED"
    assert str(states.FAILED) == "WorkerState.FAILED"
    running = [state.name for state in states if states.is_running(state)]
    assert running == ["HEALTHY", "UNHEALTHY"]
