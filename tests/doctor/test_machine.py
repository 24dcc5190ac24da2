"""What is wrong with one machine: each judgement by a table of facts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.doctor import machine
from holdfast.doctor.facts import (
    DiskRoom,
    Interface,
    Kernel,
    Limits,
    MachineFacts,
    OwnName,
    Wanted,
    Way,
)
from holdfast.doctor.findings import Finding, has_errors, most_serious_first

GIGABYTE = 1 << 30
NOW = 1_800_000_000.0
WELL = MachineFacts(
    names=OwnName("node1", ("10.0.0.1",)),
    clock=NOW,
    limits=Limits(65536, 65536, 100_000, None),
    memory_bytes=64 * GIGABYTE,
    memory_free_bytes=32 * GIGABYTE,
    disks=(
        DiskRoom("logs", "/data/logs", 100 * GIGABYTE, 50 * GIGABYTE, 10**6),
        DiskRoom("shared memory", "/dev/shm", 32 * GIGABYTE, 32 * GIGABYTE),
    ),
    interfaces=(Interface("lo", "127.0.0.1", True), Interface("eth0", "10.0.0.1")),
    accelerators=8,
)
FOUR = Wanted(workers=4, per_accelerator=True, several_nodes=True)


def found(facts: MachineFacts, wanted: Wanted = FOUR) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in machine.judge(facts, wanted)]


def test_nothing_is_wrong_with_a_machine_that_is_well() -> None:
    assert machine.judge(WELL, FOUR) == []
    assert machine.judge(MachineFacts(OwnName("x"), NOW), Wanted()) == []


def disk(free: int, use: str = "logs", **more: object) -> MachineFacts:
    return replace(WELL, disks=(DiskRoom(use, "/data", 10**12, free, **more),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (disk(12 << 20), "error", "/data (logs) has 12 MB left"),
        (disk(500 << 20), "warning", "/data (logs) has 500 MB left"),
        (disk(10**12, free_files=3), "error", "/data (logs) has room for 3 more files"),
        (
            disk(10**12, problem="Read-only file system"),
            "error",
            "/data (logs) cannot be written to: Read-only file system",
        ),
        (disk(1 << 20, "shared memory"), "warning", "shared memory (/dev/shm) has 1.0 MB"),
        (
            replace(WELL, memory_free_bytes=100 << 20),
            "error",
            "100 MB of 64 GB of memory are free",
        ),
        (replace(WELL, clock=1000.0), "error", "the clock says 1970-01-01"),
        (replace(WELL, clock=9e9), "error", "the clock says 2255"),
        (replace(WELL, limits=Limits(64, 64)), "error", "64 open files are allowed: 4 workers"),
        (replace(WELL, limits=Limits(1024, 4096)), "warning", "1024 open files are allowed"),
        (replace(WELL, limits=Limits(processes=50)), "error", "50 processes and threads"),
        (replace(WELL, limits=Limits(cgroup_processes=500)), "warning", "500 processes and"),
        (
            replace(WELL, limits=Limits(locked_memory_bytes=65536)),
            "warning",
            "64 kB of memory may",
        ),
        (replace(WELL, kernel=Kernel(pidfd=False)), "warning", "this kernel cannot pin processes"),
        (replace(WELL, kernel=Kernel(subreaper=False)), "error", "this kernel has no subreaper"),
        (
            replace(WELL, kernel=Kernel(ptrace_scope=3)),
            "warning",
            "nobody may look into a process",
        ),
        (replace(WELL, accelerators=2), "error", "4 workers want an accelerator each, and 2 can"),
        (replace(WELL, accelerators=0), "error", "4 workers want an accelerator each, and none"),
        (replace(WELL, compute_s=9.0), "warning", "a short computation took 9.0 s"),
        (
            replace(WELL, names=OwnName("n", problem="no such name")),
            "warning",
            "the machine's own",
        ),
        (
            replace(WELL, names=OwnName("n", ("127.0.1.1",))),
            "warning",
            "the machine's own name means",
        ),
        (
            replace(WELL, interfaces=WELL.interfaces[:1]),
            "error",
            "no interface but loopback is up",
        ),
        (
            replace(WELL, way=Way("head:29400", problem="no such name")),
            "error",
            "head:29400 does not resolve here: no such name",
        ),
        (
            replace(WELL, way=Way("head:1", ("10.0.0.9",), False, problem="timed out")),
            "error",
            "head:1 (10.0.0.9) cannot be reached: timed out",
        ),
        (
            replace(
                WELL, way=Way("head:1", ("10.0.0.1",), True, problem="cannot listen on head:1")
            ),
            "error",
            "cannot listen on head:1",
        ),
        (
            replace(WELL, variables={"NCCL_SOCKET_IFNAME": "ib0"}),
            "error",
            "NCCL_SOCKET_IFNAME=ib0, and there is no interface ib0 here",
        ),
        (
            replace(WELL, variables={"MASTER_ADDR": "old", "RANK": "3"}),
            "warning",
            "set in this shell, and left over from another job: MASTER_ADDR, RANK",
        ),
        (
            replace(WELL, variables={"CUDA_LAUNCH_BLOCKING": "1"}),
            "warning",
            "CUDA_LAUNCH_BLOCKING",
        ),
        (replace(WELL, variables={"OMP_NUM_THREADS": "many"}), "warning", "OMP_NUM_THREADS=many"),
    ],
)
def test_one_thing_is_wrong(facts: MachineFacts, level: str, words: str) -> None:
    ((said, what),) = found(facts)
    assert said == level
    assert what.startswith(words)


@pytest.mark.parametrize("value", ["eth", "eth0", "=eth0", "^ib0", "ib0,eth0", "eth0:1"])
def test_an_interface_may_be_named_as_nccl_has_it(value: str) -> None:
    assert found(replace(WELL, variables={"NCCL_SOCKET_IFNAME": value})) == []


def test_an_endpoint_whose_host_is_not_up_yet_is_no_finding() -> None:
    """Nodes are started in any order: who is refused waits."""
    waiting = Way("head:29400", ("10.0.0.9",), False, problem="Connection refused")
    assert found(replace(WELL, way=waiting)) == []


def test_the_most_serious_comes_first_and_what_nodes_have_in_common_is_one() -> None:
    slow = Finding("warning", "slow", "x", ("a",))
    full = Finding("error", "full", "y", ("a",))
    every = most_serious_first([slow, full, replace(full, nodes=("b",))])
    assert [(one.what, one.nodes) for one in every] == [("full", ("a", "b")), ("slow", ("a",))]
    assert has_errors(every)
    assert not has_errors([slow])


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 B"), (1536, "1.5 kB"), (12 << 20, "12 MB"), (5 << 40, "5.0 TB")]
)
def test_sizes_are_in_units_that_people_use(number: int, words: str) -> None:
    assert machine.size(number) == words
