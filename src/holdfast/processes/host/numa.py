"""Which CPUs each worker is bound to, so that it runs near its GPU.

The worker with local rank r uses the r-th CUDA device. The PCI slot of that device says its NUMA
node, and the binding says which CPUs around it the worker gets:

    node          all CPUs of that NUMA node
    socket        all CPUs of the NUMA nodes on the same socket
    exclusive     a share of the node's cores that no other worker has, the node's cores
                  being divided among its GPUs; the first get what is left over
    core-complex  the cores behind one last-level cache of the node, the larger ones first,
                  a different one for each GPU as far as they go

Only CPUs that this process may run on are given out, threads of one core together. A machine that
cannot do it is an error before the job starts. All is read from sysfs, without `numactl`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from holdfast.core.protocol.errors import UsageError
from holdfast.processes.host.accelerators import visible

BINDINGS = ("node", "socket", "exclusive", "core-complex")
SYSFS = Path("/sys")
_PCI_SLOT = re.compile(r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_WITHOUT = "leave --numa-binding out: workers then run on any CPU"


def plan(
    binding: str,
    slots: int,
    sysfs: Path = SYSFS,
    *,
    devices: Sequence[str] | None = None,
    allowed: Collection[int] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each local rank, in order.

    `devices` are the PCI slots of the CUDA devices in CUDA's order (see `cuda_devices`),
    by default all of the machine; `allowed` are the CPUs to give out, by default those of
    this process. Raises `UsageError` where the binding cannot be done.
    """
    if not (sysfs / "devices/system/node/node0").exists():
        raise UsageError(f"--numa-binding {binding}: this machine shows no NUMA nodes", _WITHOUT)
    slots_of_gpus = cuda_devices({}, sysfs) if devices is None else tuple(devices)
    if not slots_of_gpus:
        raise UsageError(
            f"--numa-binding {binding}: there is no GPU to bind workers next to", _WITHOUT
        )
    if slots > len(slots_of_gpus):
        raise UsageError(
            f"--numa-binding {binding}: {slots} workers, but {len(slots_of_gpus)} GPUs to be near",
            f"start at most {len(slots_of_gpus)} workers, or leave --numa-binding out",
        )
    usable = os.sched_getaffinity(0) if allowed is None else allowed
    topology = _Topology(sysfs, frozenset(usable))
    nodes = [topology.node_of_device(device) for device in slots_of_gpus]
    return tuple(_bind(binding, rank, nodes, topology) for rank in range(slots))


def cuda_devices(
    environ: Mapping[str, str], sysfs: Path = SYSFS, proc: Path = Path("/proc")
) -> tuple[str, ...]:
    """The PCI slots of the CUDA devices in the order of their indices.

    A container may see all of the host's GPUs in sysfs; the driver's own list in /proc
    holds only those given to it. `CUDA_VISIBLE_DEVICES` selects and orders by index;
    identifiers (`GPU-…`) cannot be resolved here and are an error.
    """
    present = _pci_slots(sysfs / "bus/pci/drivers/nvidia")
    given = _pci_slots(proc / "driver/nvidia/gpus")
    present = [slot for slot in present if not given or slot in given]
    listing = environ.get("CUDA_VISIBLE_DEVICES")
    if listing is None:
        return tuple(present)
    entries = visible(listing, len(present))
    if not all(entry.isdecimal() for entry in entries):
        raise UsageError(
            f"--numa-binding: CUDA_VISIBLE_DEVICES={listing} names GPUs by identifier",
            "list them by index: CUDA_VISIBLE_DEVICES=0,1",
        )
    return tuple(present[int(entry)] for entry in entries)


