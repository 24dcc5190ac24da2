"""Reads the facts of this machine. Judges nothing, changes nothing, and imports no PyTorch.

Whatever cannot be read is left out: a machine without `/proc/sys` is not ill for it.
"""

from __future__ import annotations

import contextlib
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
    CgroupLevel,
    ClockState,
    DiskRoom,
    Interface,
    Kernel,
    Limits,
    MachineFacts,
    OwnName,
    Speed,
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
_TIMEX_WORDS = 32
_TIME_ERROR = 5
"""Returned by `adjtimex` where the clock is not synchronised."""


class MeetingEndpoint(Struct, frozen=True):
    """The meeting point of a job's nodes: one of the three."""

    host: Endpoint | None = None
    """One of the nodes carries it: nobody answers before that one is there."""
    servers: tuple[Endpoint, ...] = ()
    """They are there before the job is."""
    folder: str = ""


def meeting_endpoint(config: JobConfig) -> MeetingEndpoint | None:
    meets = config.rendezvous
    if not meets.endpoint or meets.backend not in BACKENDS:
        return None
    if rendezvous_settings.is_on_disk(meets.backend, meets.options):
        return MeetingEndpoint(folder=meets.endpoint)
    places = tuple(rendezvous_settings.places(meets.backend, meets.endpoint))
    if meets.is_embedded:
        return MeetingEndpoint(host=places[0])
    # A store that the first node may serve need not be there yet.
    is_served = meets.backend in ETCD_BACKENDS
    return MeetingEndpoint(servers=places) if is_served else None


def read(
    environ: Mapping[str, str],
    *,
    log_dir: str | None = None,
    meeting: MeetingEndpoint | None = None,
    speed: bool = False,
) -> MachineFacts:
    """All that there is to know. Takes a moment: names are resolved, an endpoint is dialled."""
    total, free = _memory()
    found = accelerators.count("auto", environ)
    counted = found.number if found.kind != "cpu" else 0
    return MachineFacts(
        names=_names(),
        clock=ClockState(time.time(), _synchronised()),
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
        way=None if meeting is None else _way_to(meeting),
        speed=_speed() if speed else Speed(),
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
    return Kernel(
        os.uname().release, linux.has_pidfd(), linux.has_subreaper(), cgroup_level(), scope, spy
    )


def cgroup_level(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> CgroupLevel:
    """Whether processes could be held together by a cgroup of our own."""
    if not (mounted / "cgroup.controllers").exists():
        return "version 1" if mounted.is_dir() and any(mounted.iterdir()) else "none"
    if not (proc / "self/cgroup").exists():
        return "none"
    folder = _own_cgroup(proc, mounted)
    writable = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return "delegated" if writable else "not delegated"


def _limits() -> Limits:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Limits(
        _limit(files), _limit(hard), _limit(processes), _limit(locked), _cgroup_processes()
    )


def _limit(value: int) -> int | None:
    return None if value in (NO_LIMIT, -1) or value > 2**52 else value


def _cgroup_processes() -> int | None:
    return _number(_own_cgroup() / "pids.max")


def _own_cgroup(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> Path:
    """The folder of the cgroup that this process is in."""
    lines = _lines(proc / "self/cgroup")
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return mounted / own.lstrip("/")


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


def _synchronised() -> bool | None:
    """The state of the kernel's clock discipline; None where it is not known."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_long * _TIMEX_WORDS)()
    state = library.adjtimex(words)
    return None if state < 0 else state != _TIME_ERROR


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
    addresses = tuple(dict.fromkeys(str(one[4][0]) for one in found))
    back = ""
    with contextlib.suppress(OSError):
        back = socket.gethostbyaddr(addresses[0])[0]
    return OwnName(host, addresses, back)


def _interfaces() -> tuple[Interface, ...]:
    from holdfast.transport.addresses import interface_addresses

    return tuple(
        Interface(found.interface, found.address, found.is_loopback)
        for found in interface_addresses()
        if found.is_usable
    )[:256]


def _way_to(meeting: MeetingEndpoint) -> Way | None:
    if meeting.host is not None:
        return _way(meeting.host)
    return _way_to_servers(meeting.servers) if meeting.servers else None


def _way_to_servers(servers: tuple[Endpoint, ...]) -> Way:
    """One of them that answers is enough."""
    from holdfast.transport.resolving import addresses_within

    text = cut(",".join(map(str, servers)), LINE_MOST)
    problem, shown = "", []
    for server in servers:
        try:
            addresses = addresses_within(server, RESOLVING_S)
        except OSError as error:
            problem = problem or error.strerror or str(error)
            continue
        shown += [str(address.sockaddr[0]) for address in addresses]
        problem = _dialled(addresses)
        if not problem:
            return Way(text, tuple(dict.fromkeys(shown))[:64], answers=True, must_answer=True)
    found = tuple(dict.fromkeys(shown))[:64]
    return Way(text, found, must_answer=True, problem=cut(problem or "nobody answers", LINE_MOST))


def _way(endpoint: Endpoint) -> Way:
    """Resolve, see whether it is here, and then listen or dial."""
    from holdfast.transport import own_endpoint
    from holdfast.transport.resolving import addresses_within

    text = str(endpoint)
    try:
        addresses = addresses_within(endpoint, RESOLVING_S)
    except OSError as error:
        return Way(text, problem=cut(error.strerror or str(error) or "it does not resolve"))
    shown = tuple(dict.fromkeys(str(address.sockaddr[0]) for address in addresses))[:64]
    if not addresses:
        return Way(text, problem="it does not resolve")
    is_here = own_endpoint.location_of(addresses).is_here
    if is_here:
        try:
            server = own_endpoint.try_to_host(endpoint, None, addresses)
        except UsageError as error:
            return Way(text, shown, True, problem=cut(error.message))
        if server is not None:
            server.close()
            return Way(text, shown, True, answers=False)
    problem = _dialled(addresses)
    if not problem:
        return Way(text, shown, is_here, answers=True)
    return Way(text, shown, is_here, problem=cut(problem, LINE_MOST))


def _dialled(addresses: list[Address]) -> str:
    """Why nobody answers at any of them; empty where somebody does."""
    problem = "it does not resolve"
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

_BLOCK = 32 << 20
_LOOPS = 300_000


def _speed() -> Speed:
    return Speed(_memory_speed(), _loopback_speed(), _compute())


def _memory_speed() -> float:
    source, target = bytes(_BLOCK), bytearray(_BLOCK)
    took = []
    for _ in range(4):  # The first time pages are made; and others run here, too: the best counts.
        begun = time.perf_counter()
        target[:] = source
        took.append(time.perf_counter() - begun)
    return _BLOCK / max(min(took), 1e-9)


def _loopback_speed() -> float | None:
    import threading

    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname())
            receiver = server.accept()[0]
    except OSError:
        return None
    with sender, receiver:
        receiver.settimeout(10.0)
        thread = threading.Thread(target=_send, args=(sender,), daemon=True)
        begun, left = time.perf_counter(), _BLOCK
        thread.start()
        try:
            while left > 0 and (block := receiver.recv(1 << 20)):
                left -= len(block)
        except OSError:
            return None
        finally:
            thread.join(1.0)
        return (_BLOCK - left) / max(time.perf_counter() - begun, 1e-9)


def _send(sender: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sender.sendall(bytes(_BLOCK))
        sender.shutdown(socket.SHUT_WR)


def _compute() -> float:
    """Integers in a loop: slow machines and throttled containers show, accelerators do not."""
    took = []
    for _ in range(3):
        begun, total = time.perf_counter(), 0
        for number in range(_LOOPS):
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
