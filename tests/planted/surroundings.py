"""What a planted failure needs around it: a small disk, a control group, a file that is missing.

Each is a context manager that is given the stage before its job starts, and takes away what it
made. What this machine cannot make is said with `NotHere`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..integration import disks
from .staging import Stage

Surroundings = AbstractContextManager[None]
GROUPS = Path("/sys/fs/cgroup")
LITTLE = 64 << 20


class NotHere(Exception):
    """This machine cannot make it, and why."""


@contextmanager
def no_surroundings(stage: Stage) -> Iterator[None]:
    yield


@contextmanager
def talkative_collectives(stage: Stage) -> Iterator[None]:
    """PyTorch compares what each rank calls."""
    stage.variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    yield


def on_others_only(path: str) -> Callable[[Stage], Surroundings]:
    """A file that every host has but the culprit's."""

    @contextmanager
    def make(stage: Stage) -> Iterator[None]:
        for name, home in stage.homes.items():
            if name != stage.culprit_host:
                (home / path).parent.mkdir(exist_ok=True)
                (home / path).write_text("")
        yield

    return make


@contextmanager
def small_disk(stage: Stage) -> Iterator[None]:
    """A file system of 64 KiB on the culprit's host."""
    place = stage.culprit_home / "disk"
    place.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place))
    stage.variables["PLANTED_DISK"] = str(place)
    try:
        yield
    finally:
        _run("umount", "-l", str(place))


@contextmanager
def stalling_disk(stage: Stage) -> Iterator[None]:
    """A disk of the culprit's that stops to answer once it is about to write there."""
    import threading

    with disks.stalling_disk(stage.culprit_home, 16) as disk:
        stage.variables["PLANTED_DISK"] = str(disk.folder)

        def stall() -> None:
            stage.until((stage.culprit_home / "writes").exists, "a worker that writes")
            disk.stall()
            (stage.culprit_home / "stalled").touch()

        holder = threading.Thread(target=stall)
        holder.start()
        try:
            yield
        finally:
            holder.join()
            disk.answer()
            stage.end()


@contextmanager
def an_older_library(stage: Stage) -> Iterator[None]:
    """All hosts have the library, the culprit's an older one that lacks something."""
    for name, home in stage.homes.items():
        is_old = name == stage.culprit_host
        (home / "library").mkdir()
        (home / "library" / f"layers-{1 if is_old else 2}.0.dist-info").mkdir()
        has = "" if is_old else "def fused_attention(): pass\n"
        (home / "library" / "layers.py").write_text(has)
    stage.variables["PYTHONPATH"] = "library"
    yield


@contextmanager
def a_file_for_logs(stage: Stage) -> Iterator[None]:
    """Where the logs should be is a file."""
    (stage.culprit_home / "logs").write_text("")
    yield


def a_certificate(not_before: str, not_after: str) -> Callable[[Stage], Surroundings]:
    """Of a server, good between these dates only (YYYYMMDD)."""

    @contextmanager
    def make(stage: Stage) -> Iterator[None]:
        if shutil.which("openssl") is None:
            raise NotHere("needs openssl")
        folder = stage.folder / "certificates"
        folder.mkdir()
        (folder / "index.txt").touch()
        (folder / "openssl.cnf").write_text(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\nnew_certs_dir = .\n"
            "rand_serial = yes\ndefault_md = sha256\npolicy = any\nx509_extensions = names\n"
            "[any]\ncommonName = supplied\n[names]\nsubjectAltName = DNS:localhost\n"
            "basicConstraints = CA:TRUE\n[req]\ndistinguished_name = none\n[none]\n"
        )
        ours = ("-config", "openssl.cnf")
        asked = ("-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "asked.pem")
        dates = ("-startdate", f"{not_before}000000Z", "-enddate", f"{not_after}000000Z")
        signed = ("-selfsign", "-keyfile", "key.pem", "-in", "asked.pem", "-out", "server.pem")
        _run("openssl", "req", "-new", *ours, *asked, "-subj", "/CN=localhost", folder=folder)
        _run("openssl", "ca", "-batch", *ours, *signed, *dates, folder=folder)
        stage.variables["PLANTED_CERTIFICATE"] = str(folder / "server.pem")
        stage.variables["PLANTED_KEY"] = str(folder / "key.pem")
        yield

    return make


@contextmanager
def an_empty_folder(stage: Stage) -> Iterator[None]:
    """Of the culprit's; the others have data."""
    for name, home in stage.homes.items():
        (home / "shards").mkdir()
        if name != stage.culprit_host:
            (home / "shards" / "0001.bin").touch()
    yield


@contextmanager
def other_settings(stage: Stage) -> Iterator[None]:
    """The culprit's host is told something else about the job than the others."""
    stage.options_of[stage.culprit_host] = ("--max-restarts=7",)
    yield


@contextmanager
def a_taken_port(stage: Stage) -> Iterator[None]:
    """Somebody listens where rank 0 is told to."""
    with socket.create_server(("", 0)) as taken:
        stage.more_options = (f"--master-port={taken.getsockname()[1]}",)
        yield


@contextmanager
def full_shared_memory(stage: Stage) -> Iterator[None]:
    """A /dev/shm of 1 MiB, as in a container, for everything below each agent."""
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    if shutil.which("unshare") is None:
        raise NotHere("needs unshare")
    stage.prefix = ("unshare", "--mount", "sh", "-c", mount, "sh")
    yield


@contextmanager
def little_memory(stage: Stage) -> Iterator[None]:
    """A control group of 64 MiB, for the culprit to go into."""
    with _group("memory", "memory.limit_in_bytes", "memory.max", str(LITTLE)) as group:
        stage.variables["PLANTED_GROUP"] = str(group)
        yield


@contextmanager
def few_processes(stage: Stage) -> Iterator[None]:
    with _group("pids", "pids.max", "pids.max", "8") as group:
        stage.variables["PLANTED_PIDS"] = str(group)
        yield


@contextmanager
def _group(controller: str, first: str, second: str, value: str) -> Iterator[Path]:
    """A control group with a limit, in either version of them."""
    if (GROUPS / controller).is_dir():
        group, limit = GROUPS / controller, first
    elif controller in _delegated():
        group, limit = GROUPS, second
    else:
        raise NotHere(f"needs control groups with {controller}")
    group = group / f"holdfast-planted-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / limit).write_text(value)
    except OSError as error:
        raise NotHere(f"control groups cannot be made here: {error}") from None
    try:
        yield group
    finally:
        group.rmdir()


def _delegated() -> list[str]:
    try:
        return (GROUPS / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


def _run(*words: str, folder: Path | None = None) -> None:
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotHere(f"{' '.join(words)}: {ended.stderr.strip()}")