class _Topology:
    """The parts of sysfs that say what is near what, among the CPUs that may be used."""

    def __init__(self, sysfs: Path, allowed: frozenset[int]) -> None:
        self._pci = sysfs / "bus/pci/devices"
        self._system = sysfs / "devices/system"
        self._allowed = allowed

    def node_of_device(self, slot: str) -> int:
        # The kernel says -1 where the firmware told it nothing, as on machines with one node.
        return max(int(_read(self._pci / slot / "numa_node")), 0)

    def cpus_of_node(self, node: int) -> tuple[int, ...]:
        listed = _numbers(_read(self._system / f"node/node{node}/cpulist"))
        return tuple(cpu for cpu in listed if cpu in self._allowed)

    def cpus_of_socket_of(self, node: int) -> tuple[int, ...]:
        names = os.listdir(self._system / "node")
        nodes = sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name))
        cpus = {cpu for other in nodes for cpu in self.cpus_of_node(other)}
        near = {self._socket(cpu) for cpu in self.cpus_of_node(node)}
        return tuple(sorted(cpu for cpu in cpus if self._socket(cpu) in near))

    def cores(self, node: int) -> list[tuple[int, ...]]:
        """The node's CPUs, those of one core together."""
        return _grouped(self.cpus_of_node(node), self._first_thread)

    def complexes(self, node: int) -> list[tuple[int, ...]]:
        """The node's CPUs, those behind one last-level cache together, the most first."""
        groups = _grouped(self.cpus_of_node(node), self._first_behind_cache)
        return sorted(groups, key=lambda cpus: (-len(cpus), cpus))

    def _socket(self, cpu: int) -> int:
        return int(_read(self._cpu(cpu) / "topology/physical_package_id"))

    def _first_thread(self, cpu: int) -> int:
        return min(_numbers(_read(self._cpu(cpu) / "topology/thread_siblings_list")))

    def _first_behind_cache(self, cpu: int) -> int:
        """The lowest CPU with which this one shares its last-level cache: the cache's name."""
        caches = [
            cache for cache in (self._cpu(cpu) / "cache").glob("index*") if _holds_data(cache)
        ]
        if not caches:
            return cpu
        last = max(caches, key=lambda cache: int(_read(cache / "level")))
        return min(_numbers(_read(last / "shared_cpu_list")))

    def _cpu(self, cpu: int) -> Path:
        return self._system / f"cpu/cpu{cpu}"


def _bind(binding: str, rank: int, nodes: Sequence[int], topology: _Topology) -> tuple[int, ...]:
    node = nodes[rank]
    place, sharers = nodes[:rank].count(node), nodes.count(node)
    if not topology.cpus_of_node(node):
        raise UsageError(
            f"--numa-binding {binding}: no CPU near GPU {rank} (NUMA node {node}) may be used",
            "widen this process's CPU set (taskset, the container), or leave --numa-binding out",
        )
    if binding == "node":
        return topology.cpus_of_node(node)
    if binding == "socket":
        return topology.cpus_of_socket_of(node)
    if binding == "exclusive":
        return _share(topology.cores(node), place, sharers, node)
    if binding == "core-complex":
        complexes = topology.complexes(node)
        return complexes[place % len(complexes)]
    raise UsageError(f"--numa-binding: {binding!r} is not a choice", f"one of {BINDINGS}")


def _share(
    cores: Sequence[tuple[int, ...]], place: int, sharers: int, node: int
) -> tuple[int, ...]:
    """The CPUs of the `place`-th of `sharers` equal parts, the first parts larger by one."""
    if len(cores) < sharers:
        raise UsageError(
            f"--numa-binding exclusive: {sharers} GPUs share the {len(cores)} cores of node {node}",
            "--numa-binding node lets workers share cores",
        )
    each, left_over = divmod(len(cores), sharers)
    start = place * each + min(place, left_over)
    end = start + each + (place < left_over)
    return tuple(sorted(cpu for core in cores[start:end] for cpu in core))


def _grouped(cpus: Sequence[int], key: Callable[[int], int]) -> list[tuple[int, ...]]:
    ordered = sorted(cpus, key=lambda cpu: (key(cpu), cpu))
    return [tuple(group) for _, group in groupby(ordered, key)]


def _holds_data(cache: Path) -> bool:
    return _read(cache / "type") != "Instruction"


def _numbers(ranges: str) -> list[int]:
    """`0-2,4` as 0, 1, 2, 4."""
    numbers: list[int] = []
    for item in filter(None, ranges.split(",")):
        first, _, last = item.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _pci_slots(directory: Path) -> list[str]:
    """The entries of a directory that are PCI slots, in the order CUDA gives to equal GPUs."""
    try:
        return sorted(name for name in os.listdir(directory) if _PCI_SLOT.fullmatch(name))
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"--numa-binding: this machine does not say what is near what ({path}:"
            f" {error.strerror})",
            _WITHOUT,
        ) from None
