"""The register in a TCPStore: who hosts, how long it lives, and what PyTorch sees of it."""

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
from holdfast.registers.opening import open_register
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
    assert register._store is None


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
        open_register(settings("host:1", store_type="hash"))


def test_pytorch_and_registers_count_together_without_losing_one(
    endpoint: str, opened: Any, distributed: Any
) -> None:
    """Each adds one to what it finds, by a comparison. Contents are unique, as they must be."""
    ours = opened(endpoint)
    theirs = distributed.TCPStore(
        "127.0.0.1", int(endpoint.split(":")[1]), is_master=False, wait_for_workers=False
    )
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
