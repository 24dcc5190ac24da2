"""Which CPUs workers are bound to, on machines made of plain files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.cli.table import BY_NAME
from holdfast.core.protocol.errors import UsageError
from holdfast.processes.host.numa import BINDINGS, SYSFS, cuda_devices, plan

# Two sockets of two NUMA nodes; each node has two cores of two threads, the second threads
# numbered after all the first ones: node n has the CPUs 2n, 2n+1, 8+2n and 9+2n.
NODES, CORES_PER_NODE, CORES = 4, 2, 8
EVERY_CPU = range(16)
# GPUs by index: on nodes 0, 1, 1 and 3.
GPU_NODES = (0, 1, 1, 3)


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def slot(index: int) -> str:
    return f"0000:{16 * (index + 1):02x}:00.0"


def build_cpu(system: Path, cpu: int) -> None:
    core = cpu % CORES
    directory = system / f"cpu/cpu{cpu}"
    put(directory / "topology/physical_package_id", core // (2 * CORES_PER_NODE))
    put(directory / "topology/thread_siblings_list", f"{core},{core + CORES}")
    # The cache behind node 2 is split by core; elsewhere a node shares one.
    first = core // CORES_PER_NODE * CORES_PER_NODE
    node_wide = f"{first}-{first + 1},{first + CORES}-{first + CORES + 1}"
    last = f"{core},{core + CORES}" if core // CORES_PER_NODE == 2 else node_wide
    caches = [(1, "Data", f"{cpu}"), (1, "Instruction", f"{cpu}"), (3, "Unified", last)]
    for index, (level, kind, shared) in enumerate(caches):
        put(directory / f"cache/index{index}/level", level)
        put(directory / f"cache/index{index}/type", kind)
        put(directory / f"cache/index{index}/shared_cpu_list", shared)


def build_gpu(sysfs: Path, index: int, node: int) -> None:
    put(sysfs / "bus/pci/devices" / slot(index) / "numa_node", node)
    (sysfs / "bus/pci/drivers/nvidia" / slot(index)).mkdir(parents=True)


def build(sysfs: Path, gpu_nodes: Sequence[int] = GPU_NODES) -> Path:
    system = sysfs / "devices/system"
    for node in range(NODES):
        put(
            system / f"node/node{node}/cpulist",
            f"{2 * node}-{2 * node + 1},{8 + 2 * node}-{9 + 2 * node}",
        )
    for cpu in EVERY_CPU:
        build_cpu(system, cpu)
    for index, node in enumerate(gpu_nodes):
        build_gpu(sysfs, index, node)
    put(sysfs / "bus/pci/drivers/nvidia/new_id", "")
    return sysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return build(tmp_path / "sys")


def cpus_of_node(node: int) -> tuple[int, ...]:
    return (2 * node, 2 * node + 1, 8 + 2 * node, 9 + 2 * node)


def test_the_bindings_are_those_of_the_option() -> None:
    for binding in BINDINGS:
        assert BY_NAME["numa-binding"].parse(binding) == binding


def test_node_gives_all_cpus_of_the_gpus_node(sysfs: Path) -> None:
    bound = plan("node", 4, sysfs, allowed=EVERY_CPU)
    assert bound == tuple(cpus_of_node(node) for node in GPU_NODES)


def test_fewer_workers_than_gpus_take_the_first_ones(sysfs: Path) -> None:
    assert plan("node", 1, sysfs, allowed=EVERY_CPU) == (cpus_of_node(0),)


def test_socket_gives_all_cpus_of_the_gpus_socket(sysfs: Path) -> None:
    first = tuple(sorted(cpus_of_node(0) + cpus_of_node(1)))
    second = tuple(sorted(cpus_of_node(2) + cpus_of_node(3)))
    assert plan("socket", 4, sysfs, allowed=EVERY_CPU) == (first, first, first, second)


def test_exclusive_divides_whole_cores_among_the_gpus_of_a_node(sysfs: Path) -> None:
    bound = plan("exclusive", 4, sysfs, allowed=EVERY_CPU)
    assert bound == (cpus_of_node(0), (2, 10), (3, 11), cpus_of_node(3))
    everywhere = [cpu for cpus in bound for cpu in cpus]
    assert len(everywhere) == len(set(everywhere))


def test_exclusive_gives_what_is_left_over_to_the_first(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=(0, 0))
    put(sysfs / "devices/system/node/node0/cpulist", "0-2,8-10")
    assert plan("exclusive", 2, sysfs, allowed=EVERY_CPU) == ((0, 1, 8, 9), (2, 10))


def test_a_gpu_without_a_worker_still_has_its_share(sysfs: Path) -> None:
    assert plan("exclusive", 2, sysfs, allowed=EVERY_CPU)[1] == (2, 10)


def test_core_complex_gives_each_gpu_a_cache_of_its_own(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=(2, 2, 2, 1))
    bound = plan("core-complex", 4, sysfs, allowed=EVERY_CPU)
    assert bound == ((4, 12), (5, 13), (4, 12), cpus_of_node(1))


def test_core_complex_prefers_the_larger_one(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=(2,))
    assert plan("core-complex", 1, sysfs, allowed={4, 5, 13}) == ((5, 13),)


def test_only_allowed_cpus_are_given_out(sysfs: Path) -> None:
    assert plan("node", 1, sysfs, allowed={1, 2, 8}) == ((1, 8),)


def test_by_default_the_cpus_of_this_process_are_allowed(sysfs: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    put(sysfs / "devices/system/node/node0/cpulist", f"{mine[0]},4000")
    assert plan("node", 1, sysfs) == ((mine[0],),)


def test_a_gpu_of_unknown_node_is_on_the_first(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=(-1,))
    assert plan("node", 1, sysfs, allowed=EVERY_CPU) == (cpus_of_node(0),)


def test_gpus_can_be_given_in_the_order_of_their_indices(sysfs: Path) -> None:
    bound = plan("node", 2, sysfs, devices=(slot(3), slot(0)), allowed=EVERY_CPU)
    assert bound == (cpus_of_node(3), cpus_of_node(0))


# --- which GPUs ---------------------------------------------------------------------------


def test_cuda_devices_are_those_of_the_driver_in_order(sysfs: Path, tmp_path: Path) -> None:
    assert cuda_devices({}, sysfs, tmp_path) == tuple(slot(index) for index in range(4))


def test_a_container_has_only_the_gpus_given_to_it(sysfs: Path, tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia/gpus" / slot(2)).mkdir(parents=True)
    assert cuda_devices({}, sysfs, tmp_path) == (slot(2),)


def test_visible_devices_select_and_order(sysfs: Path, tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert cuda_devices(environ, sysfs, tmp_path) == (slot(3), slot(1))
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": ""}, sysfs, tmp_path) == ()


def test_gpus_named_by_identifier_are_refused(sysfs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="by identifier") as caught:
        cuda_devices({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, sysfs, tmp_path)
    assert "CUDA_VISIBLE_DEVICES=0,1" in caught.value.hint


# --- machines that cannot do it -----------------------------------------------------------


def refusal(binding: str, slots: int, sysfs: Path, **known: Sequence[int]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        plan(binding, slots, sysfs, **known)  # type: ignore[arg-type]
    assert caught.value.message.startswith("--numa-binding")
    assert caught.value.hint
    return caught.value


def test_a_machine_without_numa_says_so(tmp_path: Path) -> None:
    assert "no NUMA nodes" in refusal("node", 1, tmp_path).message


def test_a_machine_without_gpus_says_so(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=())
    error = refusal("node", 1, sysfs)
    assert "no GPU" in error.message
    assert "leave --numa-binding out" in error.hint


def test_more_workers_than_gpus_are_refused(sysfs: Path) -> None:
    error = refusal("node", 5, sysfs, allowed=EVERY_CPU)
    assert "5 workers, but 4 GPUs" in error.message
    assert "at most 4" in error.hint


def test_a_node_without_a_cpu_for_us_is_refused(sysfs: Path) -> None:
    assert "NUMA node 0" in refusal("node", 1, sysfs, allowed=(2, 3)).message


def test_more_gpus_than_cores_cannot_be_exclusive(tmp_path: Path) -> None:
    sysfs = build(tmp_path / "sys", gpu_nodes=(0, 0, 0))
    error = refusal("exclusive", 1, sysfs, allowed=EVERY_CPU)
    assert "3 GPUs share the 2 cores" in error.message
    assert "--numa-binding node" in error.hint


def test_a_kernel_that_keeps_its_topology_to_itself_is_refused(sysfs: Path) -> None:
    (sysfs / "devices/system/cpu/cpu0/topology/physical_package_id").unlink()
    assert "physical_package_id" in refusal("socket", 1, sysfs, allowed=EVERY_CPU).message


def test_an_unknown_binding_is_refused(sysfs: Path) -> None:
    assert "'near' is not a choice" in refusal("near", 1, sysfs, allowed=EVERY_CPU).message


def test_this_machine_gets_a_plan_or_a_clear_message() -> None:
    if cuda_devices({}):
        assert all(plan("node", 1))
    else:
        refusal("node", 1, SYSFS)
