"""What the workers of the cases run."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

LONG_S = 3600.0
LOOK_S = 0.01


def rank() -> int:
    return int(os.environ["RANK"])


def place() -> dict[str, Any]:
    """Where this worker finds itself."""
    names = ("RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE")
    return {"role": os.environ["ROLE_NAME"], **{name: int(os.environ[name]) for name in names}}


def environment() -> dict[str, str]:
    return dict(os.environ)


def sees_a_pipe(name: str) -> bool:
    """Whether this variable names a pipe that is there."""
    return stat.S_ISFIFO(os.stat(os.environ[name]).st_mode)


# --- values -------------------------------------------------------------------------------


def tensor() -> Any:
    import torch

    return torch.rand(100, 100)


def nothing() -> None:
    pass


def echo(word: str) -> str:
    return word


# --- failures -----------------------------------------------------------------------------


def fails() -> None:
    raise RuntimeError(f"rank {rank()} cannot go on")


def half_fail() -> int:
    if rank() % 2 == 0:
        fails()
    return rank()


def rank_1_kills_itself_once() -> tuple[int, int]:
    """The rank, and the round."""
    number = int(os.environ["HOLDFAST_ROUND"])
    if number == 1:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG_S)  # Until this worker is stopped because of the other.
    return rank(), number


def fails_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fails()


def fails_when(path: str) -> None:
    wait_for(path)
    fails()


def fails_beside_one_who_sleeps(folder: str) -> None:
    while not any(name.startswith("runs.") for name in os.listdir(folder)):
        time.sleep(LOOK_S)
    fails()


# --- waiting ------------------------------------------------------------------------------


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(LOOK_S)


def tell(path: str, text: str = "") -> None:
    """All of it or nothing is in the file."""
    folder, name = os.path.split(path)
    part = Path(folder, f".{name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def returns_when(path: str) -> str:
    wait_for(path)
    return path


def say_that_we_run(folder: str) -> None:
    """A file that names the round, the size of the world and the rank."""
    names = ("HOLDFAST_ROUND", "WORLD_SIZE", "RANK")
    told = ".".join(os.environ[name] for name in names)
    tell(f"{folder}/runs.{told}", str(os.getpid()))


def until_the_end(folder: str) -> int:
    """Run until the test says that it is over; the size of the world."""
    say_that_we_run(folder)
    wait_for(f"{folder}/end")
    return int(os.environ["WORLD_SIZE"])


def until_alone(folder: str) -> int:
    """Run for as long as there is another; the size of the world."""
    say_that_we_run(folder)
    if os.environ["WORLD_SIZE"] != "1":
        time.sleep(LONG_S)
    return int(os.environ["WORLD_SIZE"])


def sleeps(folder: str) -> None:
    """Say which signal ended the sleep."""

    def on_signal(number: int, frame: object) -> None:
        tell(f"{folder}/stopped.{rank()}", str(number))
        sys.exit(1)

    signal.signal(signal.SIGTERM, on_signal)
    say_that_we_run(folder)
    time.sleep(LONG_S)
    tell(f"{folder}/slept.{rank()}")


def takes_leave(folder: str) -> int:
    """As `until_alone`, and heeds SIGTERM when the test lets it."""

    def on_signal(number: int, frame: object) -> None:
        tell(f"{folder}/got.{rank()}", str(number))
        wait_for(f"{folder}/let_go")
        tell(f"{folder}/left.{rank()}")
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_signal)
    return until_alone(folder)


# --- PyTorch ------------------------------------------------------------------------------


def sum_of_ranks(word: str = "") -> int:
    """What an all-reduce over gloo makes of all ranks. Says so on standard output."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    if word:
        print(f"{word} {int(total)} from {os.getpid()}", flush=True)
    return int(total)


def calls_the_worker(message: str, folder: str) -> str:
    import torch.distributed.rpc as rpc

    size = int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("master", rank=rank(), world_size=size)
    answer: str = rpc.rpc_sync("worker", echo, args=(message,))
    end_together(folder)
    return answer


def answers_the_master(folder: str) -> None:
    import torch.distributed.rpc as rpc

    size = int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("worker", rank=rank(), world_size=size)
    end_together(folder)


def end_together(folder: str) -> None:
    """The last that PyTorch's RPC does is to ask the store, which is in the process of rank 0."""
    import torch.distributed.rpc as rpc

    rpc.shutdown()
    tell(f"{folder}/shut_down.{rank()}")
    wait_for(f"{folder}/shut_down.{1 - rank()}")
