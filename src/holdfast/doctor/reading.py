"""Reads the facts of this machine. Judges nothing, changes nothing, and imports no PyTorch.

Whatever cannot be read is left out: a machine without `/proc/sys` is not ill for it.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.policy import rendezvous_settings
from holdfast.core.policy.config import BACKENDS, ETCD_BACKENDS, JobConfig
from holdfast.core.protocol.bounds import LINE_MOST, cut
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.doctor.facts import (
    DiskRoom,
    Interface,
    Kernel,
    Limits,
    MachineFacts,
    OwnName,
    Way,
)
from holdfast.processes.host import accelerators
from holdfast.processes.stdlib_only import linux

if TYPE_CHECKING:
    from holdfast.transport.resolving import Address

TELLING_VARIABLES = (
    *("NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "PET_", "HOLDFAST_", "CUDA_", "HIP_", "ROCR_"),
    *("OMP_", "MKL_", "UCX_", "FI_", "MASTER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"),
    *("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "http_proxy", "HTTP_PROXY", "no_proxy"),
)
SECRETS = ("TOKEN", "PASSWORD", "SECRET", "KEY")
RESOLVING_S = 5.0
DIAL_S = 5.0
NO_LIMIT = resource.RLIM_INFINITY
LOOPS = 300_000


class MeetingEndpoint(Struct, frozen=True):
    """The meeting point of a job's nodes: a folder, or one of the endpoints."""

    folder: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    is_there_before: bool = False
    """Whether these are there before the job is, as servers of etcd are. Else one of the nodes
    carries it."""


def meeting_endpoint(config: JobConfig) -> MeetingEndpoint | None:
    meets = config.rendezvous
    if not meets.endpoint or meets.backend not in BACKENDS:
        return None
    if rendezvous_settings.is_on_disk(meets.backend, meets.options):
        return MeetingEndpoint(folder=meets.endpoint)
    places = tuple(rendezvous_settings.endpoints(meets.backend, meets.endpoint))
    if meets.is_embedded:
        return MeetingEndpoint(endpoints=places[:1])
    # A store that the first node may serve need not be there yet.
    is_served = meets.backend in ETCD_BACKENDS
    return MeetingEndpoint(endpoints=places, is_there_before=True) if is_served else None


