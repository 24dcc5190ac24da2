"""How many accelerators this machine has for us, found without PyTorch.

- What is there is read from device files and sysfs. `nvidia-smi -L` is asked only where the driver
  is present but its device files are not, as under WSL.
- The variables with which users hide devices are honoured as the drivers do. CUDA stops reading its
  list at the first entry that names no device, and takes a list with a repetition for an empty one.
- `gpu` is what PyTorch calls `cuda`: NVIDIA, else AMD. `xpu` is Intel. `auto` tries all of
  them and falls back to the CPUs that this process may run on. An Intel GPU that is part of
  the processor counts for `xpu` where nothing better is there, and never for `auto`.
- Every answer says in words what was counted, and why nothing else was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from holdfast.core.protocol.errors import UsageError

Kind = Literal["auto", "gpu", "xpu", "cpu"]

_NVIDIA_DRIVER_SIGNS = ("dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
_NVIDIA_SMI_PATIENCE_S = 10.0
_INTEL = "0x8086"
_INTEL_INTEGRATED_SLOT = "0000:00:02.0"  # the processor's own GPU always sits here
_UUID_PREFIXES = ("GPU-", "MIG-")


class AcceleratorsFound(Struct, frozen=True):
    """An answer: `number` of `kind` (cuda, rocm, xpu or cpu)."""

    number: int
    kind: str
    explanation: str


class _Devices(Struct, frozen=True):
    """What one vendor's search came to. `words` says where from, or why there are none."""

    number: int
    kind: str
    name: str
    words: str


def count(kind: Kind, environ: Mapping[str, str], root: Path = Path("/")) -> AcceleratorsFound:
    """Count what `kind` asks for, or raise `UsageError` where an accelerator is demanded
    and none is there. `root` is where the file system is looked at."""
    if kind == "cpu":
        return _cpus("")
    missing = []
    for search in _SEARCHES[kind]:
        devices = search(environ, root)
        if devices.number:
            workers = "1 worker" if devices.number == 1 else f"{devices.number} workers"
            words = f"{workers}, one per {devices.name} ({devices.words})"
            return AcceleratorsFound(devices.number, devices.kind, words)
        missing.append(devices.words)
    reasons = ", ".join(missing)
    if kind == "auto":
        return _cpus(f": {reasons}")
    raise UsageError(
        f"--nproc-per-node {kind}, but there is none: {reasons}",
        "--nproc-per-node cpu, or a number, starts workers without one",
    )


def visible(listing: str, present: int) -> tuple[str, ...]:
    """The entries of a list such as `CUDA_VISIBLE_DEVICES` that take effect.

    Indices count up to the first that is not one of `present` devices; identifiers cannot
    be checked here and count while they are of the first one's sort.
    """
    entries = [entry.strip() for entry in listing.split(",")]
    prefix = next((mark for mark in _UUID_PREFIXES if entries[0].startswith(mark)), None)
    taken: list[str] = []
    for entry in entries:
        digits = re.match(r"\+?(\d+)", entry)
        if prefix is not None and entry.startswith(prefix):
            taken.append(entry)
        elif prefix is None and digits and int(digits[1]) < present:
            taken.append(str(int(digits[1])))
        else:
            break
    return () if len(set(taken)) < len(taken) else tuple(taken)


def _cpus(why: str) -> AcceleratorsFound:
    number = len(os.sched_getaffinity(0))
    workers = "1 worker, for the one CPU" if number == 1 else f"{number} workers, one per CPU"
    return AcceleratorsFound(number, "cpu", f"{workers} that this process may use{why}")


def _nvidia(environ: Mapping[str, str], root: Path) -> _Devices:
    present = len(_names(root / "dev", r"nvidia\d+"))
    words = f"{present} in /dev"
    if not present and any((root / sign).exists() for sign in _NVIDIA_DRIVER_SIGNS):
        present = _ask_nvidia_smi(environ)
        words = f"{present} by nvidia-smi"
    return _narrowed(
        _Devices(present, "cuda", "NVIDIA GPU", words if present else "no NVIDIA GPU"),
        environ,
        "CUDA_VISIBLE_DEVICES",
    )


