"""Timers, metrics, events, the sampler and the small tools, each alone."""

import logging
import multiprocessing
import os
import signal
import sys

import meeting
from torch.distributed.elastic import events, metrics, timer
from torch.distributed.elastic.utils import get_env_variable_or_raise, macros
from torch.distributed.elastic.utils.data import CyclingIterator, ElasticDistributedSampler
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.elastic.utils.logging import get_logger
from torch.distributed.elastic.utils.store import barrier, get_all, synchronize

CONTEXT = multiprocessing.get_context("fork")


def takes(queue, seconds):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=seconds):
        signal.pause() if seconds < 1 else None
    with timer.expires(after=60, scope="another"):
        pass


def takes_with_a_file(path):
    timer.configure(timer.FileTimerClient(path, signal.SIGKILL))
    with timer.expires(after=60):
        pass
    sys.exit(7)


def timers(folder):
    queue = CONTEXT.Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.05)
    server.start()
    # Not too soon: one that is killed while it writes to the queue keeps the others from it.
    workers = [CONTEXT.Process(target=takes, args=(queue, s), daemon=True) for s in (0.9, 60)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    print("local timers", [worker.exitcode for worker in workers])
    server.stop()

    path = os.path.join(folder, "pipe")
    watchdog = timer.FileTimerServer(path, "run", max_interval=0.05, log_event=lambda *told: None)
    watchdog.start()
    worker = CONTEXT.Process(target=takes_with_a_file, args=(path,), daemon=True)
    worker.start()
    worker.join(30)
    print("file timer", worker.exitcode, watchdog.get_last_progress_time() > 0)
    watchdog.stop()
    request = timer.TimerRequest(1, "scope", 5.0)
    print(request == timer.TimerRequest(1, "scope", 5.0), request.scope_id)


class Printing(metrics.MetricHandler):
    def emit(self, metric_data):
        print(metric_data.group_name, metric_data.name, type(metric_data.value).__name__)


class Worker:
    @metrics.prof
    def step(self):
        return "stepped"

    @metrics.prof(group="mine")
    def fails(self):
        raise ValueError


def metered():
    metrics.configure(Printing())
    metrics.configure(Printing(), group="mine")
    metrics.put_metric("counter", 1)
    metrics.put_metric("seconds", 0.5, "mine")
    print(Worker().step())
    try:
        Worker().fails()
    except ValueError:
        print("failed")
    metrics.getStream("mine").add_value("value", "text")
    metrics.initialize_metrics(metrics.MetricsConfig({"a": "b"}))
    metrics.configure(metrics.NullMetricHandler())
    metrics.put_metric("nobody hears", 1)


def told():
    event = events.Event("name", events.EventSource.WORKER, metadata={"rank": 3, "ok": True})
    print(event.serialize(), events.Event.deserialize(event.serialize()) == event)
    events.record(event, "console")
    events.record(event)
    handler = events.get_logging_handler("null")
    print(isinstance(handler, logging.Handler))
    events.construct_and_record_rdzv_event("run", "met", events.NodeState.RUNNING, rank=1)
    rendezvous = events.RdzvEvent("name", "run", "met", "host", 1, events.NodeState.FAILED)
    print(rendezvous.serialize())


def tools():
    print(list(CyclingIterator(3, lambda epoch: iter([epoch, epoch * 10]))))
    for rank in range(2):
        sampler = ElasticDistributedSampler(range(10), num_replicas=2, rank=rank, start_index=3)
        sampler.set_epoch(4)
        print(rank, len(sampler), list(sampler))
    print(macros.substitute(["--rank", macros.local_rank, "${other}"], "5"))
    try:
        get_env_variable_or_raise("NOBODY_SETS_THIS")
    except ValueError:
        print("a variable that is not set is an error")
    print(0 < get_free_port() < 65536, get_logger("mine").name)
    store = meeting.MemoryStore()
    print(synchronize(store, b"data", 0, 1, "key"), get_all(store, 0, "key", 1))
    print(barrier(store, 1, "barrier", barrier_timeout=5))


if __name__ == "__main__":
    timers(sys.argv[1])
    metered()
    told()
    tools()
