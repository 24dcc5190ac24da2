"""Training with PyTorch over gloo, in which one rank does something else than the others.

    torch_job.py FAILURE

As `plain_job.py`, for what only PyTorch's collectives and data loaders can show.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import holdfast

RANK = int(os.environ["RANK"])
IS_CULPRIT = int(os.environ.get("PLANTED_RANK", "1")) == RANK
AT, STEPS = 3, 6


class Samples(Dataset[int]):
    """One of them is no sample, for the culprit."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if IS_CULPRIT and index == 2:
            raise ValueError(f"sample {index} is empty")
        return index


def add_up(size: int = 2) -> None:
    dist.all_reduce(torch.ones(size))


def in_a_data_loader(step: int) -> None:
    if step == AT:
        for _ in DataLoader(Samples(), num_workers=1):
            pass
    add_up()


def skips_a_collective(step: int) -> None:
    if step != AT or not IS_CULPRIT:
        add_up()


def other_shape(step: int) -> None:
    add_up(3 if step == AT and IS_CULPRIT else 2)


def other_order(step: int) -> None:
    """Two groups of the same ranks: the culprit begins with the second."""
    if step < AT:
        add_up()
    elif IS_CULPRIT:
        dist.all_reduce(torch.ones(2), group=GROUPS[1])
        dist.all_reduce(torch.ones(2), group=GROUPS[0])
    else:
        dist.all_reduce(torch.ones(2), group=GROUPS[0])
        dist.all_reduce(torch.ones(2), group=GROUPS[1])


def ddp_step() -> None:
    MODEL(torch.ones(1, 2)).sum().backward()


def never(what: Callable[[], object]) -> Callable[[int], None]:
    """DDP, whose all-reduce runs inside of `backward`; the culprit is somewhere else."""

    def step_of(step: int) -> None:
        if step == AT and IS_CULPRIT:
            wait_for_ever(what)
        ddp_step()

    return step_of


def wait_for_ever(what: Callable[[], object]) -> None:
    what()


def takes_a_lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def reads_an_empty_pipe() -> None:
    os.read(os.pipe()[0], 1)


def holds_the_gil() -> None:
    """A call of C that gives no other thread a turn, and tries all ways to split the text."""
    re.fullmatch("(a+)+", "a" * 64 + "b")


def reads_with_the_gil_held() -> None:
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)


def loops_for_ever() -> None:
    while True:
        pass


def waits_for_a_child() -> None:
    subprocess.run(["sleep", "3600"], check=True)


def waits_for_a_pool() -> None:
    with ProcessPoolExecutor(1) as pool:
        pool.submit(time.sleep, 3600).result()


def reads_a_loader_that_stalls() -> None:
    next(iter(DataLoader(Stalling(), num_workers=1)))