def read(
    environ: Mapping[str, str],
    *,
    log_dir: str | None = None,
    meeting: MeetingEndpoint | None = None,
) -> MachineFacts:
    """All that there is to know. Takes a moment: names are resolved, an endpoint is dialled."""
    total, free = _memory()
    found = accelerators.count("auto", environ)
    counted = found.number if found.kind != "cpu" else 0
    return MachineFacts(
        names=_names(),
        clock=time.time(),
        python=sys.version.split()[0],
        holdfast=_version("holdfast"),
        torch=_version("torch"),
        kernel=_kernel(),
        limits=_limits(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=total,
        memory_free_bytes=free,
        disks=_disks(log_dir, meeting.folder if meeting is not None else ""),
        interfaces=_interfaces(),
        accelerators=counted,
        accelerator_words=found.explanation,
        variables=telling_variables(environ),
        way=_way_to(meeting) if meeting is not None and meeting.endpoints else None,
        compute_s=_compute(),
    )


def telling_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that can surprise; no secret is among them."""
    telling = {
        name: cut(value)
        for name, value in sorted(environ.items())
        if name.startswith(TELLING_VARIABLES) and not any(word in name for word in SECRETS)
    }
    return dict(list(telling.items())[:256])


def _version(package: str) -> str:
    """From what is installed; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# The kernel.


def _kernel() -> Kernel:
    scope = _number(Path("/proc/sys/kernel/yama/ptrace_scope"))
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if beside.exists() else shutil.which("py-spy") or ""
    return Kernel(os.uname().release, linux.has_pidfd(), linux.has_subreaper(), scope, spy)


def _limits() -> Limits:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    cgroups = _number(_own_cgroup() / "pids.max")
    return Limits(_limit(files), _limit(hard), _limit(processes), _limit(locked), cgroups)


def _limit(value: int) -> int | None:
    return None if value in (NO_LIMIT, -1) or value > 2**52 else value


def _own_cgroup() -> Path:
    """The folder of the cgroup that this process is in."""
    lines = _lines(Path("/proc/self/cgroup"))
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return Path("/sys/fs/cgroup") / own.lstrip("/")


def _memory() -> tuple[int | None, int | None]:
    """All there is and what is free, of what we may use."""
    known = {}
    for line in _lines(Path("/proc/meminfo")):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            known[name] = int(rest.split()[0]) * 1024
    total, free = known.get("MemTotal"), known.get("MemAvailable")
    folder = _own_cgroup()
    allowed, used = _number(folder / "memory.max"), _number(folder / "memory.current")
    if allowed is not None and total is not None and allowed < total:
        left = max(0, allowed - (used or 0))
        return allowed, left if free is None else min(free, left)
    return total, free


# Disks.


def _disks(log_dir: str | None, meeting: str) -> tuple[DiskRoom, ...]:
    places = [("shared memory", "/dev/shm"), ("temporary files", tempfile.gettempdir())]
    if log_dir and log_dir != os.devnull:
        places.insert(0, ("logs", log_dir))
    if meeting:
        places.insert(0, ("meeting", meeting))
    return tuple(disk(use, path) for use, path in places)


def disk(use: str, path: str) -> DiskRoom:
    """How much room there is, and whether we may write there; a folder to come counts as its
    parent."""
    there = Path(os.path.abspath(path))
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        room = os.statvfs(there)
    except OSError as error:
        return DiskRoom(use, path, 0, 0, problem=error.strerror or str(error))
    files = room.f_favail if room.f_files else None
    sizes = (room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize)
    return DiskRoom(use, path, *sizes, files, _writing(there))


def _writing(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


# The network.


def _names() -> OwnName:
    host = socket.gethostname()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return OwnName(host, problem=error.strerror or str(error))
    return OwnName(host, tuple(dict.fromkeys(str(one[4][0]) for one in found)))


def _interfaces() -> tuple[Interface, ...]:
    from holdfast.transport.addresses import interface_addresses

    return tuple(
        Interface(found.interface, found.address, found.is_loopback)
        for found in interface_addresses()
        if found.is_usable
    )[:256]


def _way_to(meeting: MeetingEndpoint) -> Way:
    """Resolve, see whether it is here, and then listen or dial. Of several, one has to answer."""
    from holdfast.transport import own_endpoint
    from holdfast.transport.resolving import addresses_within

    text = cut(",".join(map(str, meeting.endpoints)), LINE_MOST)
    addresses: list[Address] = []
    problem = ""
    for endpoint in meeting.endpoints:
        try:
            addresses += addresses_within(endpoint, RESOLVING_S)
        except OSError as error:
            problem = problem or error.strerror or str(error)
    shown = tuple(dict.fromkeys(str(address.sockaddr[0]) for address in addresses))[:64]
    is_here = None
    if not addresses:
        return Way(text, problem=cut(problem or "it does not resolve", LINE_MOST))
    if not meeting.is_there_before:
        is_here = own_endpoint.location_of(addresses).is_here
    if is_here:
        try:
            server = own_endpoint.try_to_host(meeting.endpoints[0], None, addresses)
        except UsageError as error:
            return Way(text, shown, is_here, problem=cut(error.message))
        if server is not None:
            server.close()
            return Way(text, shown, is_here)
    problem = cut(_dialled(addresses), LINE_MOST)
    return Way(text, shown, is_here, not problem, meeting.is_there_before, problem)


def _dialled(addresses: list[Address]) -> str:
    """Why nobody answers at any of them; empty where somebody does."""
    problem = ""
    for address in addresses:
        with socket.socket(address.family, socket.SOCK_STREAM) as probe:
            probe.settimeout(DIAL_S)
            try:
                probe.connect(address.sockaddr)
            except OSError as error:
                problem = error.strerror or str(error)
            else:
                return ""
    return problem


# A short test.


def _compute() -> float:
    """Integers in a loop: slow machines and throttled containers show, accelerators do not."""
    took = []
    for _ in range(3):
        begun, total = time.perf_counter(), 0
        for number in range(LOOPS):
            total += number * number & 7
        took.append(time.perf_counter() - begun)
    return min(took)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None