def _ask_nvidia_smi(environ: Mapping[str, str]) -> int:
    """Count by the driver's own tool; 0 if it is not there, fails, or does not answer."""
    import subprocess

    path = environ.get("PATH", os.defpath)
    try:
        asked = subprocess.run(
            ["nvidia-smi", "-L"], env={**environ, "PATH": path}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_NVIDIA_SMI_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(re.findall(r"^GPU \d+:", asked.stdout, re.MULTILINE))


def _amd(environ: Mapping[str, str], root: Path) -> _Devices:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    present = 0
    if (root / "dev/kfd").exists():
        # CPUs are nodes too, with the id 0; devices kept from a container are unreadable.
        identities = [_read(nodes / name / "gpu_id") for name in _names(nodes, r"\d+")]
        present = sum(1 for identity in identities if identity not in ("", "0"))
    devices = _Devices(present, "rocm", "AMD GPU", f"{present} in /sys/class/kfd")
    if not present:
        return _Devices(0, "rocm", "AMD GPU", "no AMD GPU")
    devices = _narrowed(devices, environ, "ROCR_VISIBLE_DEVICES")
    variable = next(
        (name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if name in environ), ""
    )
    return _narrowed(devices, environ, variable)


def _intel_all(environ: Mapping[str, str], root: Path) -> _Devices:
    discrete = _intel_discrete(environ, root)
    if discrete.number:
        return discrete
    return _intel(environ, len(_intel_slots(root)), "integrated Intel GPU")


def _intel_discrete(environ: Mapping[str, str], root: Path) -> _Devices:
    slots = [slot for slot in _intel_slots(root) if slot != _INTEL_INTEGRATED_SLOT]
    return _intel(environ, len(slots), "Intel GPU")


def _intel_slots(root: Path) -> list[str]:
    """The PCI slots of the Intel GPUs whose render node is there for us to open."""
    slots = []
    for name in _names(root / "dev/dri", r"renderD\d+"):
        device = root / "sys/class/drm" / name / "device"
        if _read(device / "vendor") == _INTEL:
            slot = re.search(r"^PCI_SLOT_NAME=(\S+)", _read(device / "uevent"), re.MULTILINE)
            slots.append(slot[1] if slot else name)
    return slots


def _intel(environ: Mapping[str, str], present: int, name: str) -> _Devices:
    """Apply `ZE_AFFINITY_MASK`, whose entries may also be tiles (`0.1`), of which a card has
    several: so its own number of entries is the answer. An empty mask hides nothing."""
    if not present:
        return _Devices(0, "xpu", name, f"no {name}")
    mask = {entry.strip() for entry in environ.get("ZE_AFFINITY_MASK", "").split(",")} - {""}
    if not mask:
        return _Devices(present, "xpu", name, f"{present} in /dev/dri")
    listing = environ["ZE_AFFINITY_MASK"]
    return _Devices(len(mask), "xpu", name, f"ZE_AFFINITY_MASK={listing} of {present} in /dev/dri")


def _narrowed(devices: _Devices, environ: Mapping[str, str], variable: str) -> _Devices:
    """Leave only the devices that the variable, if it is set, lets through."""
    listing = environ.get(variable)
    if listing is None or not devices.number:
        return devices
    number = len(visible(listing, devices.number))
    if not number:
        why = f"{variable}={listing!r} hides every {devices.name} ({devices.words})"
        return _Devices(0, devices.kind, devices.name, why)
    words = f"{variable}={listing} of {devices.words}"
    return _Devices(number, devices.kind, devices.name, words)


def _names(directory: Path, pattern: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if re.fullmatch(pattern, name))
    except OSError:
        return []


def _read(path: Path) -> str:
    """The text of a small file; empty where it cannot be read, which here means not ours."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_Search = Callable[[Mapping[str, str], Path], _Devices]
_SEARCHES: Mapping[str, tuple[_Search, ...]] = {
    "gpu": (_nvidia, _amd),
    "xpu": (_intel_all,),
    "auto": (_nvidia, _amd, _intel_discrete),
}
