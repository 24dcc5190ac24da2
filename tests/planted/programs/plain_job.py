"""Training without PyTorch, in which one worker fails in the way that it is told.

    plain_job.py FAILURE

All workers add up over sockets, step by step. In step `AT` the culprit does what is planted; the
others find out as they would in real training: their connections break, or they wait. For what is
done from outside (a kill, a cut), they step until it happens; each says its pid in the working
directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import mmap
import os
import pickle
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

# torchrun itself listens on the master's port: its workers meet at another one.
os.environ["MASTER_PORT"] = os.environ.get("PLANTED_PORT", os.environ["MASTER_PORT"])
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "integration" / "nodes"))
from socket_job import SocketGroup

import holdfast

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_CULPRIT = int(os.environ.get("PLANTED_RANK", "1")) == RANK
AT = 3
STEPS = 6
STEP_S = 0.02


def exception() -> None:
    raise ValueError("the batch is empty")


def exception_with_last_words() -> None:
    print("step 3: the reader is behind", file=sys.stderr)
    raise KeyError("input_ids")


def in_a_thread() -> None:
    def load() -> None:
        raise ValueError("shard 7 has no header")

    loader = threading.Thread(target=load, name="loader")
    loader.start()
    loader.join()
    sys.exit(1)


def exit_code() -> None:
    sys.exit(3)


def not_a_number() -> None:
    print("loss is NaN at step 3, ending", file=sys.stderr)
    sys.exit(1)


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    print("python: reader.cc:88: read: Assertion `size > 0' failed.", file=sys.stderr)
    sys.stderr.flush()
    os.abort()


def bus_error() -> None:
    """More shared memory than there is."""
    with open("/dev/shm/planted", "w+b") as file:
        os.ftruncate(file.fileno(), 8 << 20)
        memory = mmap.mmap(file.fileno(), 8 << 20)
        for at in range(0, 8 << 20, 4096):
            memory[at] = 1


def out_of_memory() -> None:
    group = os.environ["PLANTED_GROUP"]
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1024)) * 1024)


def stack_overflow() -> None:
    sys.setrecursionlimit(10**8)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))

    def descend(depth: int) -> list[int]:
        return sorted([depth], key=lambda number: len(descend(number + 1)))

    descend(0)


def endless_loop() -> None:
    with holdfast.expires(1.0, "step 3"):
        while True:
            pass


def disk_full() -> None:
    with open(Path(os.environ["PLANTED_DISK"]) / "checkpoint.pt", "wb") as file:
        file.write(bytes(1 << 20))


def bad_checkpoint() -> None:
    with open(f"checkpoint-{RANK}.pt", "wb") as file:
        file.write(pickle.dumps(list(range(1000)))[:500])
    with open(f"checkpoint-{RANK}.pt", "rb") as file:
        pickle.load(file)


def missing_file() -> None:
    with open("data/shard-0001.bin", "rb") as file:
        file.read()


def asks_for_a_name() -> None:
    socket.create_connection(("data.planted.invalid", 443))


def asks_a_server() -> None:
    """Its certificate is of no use today."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        context = ssl.create_default_context(cafile=os.environ["PLANTED_CERTIFICATE"])
        with socket.create_connection(listening.getsockname()) as plain:
            context.wrap_socket(plain, server_hostname="localhost")


def serve(listening: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["PLANTED_CERTIFICATE"], os.environ["PLANTED_KEY"])
    connection, _ = listening.accept()
    with contextlib.suppress(OSError):
        context.wrap_socket(connection, server_side=True)


def missing_module() -> None:
    importlib.import_module("tokenizer_of_the_job")


def older_library() -> None:
    import layers

    layers.fused_attention()


def too_many_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    while True:
        kept.append(open(__file__))  # noqa: SIM115 - they are to stay open


def too_many_processes() -> None:
    group = os.environ["PLANTED_PIDS"]
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def waits_for_a_file() -> None:
    def load_batch() -> None:
        while not os.path.exists("never"):
            time.sleep(0.05)

    load_batch()


def timer_runs_out() -> None:
    """As `torch.distributed.elastic.timer` asks for it, in its own words."""
    until = time.time() + 1.0
    asked = {"pid": os.getpid(), "scope_id": "loading", "expiration_time": until, "signal": 9}
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as pipe:
        pipe.write(json.dumps({"version": 1, **asked}) + "\n")
    time.sleep(600)


def writes_to_a_disk() -> None:
    place = Path(os.environ["PLANTED_DISK"])
    (place.parent / "writes").touch()
    while not (place.parent / "stalled").exists():
        time.sleep(0.01)
    with open(place / "checkpoint.pt", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))


def ends_too_early() -> None:
    """It leaves the loop one step before all others, and ends well."""
    sys.exit(0)


def nothing() -> None:
    """Somebody else does it, from outside."""


def check_world() -> None:
    if WORLD != 4:
        raise ValueError(f"the configuration is for 4 ranks, and there are {WORLD}")


FAILURES: dict[str, Callable[[], None]] = {
    call.__name__: call
    for call in (
        exception, exception_with_last_words, in_a_thread, exit_code, not_a_number, segfault, abort,
        bus_error, out_of_memory, stack_overflow, endless_loop, disk_full, bad_checkpoint,
        missing_file, missing_module, older_library, too_many_files, too_many_processes,
        ends_too_early, asks_for_a_name, asks_a_server, waits_for_a_file, timer_runs_out,
        writes_to_a_disk, nothing,
    )
}  # fmt: skip


def slow_rank() -> None:
    """No rank waits for another, and one takes its time."""
    for step in range(10**6):
        holdfast.progress(step)
        time.sleep(0.1 if IS_CULPRIT else 0.01)


def clock_is_behind(group: SocketGroup) -> None:
    """The clock of rank 0 is an hour behind; it fails after the culprit, in words of its own."""
    if RANK == 0:
        real = time.time
        time.time = lambda: real() - 3600
    if IS_CULPRIT:
        exception()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        group.add_up(AT)
    except ConnectionError:
        time.sleep(1.0)
        raise RuntimeError("step 3 was not done") from None


def train(name: str) -> None:
    if name == "check_world":
        check_world()
    if name == "slow_rank":
        slow_rank()
    group = SocketGroup()
    step = 0
    while step < STEPS or name == "nothing":
        step += 1
        if step == AT:
            Path(f"pid.{RANK}").write_text(str(os.getpid()))
            if name == "clock_is_behind":
                clock_is_behind(group)
            elif IS_CULPRIT:
                FAILURES[name]()
        group.add_up(step)
        holdfast.progress(step)
        time.sleep(STEP_S)
    group.leave()


if __name__ == "__main__":
    train(sys.argv[1])
