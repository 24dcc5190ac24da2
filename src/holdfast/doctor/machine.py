"""Judging one machine: facts go in, findings come out, and nothing is read here.

Rules
1. An *error* is what a job fails or hangs of for certain. Whatever may only be slow, or is wrong
   for some jobs, is a *warning*: only errors keep a node from a job.
2. What is not known is no finding.
3. A finding says what was seen, with its number, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.doctor.facts import (
    DiskRoom,
    Kernel,
    Limits,
    MachineFacts,
    OwnName,
    Wanted,
    Way,
)
from holdfast.doctor.findings import Finding

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30
DISK_LEAST = 64 * MEGABYTE
DISK_COMFORT = GIGABYTE
FILES_LEAST = 1000
SHARED_LEAST = 64 * MEGABYTE
"""The default of containers; data loaders and NCCL pass their data through it."""
SHARED_COMFORT = GIGABYTE
MEMORY_LEAST = 256 * MEGABYTE
OPEN_FILES_LEAST = 256
OPEN_FILES_COMFORT = 4096
PROCESSES_LEAST = 64
PROCESSES_COMFORT = 1024
LOCKED_COMFORT = 64 * MEGABYTE
CLOCK_EARLIEST = 1_735_689_600.0
"""The first of 2025: a clock before that was never set."""
CLOCK_LATEST = 4_102_444_800.0
COMPUTE_SLOW_S = 1.0
LEFT_OVER = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")


def judge(facts: MachineFacts, wanted: Wanted) -> list[Finding]:
    """Everything that is not as it should be."""
    found: list[Finding] = []
    for disk in facts.disks:
        found += shared_memory(disk) if disk.use == "shared memory" else room(disk)
    found += memory(facts.memory_bytes, facts.memory_free_bytes)
    found += clock(facts.clock)
    found += limits(facts.limits, wanted)
    found += kernel(facts.kernel)
    found += variables(facts.variables, {one.name for one in facts.interfaces})
    found += accelerators(facts, wanted)
    found += speed(facts.compute_s)
    if wanted.several_nodes:
        found += own_name(facts.names)
        found += addresses(facts)
    if facts.way is not None:
        found += way(facts.way)
    return found


def error(what: str, fix: str) -> Finding:
    return Finding("error", what, fix)


def warning(what: str, fix: str) -> Finding:
    return Finding("warning", what, fix)


# Room.


def room(disk: DiskRoom) -> Iterator[Finding]:
    where = f"{disk.path} ({disk.use})"
    if disk.problem:
        yield error(f"{where} cannot be written to: {disk.problem}", _elsewhere(disk))
    elif disk.free_bytes < DISK_LEAST:
        yield error(f"{where} has {size(disk.free_bytes)} left", _elsewhere(disk))
    elif disk.free_files is not None and disk.free_files < FILES_LEAST:
        yield error(f"{where} has room for {disk.free_files} more files", _elsewhere(disk))
    elif disk.free_bytes < DISK_COMFORT:
        yield warning(f"{where} has {size(disk.free_bytes)} left", _elsewhere(disk))


def _elsewhere(disk: DiskRoom) -> str:
    options = {"logs": "--log-dir", "meeting": "--rdzv-endpoint"}
    option = options.get(disk.use, "TMPDIR")
    return f"make room there, or name another folder with {option}"


def shared_memory(disk: DiskRoom) -> Iterator[Finding]:
    bigger = "give it more: `mount -o remount,size=8G /dev/shm`, in a container --shm-size=8g"
    if disk.problem:
        yield error(f"/dev/shm cannot be written to: {disk.problem}", bigger)
    elif disk.total_bytes <= SHARED_LEAST or disk.free_bytes < SHARED_LEAST:
        left = f"{size(disk.free_bytes)} of {size(disk.total_bytes)}"
        what = f"shared memory (/dev/shm) has {left} left: data loaders and NCCL die of a bus error"
        yield warning(what, bigger)
    elif disk.free_bytes < SHARED_COMFORT:
        yield warning(f"shared memory (/dev/shm) has {size(disk.free_bytes)} left", bigger)


def memory(total: int | None, free: int | None) -> Iterator[Finding]:
    if free is not None and free < MEMORY_LEAST:
        all_of_it = "" if total is None else f" of {size(total)}"
        what = f"{size(free)}{all_of_it} of memory are free: the kernel will kill workers"
        yield error(what, "end what uses it (`ps aux --sort -rss | head`), or allow more")


# Time.


def clock(wall: float) -> Iterator[Finding]:
    if not CLOCK_EARLIEST < wall < CLOCK_LATEST:
        import time

        shown = time.strftime("%Y-%m-%d", time.gmtime(max(0.0, min(wall, 1e11))))
        what = f"the clock says {shown}: certificates and downloads will be refused"
        yield error(what, "set it: `timedatectl set-ntp true`, or `date -s …`")


# Limits and the kernel.


def limits(known: Limits, wanted: Wanted) -> Iterator[Finding]:
    files = known.open_files
    needed = OPEN_FILES_LEAST + 16 * wanted.workers
    if files is not None and files < needed:
        hard = known.open_files_hard
        how = f"raise it: `ulimit -n {OPEN_FILES_COMFORT}`"
        if hard is not None and hard < OPEN_FILES_COMFORT:
            how = "raise the hard limit too: /etc/security/limits.conf, or LimitNOFILE= of the unit"
        what = f"{files} open files are allowed: {wanted.workers} workers need about {needed}"
        yield error(what, how)
    elif files is not None and files < OPEN_FILES_COMFORT:
        more = f"`ulimit -n {OPEN_FILES_COMFORT}`; data loaders and large jobs need more"
        yield warning(f"{files} open files are allowed", more)
    for allowed, how in (
        (known.processes, "raise it: `ulimit -u`, or /etc/security/limits.conf"),
        (known.cgroup_processes, "raise pids.max of the cgroup (in a container: --pids-limit)"),
    ):
        if allowed is not None and allowed < PROCESSES_LEAST + 8 * wanted.workers:
            yield error(f"{allowed} processes and threads are allowed", how)
        elif allowed is not None and allowed < PROCESSES_COMFORT:
            yield warning(f"{allowed} processes and threads are allowed", how)


def kernel(known: Kernel) -> Iterator[Finding]:
    if not known.subreaper:
        what = "this kernel has no subreaper: processes that workers detach may outlive the job"
        yield error(what, "Linux 3.4 or later is needed")
    if not known.pidfd:
        what = (
            "this kernel cannot pin processes (pidfd): a reused number could be killed by mistake"
        )
        yield warning(what, "Linux 5.3 or later has it; in a container its seccomp profile may not")
    if known.ptrace_scope == 3:
        what = "nobody may look into a process (ptrace_scope 3): py-spy cannot show native stacks"
        yield warning(
            what, "`sysctl kernel.yama.ptrace_scope=1`, after the next start of the machine"
        )


def accelerators(facts: MachineFacts, wanted: Wanted) -> Iterator[Finding]:
    if wanted.per_accelerator and facts.accelerators < wanted.workers:
        seen = facts.accelerators or "none"
        what = f"{wanted.workers} workers want an accelerator each, and {seen} can be seen"
        fix = f"{facts.accelerator_words or 'look at nvidia-smi'}; or start fewer workers"
        yield error(what, fix)
    locked = facts.limits.locked_memory_bytes
    if facts.accelerators and locked is not None and locked < LOCKED_COMFORT:
        what = f"{size(locked)} of memory may be locked: RDMA and pinned memory may be refused"
        yield warning(what, "`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the unit")


def speed(compute_s: float | None) -> Iterator[Finding]:
    if compute_s is not None and compute_s > COMPUTE_SLOW_S:
        what = f"a short computation took {compute_s:.1f} s where 0.05 s are usual"
        yield warning(what, "is the machine busy (`top`), or its processors limited or too hot?")


# The network.


def own_name(names: OwnName) -> Iterator[Finding]:
    if names.problem:
        what = f"the machine's own name does not resolve: {names.problem}"
        fix = "a line `ADDRESS NAME` in /etc/hosts, or --local-addr ADDRESS"
        yield warning(what, fix)
    elif names.addresses and all(is_loopback(one) for one in names.addresses):
        what = f"the machine's own name means {names.addresses[0]} there"
        fix = (
            "others must not be given it: Holdfast sends addresses, but libraries that look the "
            "name up (gloo) need GLOO_SOCKET_IFNAME, or another line in /etc/hosts"
        )
        yield warning(what, fix)


def addresses(facts: MachineFacts) -> Iterator[Finding]:
    if not any(not one.loopback for one in facts.interfaces):
        what = "no interface but loopback is up: no other machine can be reached"
        yield error(what, "look at `ip address`; in a container, at its network")


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def way(known: Way) -> Iterator[Finding]:
    if not known.addresses:
        what = f"{known.endpoint} does not resolve here: {known.problem}"
        fix = "name the endpoint by an address, or by a name that every node knows"
        yield error(what, fix)
    elif known.is_here and known.problem:
        fix = "end what listens there (`ss -ltnp`), or choose another port with --rdzv-endpoint"
        yield error(known.problem, fix)
    elif known.problem and (known.must_answer or "refused" not in known.problem.lower()):
        what = f"{known.endpoint} ({known.addresses[0]}) cannot be reached: {known.problem}"
        fix = "is that machine up, on this network, and its port not behind a firewall?"
        yield error(what, fix)


# The environment.


def variables(known: Mapping[str, str], interfaces: set[str]) -> Iterator[Finding]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        if value := known.get(name, ""):
            missing = _missing_interface(value, interfaces)
            if missing:
                there = ", ".join(sorted(interfaces)) or "none"
                what = f"{name}={value}, and there is no interface {missing} here"
                yield error(what, f"there are: {there}; unset it, or name one of these")
    left = [name for name in LEFT_OVER if name in known]
    if left:
        what = f"set in this shell, and left over from another job: {', '.join(left)}"
        yield warning(
            what, f"`unset {' '.join(left)}`; workers get their own, other programs do not"
        )
    if known.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield warning("CUDA_LAUNCH_BLOCKING is set: every kernel is waited for", "unset it")
    if known.get("NCCL_DEBUG", "").upper() in ("TRACE",):
        yield warning("NCCL_DEBUG=TRACE writes gigabytes of logs", "NCCL_DEBUG=WARN")
    if known.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield warning(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective, which is slow", "unset it"
        )
    threads = known.get("OMP_NUM_THREADS", "")
    if threads and not threads.replace(",", "").isdigit():
        yield warning(f"OMP_NUM_THREADS={threads} is no number", "OMP_NUM_THREADS=1, for instance")


def _missing_interface(value: str, there: set[str]) -> str:
    """The first interface of a list that is not there; NCCL takes prefixes, `=` and `^` too."""
    if value.startswith("^"):
        return ""
    exact = value.startswith("=")
    names = [name.partition(":")[0] for name in value.lstrip("=").split(",") if name]
    found = [
        name
        for name in names
        if any(one == name if exact else one.startswith(name) for one in there)
    ]
    return "" if found or not names else names[0]


def size(number: int) -> str:
    """In units that people use."""
    amount, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1024 or unit == "TB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
