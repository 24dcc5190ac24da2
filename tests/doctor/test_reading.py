"""Facts are read from the real machine, and what is really wrong with it shows."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.policy.config import JobConfig, Program, Rendezvous
from holdfast.doctor import machine, reading
from holdfast.doctor.facts import MachineFacts, Wanted, Way

from ..free_ports import free_port


def test_what_is_read_can_be_sent_and_judged() -> None:
    facts = reading.read(os.environ)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=MachineFacts) == facts
    assert facts.python == sys.version.split()[0]
    assert facts.names.host == socket.gethostname()
    assert any(one.loopback for one in facts.interfaces)
    assert facts.compute_s
    assert facts.memory_free_bytes
    machine.judge(facts, Wanted())


def test_pytorch_is_not_imported_for_its_version() -> None:
    code = "import os, sys; from holdfast.doctor import reading; reading.read(os.environ); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_secret_is_among_the_variables() -> None:
    environ = {"HOLDFAST_TOKEN": "x", "NCCL_DEBUG": "INFO", "PET_PASSWORD": "y", "HOME": "/"}
    assert reading.telling_variables(environ) == {"NCCL_DEBUG": "INFO"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.root
def test_a_disk_that_is_nearly_full_is_seen(small_disk: Path) -> None:
    (found,) = machine.room(reading.disk("logs", str(small_disk / "to" / "come")))
    assert (found.level, found.what) == ("error", f"{small_disk}/to/come (logs) has 12 MB left")
    with pytest.raises(OSError, match="No space"), (small_disk / "all").open("wb") as file:
        file.write(bytes(13 << 20))
    (found,) = machine.room(reading.disk("logs", str(small_disk)))
    assert "cannot be written to: No space left on device" in found.what


@pytest.mark.root
def test_a_disk_that_may_only_be_read_is_seen(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    (found,) = machine.room(reading.disk("logs", str(small_disk)))
    assert "Read-only file system" in found.what


def test_a_low_limit_is_seen() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        facts = reading.read(os.environ)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert facts.limits.open_files == 200
    assert any("200 open files" in one.what for one in machine.limits(facts.limits, Wanted()))


def way_to(endpoint: str, backend: str) -> Way | None:
    meets = Rendezvous(backend, endpoint)
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2, rendezvous=meets)
    return reading.read(os.environ, meeting=reading.meeting_endpoint(config)).way


def test_a_name_that_means_nothing_is_seen() -> None:
    way = way_to("no-such-host.invalid:29400", "holdfast")
    assert way is not None
    (found,) = machine.way(way)
    assert found.what.startswith("no-such-host.invalid:29400 does not resolve here")


def test_an_endpoint_here_can_be_listened_at_or_somebody_is_there() -> None:
    port = free_port()
    way = way_to(f"127.0.0.1:{port}", "holdfast")
    assert way is not None
    assert (way.is_here, way.answers, list(machine.way(way))) == (True, False, [])
    with socket.create_server(("127.0.0.1", port)):
        way = way_to(f"127.0.0.1:{port}", "holdfast")
    assert way is not None
    assert (way.is_here, way.answers, list(machine.way(way))) == (True, True, [])


def test_one_server_of_etcd_that_answers_is_enough_and_none_is_too_few() -> None:
    gone = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[1]
        way = way_to(f"127.0.0.1:{gone},127.0.0.1:{there}", "etcd")
    assert way is not None
    assert (way.answers, list(machine.way(way))) == (True, [])
    way = way_to(f"127.0.0.1:{gone}", "etcd")
    assert way is not None
    (found,) = machine.way(way)
    assert found.what == f"127.0.0.1:{gone} (127.0.0.1) cannot be reached: Connection refused"


def test_a_folder_to_meet_in_must_be_written_to() -> None:
    meets = Rendezvous("file", "/proc/self/meet")
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2, rendezvous=meets)
    facts = reading.read(os.environ, meeting=reading.meeting_endpoint(config))
    (meeting,) = (disk for disk in facts.disks if disk.use == "meeting")
    (found,) = machine.room(meeting)
    assert "/proc/self/meet" in found.what
    assert found.level == "error"
