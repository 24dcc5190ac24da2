"""etcd through the names of PyTorch: server, backend, store. With a real etcd."""

from __future__ import annotations

import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic.rendezvous.api import RendezvousParameters, RendezvousStateError
from holdfast.elastic.rendezvous.etcd_rendezvous_backend import (
    EtcdRendezvousBackend,
    create_backend,
)
from holdfast.elastic.rendezvous.etcd_server import EtcdServer
from holdfast.elastic.rendezvous.etcd_store import EtcdStore, settings_of
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler
from holdfast.elastic.rendezvous.store import StoreTimeoutError
from holdfast.registers.register import Credentials, RegisterSettings

from ...etcd_cluster import EtcdCluster, EtcdOptions, etcd_program

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", etcd_program())
        server = EtcdServer()
    server.start(stderr=subprocess.DEVNULL)
    yield server
    server.stop()


@pytest.fixture
def client(server: EtcdServer) -> Iterator[Any]:
    pytest.importorskip("etcd", reason="needs python-etcd (make test installs it)")
    client = server.get_client()
    yield client
    client.http.clear()  # It keeps its connections for as long as it lives.


@pytest.fixture
def settings(server: EtcdServer) -> RegisterSettings:
    return RegisterSettings("etcd-v2", server.get_endpoint(), "")


def test_a_server_without_python_etcd_says_what_its_client_needs(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "etcd", None)
    with pytest.raises(ModuleNotFoundError, match="pip install python-etcd"):
        server.get_client()


# --- backend and store --------------------------------------------------------------------


def test_a_backend_and_a_store_take_a_client_of_python_etcd(client: Any) -> None:
    name = f"client-{time.monotonic_ns()}"
    backend = EtcdRendezvousBackend(client, name, "/of/tests")
    first = backend.set_state(b"state")
    assert first is not None
    assert first[2]
    assert backend.get_state() == first[:2]
    kept = client.get(f"/of/tests/{name}")
    assert kept.value == b64encode(b"state").decode()
    assert kept.modifiedIndex == first[1]
    assert 0 < kept.ttl <= 7200
    client.write(f"/of/tests/{name}", "not base64 at all")
    with pytest.raises(RendezvousStateError):
        backend.get_state()
    store = EtcdStore(client, f"/of/tests/{name}-store")
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_token_that_is_not_right_changes_nothing(settings: RegisterSettings) -> None:
    backend = EtcdRendezvousBackend(settings, "tokens", "/of/tests")
    assert backend.get_state() is None
    first = backend.set_state(b"one")
    assert first is not None
    assert first[0] == b"one"
    assert first[2]
    assert backend.set_state(b"two") == (b"one", first[1], False)
    assert backend.set_state(b"two", first[1] + 1000) == (b"one", first[1], False)
    second = backend.set_state(b"two", first[1])
    assert second is not None
    assert second[2]
    assert backend.get_state() == second[:2]


def test_a_store_has_the_calls_of_a_store(settings: RegisterSettings) -> None:
    store = EtcdStore(settings, "/of/tests/store", timeout=DEADLINE_S)
    with ThreadPoolExecutor(8) as pool:
        waiting = pool.submit(store.get, "late")
        sums = list(pool.map(lambda _: store.add("sum", 2), range(8)))
        store.set("late", "value")
        assert waiting.result(DEADLINE_S) == b"value"
    assert sorted(sums) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert store.compare_set("cas", "", "one") == b"one"
    assert store.compare_set("cas", "other", "two") == b"one"
    assert store.compare_set("nothing", "other", "two") == b"other"
    store.append("cas", "+")
    store.multi_set(["a/b", "c"], ["1", "2"])
    assert store.multi_get(["a/b", "c", "cas"]) == [b"1", b"2", b"one+"]
    assert store.check(["c", "sum"])
    assert not store.check(["c", "nothing"])
    with pytest.raises(StoreTimeoutError):
        store.wait(["nothing"], 0.1)


def test_a_backend_and_a_store_are_made_from_parameters(server: EtcdServer) -> None:
    params = RendezvousParameters("etcd-v2", server.get_endpoint(), "made", 1, 1)
    backend, store = create_backend(params)
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert store.client.options["read_timeout"] == "60.0"
    with pytest.raises(ValueError, match="protocol"):
        create_backend(
            RendezvousParameters("etcd-v2", "localhost", "made", 1, 1, protocol="gopher")
        )


def test_a_client_of_python_etcd_is_taken_with_all_that_it_knows() -> None:
    etcd = pytest.importorskip("etcd", reason="needs python-etcd (make test installs it)")
    client = etcd.Client(
        host=(("first", 1001), ("[fd00::2]", 1002)),
        protocol="https",
        cert=("node.pem", "node.key"),
        ca_cert="authority.pem",
        username="user",
        password="secret",
        allow_reconnect=True,
        use_proxies=True,  # Else it asks at once who else is there.
    )
    settings = settings_of(client, "/prefix", "run")
    assert settings.endpoint == "first:1001,[fd00::2]:1002"
    assert settings.credentials == Credentials("user", "secret")
    assert settings.options == {
        "protocol": "https",
        "cert": "node.pem",
        "key": "node.key",
        "cacert": "authority.pem",
        "etcd_prefix": "/prefix",
    }
    single = etcd.Client("host", 1003)
    assert settings_of(single, "", "run").endpoint == "host:1003"
    assert settings_of(single, "", "run").credentials == Credentials()


@pytest.mark.torch
def test_the_client_of_a_server_serves_the_backend_of_pytorch(
    client: Any, settings: RegisterSettings
) -> None:
    theirs = import_module("torch.distributed.elastic.rendezvous.etcd_rendezvous_backend")
    backend = theirs.EtcdRendezvousBackend(client, "theirs", "/of/tests")
    assert backend.get_state() is None
    first = backend.set_state(b"one")
    assert first[0] == b"one"
    assert first[2]
    assert backend.set_state(b"two") == (*first[:2], False)
    assert backend.set_state(b"two", first[1])[2]
    ours = EtcdRendezvousBackend(settings, "theirs", "/of/tests")
    assert ours.get_state() == backend.get_state()


# --- the handler --------------------------------------------------------------------------


def parameters(endpoint: str, **settings: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, "job", 1, 1, join_timeout=20, **settings)


def test_the_password_is_read_from_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\n")
    options = EtcdOptions(user="holdfast", password="correct horse")
    settings = {"user": "holdfast", "password_file": str(tmp_path / "password")}
    with EtcdCluster(tmp_path / "etcd", options=options) as cluster:
        handler = create_handler(parameters(cluster.endpoints, **settings))
        try:
            assert handler.next_rendezvous().world_size == 1
        finally:
            handler.shutdown()


def test_a_password_that_is_nobody_s_or_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "password").write_text("correct horse")
    with pytest.raises(ValueError, match="no user"):
        create_handler(parameters("127.0.0.1", password_file=str(tmp_path / "password")))
    with pytest.raises(ValueError, match=r"the password's file .* is empty"):
        create_handler(parameters("127.0.0.1", password_file=str(tmp_path / "empty")))
