"""The register in PyTorch's stores: who hosts, how long it lives, and what PyTorch sees of it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable
from holdfast.registers.torch_store import TorchStoreRegister

from ..free_ports import free_port

pytestmark = pytest.mark.torch

KEY = "holdfast/run%2F1"


def settings(endpoint: str | Path, *, patience_s: float = 20.0, **options: str) -> RegisterSettings:
    return RegisterSettings(
        "c10d", str(endpoint), "run/1", options,
        call_timeout_s=2 * patience_s, endpoint_timeout_s=patience_s,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def distributed() -> Any:
    """Imported, and used once, before descriptors are counted: some it opens for good."""
    import torch.distributed

    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return torch.distributed


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def opened() -> Iterator[Any]:
    registers: list[TorchStoreRegister] = []

    def open_one(endpoint: str | Path, **options: Any) -> TorchStoreRegister:
        registers.append(TorchStoreRegister(settings(endpoint, **options)))
        return registers[-1]

    yield open_one
    for register in registers:
        register.close()
    gc.collect()


# --- who hosts a TCPStore -----------------------------------------------------------------


@pytest.mark.thorough
def test_the_first_on_the_named_machine_hosts_and_others_use_it(endpoint: str, opened: Any) -> None:
    host, other = opened(endpoint), opened(endpoint, is_host="false")
    assert host.set_state(b"content")[2]
    assert other.get_state() == host.get_state()


def test_who_is_told_not_to_host_does_not(endpoint: str, opened: Any) -> None:
    with pytest.raises(RegisterUnreachable, match="does not answer"):
        opened(endpoint, is_host="false").get_state()


def test_another_machine_is_not_hosted(opened: Any) -> None:
    register = opened("192.0.2.1:29400")
    assert not register._store._is_hosting


def test_a_port_that_is_taken_is_refused_to_who_must_host(endpoint: str, opened: Any) -> None:
    opened(endpoint)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageError, match="cannot listen"),
    ):
        opened(f"127.0.0.1:{taken.getsockname()[1]}", is_host="true")


def test_the_store_lives_as_long_as_one_of_its_registers_here(endpoint: str, opened: Any) -> None:
    """One that replaces a register whose call hangs finds the store, and keeps it."""
    first, client = opened(endpoint), opened(endpoint, is_host="false")
    first.set_state(b"content")
    second = opened(endpoint)
    first.close()
    first.close()
    gc.collect()
    found = client.get_state()
    assert found is not None
    assert found[0] == b"content"
    second.close()
    gc.collect()
    with pytest.raises(RegisterUnreachable):
        client.get_state()
    assert opened(endpoint).get_state() is None


def test_a_client_does_not_import_pytorch(endpoint: str) -> None:
    program = (
        "import sys\n"
        "from holdfast.registers.register import *\n"
        "from holdfast.registers.torch_store import TorchStoreRegister\n"
        f"options = {{'store_type': 'tcp', 'is_host': 'false'}}\n"
        f"register = TorchStoreRegister(RegisterSettings('c10d', {endpoint!r}, 'run', options))\n"
        "try:\n"
        "    register.get_state()\n"
        "except RegisterUnreachable:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


def test_without_pytorch_the_host_is_told_so(
    endpoint: str, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(UsageError, match="PyTorch is needed where a TCPStore is hosted"):
        opened(endpoint)


# --- a real TCPStore ----------------------------------------------------------------------


def test_pytorch_finds_the_document_under_its_key(
    endpoint: str, opened: Any, distributed: Any
) -> None:
    register = opened(endpoint)
    token = register.set_state(b"content")[1]
    host, port = endpoint.split(":")
    client = distributed.TCPStore(
        host, int(port), is_master=False, timeout=timedelta(seconds=30), wait_for_workers=False
    )
    assert client.get(KEY) == token == b"Y29udGVudA=="
    assert client.compare_set(KEY, "Y29udGVudA==", "b3RoZXI=") == b"b3RoZXI="
    assert register.get_state() == (b"other", b"b3RoZXI=")
    assert register.set_state(b"third", token) == (b"other", b"b3RoZXI=", False)


def test_what_no_register_wrote_is_refused(endpoint: str, opened: Any, distributed: Any) -> None:
    register = opened(endpoint)
    host, port = endpoint.split(":")
    client = distributed.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    client.set(KEY, "not a document!")
    with pytest.raises(RegisterRefused, match="not a document"):
        register.get_state()


@pytest.mark.thorough
def test_a_paused_host_is_unreachable_until_it_goes_on(endpoint: str, opened: Any) -> None:
    program = (
        "import sys\n"
        "from holdfast.registers.register import *\n"
        "from holdfast.registers.torch_store import TorchStoreRegister\n"
        f"options = {{'store_type': 'tcp', 'is_host': 'true'}}\n"
        f"register = TorchStoreRegister(RegisterSettings('c10d', {endpoint!r}, 'x', options))\n"
        "print('serving', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == b"serving\n"
            old, new = (opened(endpoint, is_host="false", patience_s=0.5) for _ in range(2))
            _, token, _ = _eventually(lambda: old.set_state(b"content"))
            os.kill(host.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, host.pid, os.WSTOPPED)
            for register in (old, new):
                with pytest.raises(RegisterUnreachable):
                    register.get_state()
            os.kill(host.pid, signal.SIGCONT)
            for register in (old, new):
                assert _eventually(register.get_state) == (b"content", token)
        finally:
            host.kill()


def _eventually(call: Any) -> Any:
    for _ in range(60):
        try:
            return call()
        except RegisterUnreachable:
            continue  # Each of them waits for an answer.
    return call()


def test_a_word_that_is_no_endpoint_is_refused() -> None:
    for text in ("", ":29400", "host:port"):
        with pytest.raises(UsageError):
            TorchStoreRegister(settings(text, store_type="tcp"))
    with pytest.raises(UsageError, match="store_type: 'hash' is not one of"):
        TorchStoreRegister(settings("host:1", store_type="hash"))


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_pytorch_and_registers_count_together_without_losing_one(
    kind: str, tmp_path: Path, endpoint: str, opened: Any, distributed: Any
) -> None:
    """Each adds one to what it finds, by a comparison. Contents are unique, as they must be."""
    if kind == "tcp":
        ours = opened(endpoint)
        theirs = distributed.TCPStore(
            "127.0.0.1", int(endpoint.split(":")[1]), is_master=False, wait_for_workers=False
        )
    else:
        ours = opened(tmp_path / "store", store_type="file")
        theirs = distributed.FileStore(str(tmp_path / "store"), -1)
    ours.set_state(b"0 at first")

    def one_more(content: bytes, who: bytes) -> bytes:
        return b"%d by %s" % (int(content.split()[0]) + 1, who)

    counted, enough = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not enough.is_set() or counted < 500:
            while True:
                value = theirs.get(KEY).decode()
                more = b64encode(one_more(b64decode(value), b"them")).decode()
                if theirs.compare_set(KEY, value, more).decode() == more:
                    counted += 1
                    break

    thread = threading.Thread(target=count)
    thread.start()
    rounds = refusals = 0
    while rounds < 500 or not refusals:  # Until they have met, too.
        rounds += 1
        content, token = ours.get_state()
        while not (answer := ours.set_state(one_more(content, b"us"), token))[2]:
            content, token, _ = answer
            refusals += 1
    enough.set()
    thread.join()
    assert int(ours.get_state()[0].split()[0]) == rounds + counted


# --- a FileStore --------------------------------------------------------------------------


def test_a_file_store_outlives_all_of_its_registers(tmp_path: Path, opened: Any) -> None:
    first = opened(tmp_path / "store", store_type="file")
    _, token, _ = first.set_state(b"content")
    first.close()
    assert opened(tmp_path / "store", store_type="file").get_state() == (b"content", token)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_removed_or_replaced_is_opened_anew(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "store"
    first = opened(path, store_type="file")
    _, stale, _ = first.set_state(b"content")
    path.unlink()
    assert first.get_state() is None
    _, token, _ = opened(path, store_type="file").set_state(b"of another")
    assert first.set_state(b"more", stale) == (b"of another", token, False)
    first.get_state()
    with path.open("r+b") as file:
        file.truncate(0)
    assert first.get_state() is None


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path, opened: Any) -> None:
    with pytest.raises(RegisterRefused, match="No such file"):
        opened(tmp_path / "folder" / "store", store_type="file").get_state()
    with pytest.raises(RegisterRefused, match="Is a directory"):
        opened(tmp_path, store_type="file").get_state()


def test_a_write_that_was_cut_short_never_was(tmp_path: Path, opened: Any) -> None:
    """Wherever its writer was killed: the record consists of two lengths and two texts."""
    whole = tmp_path / "whole"
    register = opened(whole, store_type="file")
    _, token, _ = register.set_state(b"first")
    before = whole.stat().st_size
    register.set_state(b"second", token)
    content = whole.read_bytes()
    for length in range(before, len(content)):
        path = tmp_path / f"cut-{length}"
        path.write_bytes(content[:length])
        register = opened(path, store_type="file")
        assert register.get_state() == (b"first", token)
        newer = register.set_state(b"third", token)
        assert newer[2]
        assert opened(path, store_type="file").get_state() == newer[:2]


def test_pytorch_and_registers_use_one_file(tmp_path: Path, opened: Any, distributed: Any) -> None:
    path = tmp_path / "store"
    theirs = distributed.FileStore(str(path), -1)
    theirs.set_timeout(timedelta(seconds=30))
    theirs.set("something else", "1")
    ours = opened(path, store_type="file")
    assert ours.get_state() is None
    token = ours.set_state(b"content")[1]
    assert theirs.get(KEY) == token == b"Y29udGVudA=="
    assert theirs.compare_set(KEY, "Y29udGVudA==", "b3RoZXI=") == b"b3RoZXI="
    assert ours.set_state(b"third", token) == (b"other", b"b3RoZXI=", False)
    assert ours.set_state(b"third", b"b3RoZXI=")[2]
    assert theirs.get(KEY) == b"dGhpcmQ="
    assert theirs.delete_key(KEY)
    assert ours.get_state() is None
    assert ours.set_state(b"fourth", b"dGhpcmQ=") == (b"", None, False)
    assert ours.set_state(b"fourth")[2]
    assert theirs.get(KEY) == b"Zm91cnRo"


def test_a_lock_that_is_held_stops_no_other_thread(tmp_path: Path, opened: Any) -> None:
    """Another node may be paused at that very moment."""
    path = tmp_path / "store"
    opened(path, store_type="file").set_state(b"content")
    program = (
        "import fcntl, sys\n"
        f"file = open({str(path)!r})\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        waiting = opened(path, store_type="file")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(waiting.get_state()))
        thread.start()
        # With Python's lock held by the thread, this one could not let go of the file's.
        assert holder.stdin is not None
        holder.stdin.close()
        thread.join()
        assert found[0][0] == b"content"