class Stalling(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(3600)
        return index


def raises_while_a_thread_lives() -> None:
    threading.Thread(target=time.sleep, args=(30,)).start()
    raise ValueError("the batch is empty")


def ends_while_a_thread_lives() -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()
    sys.exit(0)


def ends_well() -> None:
    os._exit(0)


in_a_lock = never(takes_a_lock_twice)
in_a_sleep = never(lambda: time.sleep(3600))
in_a_pipe = never(reads_an_empty_pipe)
in_a_queue = never(lambda: queue.Queue().get())
ELSEWHERE = {"in_a_lock": in_a_lock, "in_a_sleep": in_a_sleep, "in_a_pipe": in_a_pipe,
             "in_a_queue": in_a_queue,
             **{call.__name__: never(call) for call in (
                 holds_the_gil, reads_with_the_gil_held, loops_for_ever, waits_for_a_child,
                 waits_for_a_pool, reads_a_loader_that_stalls, raises_while_a_thread_lives,
                 ends_while_a_thread_lives, ends_well)}}  # fmt: skip
TIMED_OUT = {f"{name}_until_a_time_out": call for name, call in ELSEWHERE.items()}
"""The same in a program that does not say how far it is, until the others give up."""
DDP_FAILURES = ELSEWHERE | TIMED_OUT


def waits_in_a_barrier(step: int) -> None:
    if step == AT and IS_CULPRIT:
        wait_for_ever(reads_an_empty_pipe)
    dist.barrier()


def waits_in_a_monitored_barrier(step: int) -> None:
    if step == AT and IS_CULPRIT:
        wait_for_ever(reads_an_empty_pipe)
    dist.monitored_barrier(timeout=timedelta(seconds=4))


def makes_an_extra_step(step: int) -> None:
    ddp_step()
    if step == STEPS and IS_CULPRIT:
        ddp_step()


def calls_another_collective(step: int) -> None:
    if step == AT and IS_CULPRIT:
        dist.barrier()
    dist.all_gather([torch.zeros(2) for _ in range(dist.get_world_size())], torch.ones(2))


def leaves_out_a_step(step: int) -> None:
    if step != AT or not IS_CULPRIT:
        ddp_step()
    if step == STEPS:
        dist.barrier()


def makes_no_group(step: int) -> None:
    """As all others do in this step."""
    if step == AT and not IS_CULPRIT:
        dist.new_group()
    add_up()


def receives_in_a_pipeline(step: int) -> None:
    if RANK > 0:
        dist.recv(torch.zeros(2), RANK - 1)
    if step == AT and IS_CULPRIT:
        listening = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(listening.getsockname()).recv(1)
    last = dist.get_world_size() - 1
    if last > RANK:
        dist.send(torch.ones(2), RANK + 1)
    add_up()


def reads_a_folder(step: int) -> None:
    """The culprit's is empty: it has nothing to do, and ends."""
    if any(Path("shards").iterdir()):
        ddp_step()
    else:
        dist.destroy_process_group()
        sys.exit(0)


def shards(step: int) -> None:
    if step == AT and IS_CULPRIT:
        wait_for_ever(reads_an_empty_pipe)
    MODEL(torch.ones(1, 2)).sum().backward()


SPEAKING = {"waits_in_a_barrier_with_progress": waits_in_a_barrier, "shards_with_progress": shards}


def steps_of_ddp(step: int) -> None:
    ddp_step()


BEFORE_INIT = {
    "ends_before_init": ends_well,
    "reads_a_pipe_before_init": reads_an_empty_pipe,
    "takes_a_lock_before_init": takes_a_lock_twice,
}
"""What the culprit does in place of joining its group; the others wait as long as PyTorch does."""
UNSAID = {f"{name}_unsaid": call for name, call in DDP_FAILURES.items()}
SILENT = {call.__name__: call for call in (
    waits_in_a_barrier, waits_in_a_monitored_barrier, makes_an_extra_step, shards,
    calls_another_collective, leaves_out_a_step, makes_no_group)}  # fmt: skip
WITH_DDP = (makes_an_extra_step, leaves_out_a_step, reads_a_folder)
PATIENT = {"makes_no_group_unsaid": makes_no_group} | {
    call.__name__: call for call in (receives_in_a_pipeline, reads_a_folder)}  # fmt: skip
"""Nobody says how far it is, and nobody gives up."""
FAILURES: dict[str, Callable[[int], None]] = (
    {
        call.__name__: call
        for call in (in_a_data_loader, skips_a_collective, other_shape, other_order)
    }
    | DDP_FAILURES
    | SPEAKING
    | UNSAID
    | dict.fromkeys(BEFORE_INIT, steps_of_ddp)
    | SILENT
    | PATIENT
)

if __name__ == "__main__":
    if sys.argv[1] == "other_shape":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Each rank is to say what it called.
    is_silent = sys.argv[1] in TIMED_OUT | SILENT or sys.argv[1] == "never_joins"
    if sys.argv[1] == "never_joins" and IS_CULPRIT:
        wait_for_ever(reads_an_empty_pipe)
    if sys.argv[1] in BEFORE_INIT:
        if IS_CULPRIT:
            BEFORE_INIT[sys.argv[1]]()
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=4 if is_silent else 600))
    GROUPS = [dist.new_group(), dist.new_group()] if sys.argv[1] == "other_order" else []
    if FAILURES.get(sys.argv[1]) is shards:
        init_device_mesh("cpu", (dist.get_world_size(),))
        MODEL: torch.nn.Module = torch.nn.Linear(2, 4)
        fully_shard(MODEL)
    if sys.argv[1] in DDP_FAILURES | UNSAID or FAILURES.get(sys.argv[1]) in WITH_DDP:
        MODEL = DistributedDataParallel(torch.nn.Linear(2, 1))
    for step in range(1, STEPS + 1):
        FAILURES[sys.argv[1]](step)
        if not is_silent and sys.argv[1] not in UNSAID | PATIENT:
            holdfast.progress(step)
        time.sleep(0.05)
    if sys.argv[1] != "skips_a_collective":
        dist.destroy_process_group()
    # Else its connections would end long before it does, and its peers fail before it has ended.
