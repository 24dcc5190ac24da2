"""Counting accelerators, on machines made of plain files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.processes.host import accelerators
from holdfast.processes.host.accelerators import Kind, count, visible

INTEGRATED = "0000:00:02.0"


class Machine:
    """A file system with the traces that drivers leave in a real one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def nvidia(self, *numbers: int) -> None:
        for name in ("ctl", "-uvm", "-modeset", *map(str, numbers)):
            self.put(f"dev/nvidia{name}")

    def amd(self, *identities: int) -> None:
        self.put("dev/kfd")
        for node, identity in enumerate((0, *identities)):
            self.put(f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id", f"{identity}\n")

    def render(self, number: int, vendor: str, slot: str) -> None:
        self.put(f"dev/dri/renderD{number}")
        self.put(f"sys/class/drm/renderD{number}/device/vendor", f"{vendor}\n")
        uevent = f"DRIVER=x\nPCI_SLOT_NAME={slot}\nMODALIAS=y\n"
        self.put(f"sys/class/drm/renderD{number}/device/uevent", uevent)

    def nvidia_smi(self, script: str) -> str:
        """Install a tool of that name; returns the PATH that finds it."""
        self.put("bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
        (self.root / "bin/nvidia-smi").chmod(0o755)
        return f"{self.root / 'bin'}:{os.environ['PATH']}"

    def count(self, kind: Kind, **environ: str) -> tuple[int, str]:
        found = count(kind, environ, self.root)
        return found.number, found.kind


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(accelerators, "_NVIDIA_SMI_PATIENCE_S", 60.0)
    return Machine(tmp_path)


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


# --- CPUs ---------------------------------------------------------------------------------


def test_cpus_are_those_that_this_process_may_use(one_cpu: None) -> None:
    found = count("cpu", {})
    assert (found.number, found.kind) == (1, "cpu")
    assert "1 worker, for the one CPU that this process may use" in found.explanation


def test_auto_falls_back_to_cpus_and_says_why(machine: Machine) -> None:
    found = count("auto", {}, machine.root)
    assert found.kind == "cpu"
    assert found.number == len(os.sched_getaffinity(0))
    for reason in ("may use: ", "no NVIDIA GPU", "no AMD GPU", "no Intel GPU"):
        assert reason in found.explanation


def test_hidden_gpus_are_the_reason_for_the_fall_back(machine: Machine) -> None:
    machine.nvidia(0, 1)
    found = count("auto", {"CUDA_VISIBLE_DEVICES": ""}, machine.root)
    assert found.kind == "cpu"
    assert "CUDA_VISIBLE_DEVICES='' hides every NVIDIA GPU (2 in /dev)" in found.explanation


@pytest.mark.parametrize("kind", ["gpu", "xpu"])
def test_a_demanded_accelerator_that_is_missing_is_an_error(machine: Machine, kind: Kind) -> None:
    with pytest.raises(UsageError) as caught:
        count(kind, {}, machine.root)
    assert f"--nproc-per-node {kind}, but there is none" in caught.value.message
    assert "--nproc-per-node cpu" in caught.value.hint


# --- NVIDIA -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpu", "auto"])
def test_device_files_are_counted(machine: Machine, kind: Kind) -> None:
    machine.nvidia(0, 1, 2, 10)
    found = count(kind, {}, machine.root)
    assert (found.number, found.kind) == (4, "cuda")
    assert found.explanation == "4 workers, one per NVIDIA GPU (4 in /dev)"


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("0", 1),
        ("0,1", 2),
        ("3, 1 ,2", 3),
        ("0,1,9,2", 2),
        ("0,-1,1", 1),
        ("0,,1", 1),
        ("1gpu,2ampere", 2),
        ("+1,2", 2),
        ("GPU-aaaa,GPU-bbbb", 2),
        ("GPU-aaaa,1", 1),
        ("MIG-GPU-1/0/0,MIG-GPU-1/1/0", 2),
    ],
)
def test_the_list_of_visible_devices_is_read_as_cuda_does(
    machine: Machine, listing: str, expected: int
) -> None:
    machine.nvidia(0, 1, 2, 3)
    found = count("gpu", {"CUDA_VISIBLE_DEVICES": listing}, machine.root)
    assert found.number == expected
    assert f"CUDA_VISIBLE_DEVICES={listing} of 4 in /dev" in found.explanation


@pytest.mark.parametrize("listing", ["", " ", "-1", "9", "none", "0,0", "GPU-a,GPU-a", "1,0,1"])
def test_a_list_that_names_nothing_hides_everything(machine: Machine, listing: str) -> None:
    machine.nvidia(0, 1, 2, 3)
    with pytest.raises(UsageError, match="hides every NVIDIA GPU"):
        count("gpu", {"CUDA_VISIBLE_DEVICES": listing}, machine.root)


def test_a_list_without_devices_makes_none(machine: Machine) -> None:
    assert machine.count("auto", CUDA_VISIBLE_DEVICES="0,1")[1] == "cpu"


