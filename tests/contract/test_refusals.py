"""What will not change by asking again is refused, in words, and without a secret in them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)

from ..etcd_cluster import EtcdCluster, EtcdOptions
from .opening import open_for_test
from .stages import OpenRegister

PASSWORD = "correct horse"
WRONG = "wrong battery staple"


@pytest.fixture(params=["etcd", "etcd-v2"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegisterSettings]:
    """The right settings for an etcd that lets in one user."""
    is_v2 = request.param == "etcd-v2"
    options = EtcdOptions(enable_v2=is_v2, user="holdfast", password=PASSWORD)
    with EtcdCluster(tmp_path, options=options) as cluster:
        yield RegisterSettings(
            request.param,
            cluster.endpoints,
            "run",
            credentials=Credentials("holdfast", PASSWORD),
            call_timeout_s=20.0,
        )


@pytest.mark.parametrize(
    "credentials",
    [Credentials("holdfast", WRONG), Credentials("nobody", WRONG), Credentials()],
    ids=["wrong password", "wrong user", "none"],
)
def test_wrong_credentials_are_refused(guarded: RegisterSettings, credentials: Credentials) -> None:
    right = OpenRegister(open_for_test(guarded))
    wrong = OpenRegister(open_for_test(structs.replace(guarded, credentials=credentials)))
    try:
        _, token, _ = right.set_state(b"of who may")
        for call in (wrong.get_state, lambda: wrong.set_state(b"of who may not", token)):
            with pytest.raises(RegisterRefused) as refusal:
                call()
            assert WRONG not in str(refusal.value)
            assert WRONG not in repr(refusal.value)
        assert right.get_state() == (b"of who may", token)
    finally:
        for register in (right, wrong):
            register.close()


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "c10d"])
def test_a_server_of_another_kind_is_never_taken_for_a_register(backend: str) -> None:
    """It answers, in a language that is not the register's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client, suppress(OSError):  # It may have hung up.
                    client.recv(4096)
                    client.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n" * 4)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        options = {"store_type": "tcp", "is_host": "false"} if backend == "c10d" else {}
        register = OpenRegister(
            open_for_test(
                RegisterSettings(
                    backend,
                    f"127.0.0.1:{port}",
                    "run",
                    options,
                    call_timeout_s=1.5,
                    endpoint_timeout_s=0.4,
                )
            )
        )
        try:
            with pytest.raises((RegisterRefused, RegisterUnreachable)):
                register.get_state()
            with pytest.raises((RegisterRefused, RegisterUnreachable)):
                register.set_state(b"content")
        finally:
            register.close()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