def test_the_entries_that_take_effect_are_returned_in_their_order() -> None:
    assert visible("3,1,07", 8) == ("3", "1", "7")


def test_nvidia_smi_is_asked_where_the_driver_shows_no_device_files(machine: Machine) -> None:
    machine.put("dev/dxg")
    path = machine.nvidia_smi(
        'test "$1" = -L || exit 9\n'
        'echo "GPU 0: NVIDIA RTX (UUID: GPU-1)"\necho "  MIG 1g.5gb Device 0: (UUID: MIG-1)"\n'
        'echo "GPU 1: NVIDIA RTX (UUID: GPU-2)"'
    )
    found = count("gpu", {"PATH": path}, machine.root)
    assert (found.number, found.kind) == (2, "cuda")
    assert "2 by nvidia-smi" in found.explanation
    assert machine.count("gpu", PATH=path, CUDA_VISIBLE_DEVICES="1") == (1, "cuda")


def test_nvidia_smi_is_not_asked_where_the_device_files_answer(machine: Machine) -> None:
    asked = machine.root / "asked"
    path = machine.nvidia_smi(f'touch {asked}; echo "GPU 0: x"')
    assert machine.count("auto", PATH=path)[1] == "cpu"
    machine.nvidia(0, 1)
    assert machine.count("auto", PATH=path) == (2, "cuda")
    assert not asked.exists()


def test_nvidia_smi_that_fails_has_found_nothing(machine: Machine) -> None:
    machine.put("dev/nvidiactl")
    path = machine.nvidia_smi("echo 'NVIDIA-SMI has failed'; exit 9")
    assert machine.count("auto", PATH=path)[1] == "cpu"
    machine.put("bin/nvidia-smi", "not a program")
    assert machine.count("auto", PATH=path)[1] == "cpu"
    assert machine.count("auto", PATH="/nowhere")[1] == "cpu"


def test_nvidia_smi_that_hangs_is_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put("dev/nvidiactl")
    monkeypatch.setattr(accelerators, "_NVIDIA_SMI_PATIENCE_S", 0.05)
    path = machine.nvidia_smi("echo 'GPU 0: x'; exec sleep 600")
    assert machine.count("auto", PATH=path)[1] == "cpu"


# --- AMD ----------------------------------------------------------------------------------


def test_amd_gpus_are_the_nodes_with_an_identity(machine: Machine) -> None:
    machine.amd(4711, 4712, 4713)
    assert machine.count("gpu") == (3, "rocm")
    assert machine.count("auto") == (3, "rocm")


def test_an_amd_node_kept_from_the_container_does_not_count(machine: Machine) -> None:
    machine.amd(4711)
    machine.put("sys/class/kfd/kfd/topology/nodes/7/name", "gpu_id is unreadable here")
    assert machine.count("gpu") == (1, "rocm")


def test_a_topology_without_the_device_is_of_no_use(machine: Machine) -> None:
    machine.amd(4711)
    (machine.root / "dev/kfd").unlink()
    assert machine.count("auto")[1] == "cpu"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"HIP_VISIBLE_DEVICES": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1,2"}, 1),
    ],
)
def test_rocr_narrows_first_and_hip_within_it(
    machine: Machine, environ: dict[str, str], expected: int
) -> None:
    machine.amd(1, 2, 3, 4)
    assert machine.count("gpu", **environ) == (expected, "rocm")


def test_nvidia_goes_before_amd(machine: Machine) -> None:
    machine.amd(1, 2, 3)
    machine.nvidia(0)
    assert machine.count("gpu") == (1, "cuda")


# --- Intel --------------------------------------------------------------------------------


def test_discrete_intel_gpus_are_counted_and_others_are_not(machine: Machine) -> None:
    machine.render(128, "0x8086", INTEGRATED)
    machine.render(129, "0x8086", "0000:3a:00.0")
    machine.render(130, "0x8086", "0000:9a:00.0")
    machine.render(131, "0x1002", "0000:aa:00.0")
    assert machine.count("xpu") == (2, "xpu")
    assert machine.count("auto") == (2, "xpu")


def test_an_integrated_gpu_is_taken_only_where_it_is_asked_for(machine: Machine) -> None:
    machine.render(128, "0x8086", INTEGRATED)
    assert machine.count("xpu") == (1, "xpu")
    assert machine.count("auto")[1] == "cpu"


@pytest.mark.parametrize(("mask", "expected"), [("", 2), ("1", 1), ("0.0,0.1,1.0", 3), ("0,0", 1)])
def test_the_affinity_mask_names_cards_or_tiles(machine: Machine, mask: str, expected: int) -> None:
    machine.render(128, "0x8086", "0000:3a:00.0")
    machine.render(129, "0x8086", "0000:9a:00.0")
    assert machine.count("xpu", ZE_AFFINITY_MASK=mask) == (expected, "xpu")


def test_a_mask_without_devices_makes_none(machine: Machine) -> None:
    with pytest.raises(UsageError, match="no integrated Intel GPU"):
        count("xpu", {"ZE_AFFINITY_MASK": "0"}, machine.root)
