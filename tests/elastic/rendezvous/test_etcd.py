"""etcd through the names of PyTorch and of python-etcd: server, client, backend, store.

With a real etcd. A test that takes `client` runs with ours and with that of python-etcd.
"""

from __future__ import annotations

import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

from holdfast.elastic.rendezvous import etcd_errors
from holdfast.elastic.rendezvous.api import RendezvousParameters, RendezvousStateError
from holdfast.elastic.rendezvous.etcd_client import EtcdClient
from holdfast.elastic.rendezvous.etcd_rendezvous_backend import (
    EtcdRendezvousBackend,
    create_backend,
)
from holdfast.elastic.rendezvous.etcd_server import EtcdServer
from holdfast.elastic.rendezvous.etcd_store import EtcdStore, settings_of
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler
from holdfast.elastic.rendezvous.store import StoreTimeoutError
from holdfast.registers.register import Credentials

from ...etcd_cluster import EtcdCluster, EtcdOptions, etcd_program
from ...free_ports import free_port

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", etcd_program())
        server = EtcdServer()
    server.start(stderr=subprocess.DEVNULL)
    yield server
    server.stop()


@pytest.fixture(params=["ours", "python-etcd"])
def client(request: pytest.FixtureRequest, server: EtcdServer) -> Iterator[Any]:
    if request.param == "ours":
        yield server.get_client()
        return
    etcd = pytest.importorskip("etcd", reason="needs python-etcd (make test installs it)")
    place = server.get_host(), server.get_port()
    client = etcd.Client(*place, read_timeout=10, allow_reconnect=True)
    yield client
    client.http.clear()  # It keeps its connections for as long as it lives.


@pytest.fixture
def errors(client: Any) -> Any:
    """Where whoever uses this client finds the errors to catch."""
    return etcd_errors if isinstance(client, EtcdClient) else sys.modules["etcd"]


# --- the client ---------------------------------------------------------------------------


def told(result: Any) -> tuple[Any, ...]:
    names = ("action", "key", "value", "ttl", "newKey", "dir")
    return tuple(getattr(result, name) for name in names)


def test_a_client_reads_writes_and_deletes(client: Any, errors: Any) -> None:
    with pytest.raises(errors.EtcdKeyNotFound) as not_found:
        client.read("/client/key")
    assert not_found.value.payload["errorCode"] == 100
    with pytest.raises(errors.EtcdKeyNotFound):
        client.delete("/client", recursive=True, dir=True)
    made = client.write("client/key", "one ü & two", ttl=60)
    assert told(made) == ("set", "/client/key", "one ü & two", 60, True, False)
    assert made.modifiedIndex == made.createdIndex
    found = client.get("/client/key")
    assert told(found)[:3] == ("get", "/client/key", "one ü & two")
    assert found.etcd_index >= found.modifiedIndex
    assert "/client/key" in client
    assert "/client/other" not in client
    changed = client.set("/client/key", 5)
    assert (changed.value, changed.ttl, changed.newKey) == ("5", None, False)
    assert changed.modifiedIndex > made.modifiedIndex
    gone = client.delete("/client/key", prevIndex=changed.modifiedIndex)
    assert told(gone)[:3] == ("compareAndDelete", "/client/key", None)
    client.write("/client/key", "again")
    assert client.pop("/client/key").value == "again"
    client.delete("/client", recursive=True, dir=True)


def test_a_client_sets_only_what_is_as_expected(client: Any, errors: Any) -> None:
    first = client.write("/cas", "one", prevExist=False)
    with pytest.raises(errors.EtcdAlreadyExist):
        client.write("/cas", "two", prevExist=False)
    with pytest.raises(errors.EtcdCompareFailed):
        client.test_and_set("/cas", "two", "other")
    with pytest.raises(ValueError):  # noqa: PT011 - as python-etcd's users may catch it
        client.write("/cas", "two", prevIndex=first.modifiedIndex + 1000)
    assert client.test_and_set("/cas", "two", "one", ttl=60).value == "two"
    read = client.read("/cas")
    read.value = "three"
    assert client.update(read).value == "three"
    with pytest.raises(errors.EtcdCompareFailed):
        client.update(read)
    assert client.refresh("/cas", 30).ttl == 30
    assert client.get("/cas").value == "three"
    client.delete("/cas")


def test_a_client_knows_folders(client: Any, errors: Any) -> None:
    client.write("/folder", None, dir=True)
    for value in ("a", "b"):
        client.write("/folder", value, append=True)
    client.write("/folder/deep/er", "c")
    folder = client.read("/folder", recursive=True, sorted=True)
    assert folder.dir
    assert sorted(leaf.value for leaf in folder.leaves) == ["a", "b", "c"]
    assert sorted(leaf.value for leaf in folder.children) == ["a", "b", "c"]
    assert next(folder.get_subtree()).key == "/folder"
    with pytest.raises(errors.EtcdNotFile):
        client.write("/folder", "value")
    with pytest.raises(errors.EtcdDirNotEmpty):
        client.delete("/folder", dir=True)
    with pytest.raises(errors.EtcdException):
        client.write("/another", "value", dir=True)
    client.delete("/folder", recursive=True)


def test_a_client_watches(client: Any, errors: Any) -> None:
    before = client.write("/watched", "one")
    with pytest.raises(errors.EtcdWatchTimedOut):
        client.watch("/watched", timeout=0.2)
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(client.watch, "/watched", before.modifiedIndex + 1, DEADLINE_S)
        client.write("/watched", "two")
        assert watching.result(DEADLINE_S).value == "two"
    changes = client.eternal_watch("/watched", before.modifiedIndex)
    assert [next(changes).value for _ in range(2)] == ["one", "two"]
    client.delete("/watched")


def test_a_client_says_whom_it_asks(client: Any, server: EtcdServer) -> None:
    assert client.version.startswith("3.")
    assert client.cluster_version.startswith("3.")
    assert client.read_timeout == 10
    assert (client.host, client.port) == (server.get_host(), server.get_port())
    assert client.base_uri == f"http://{server.get_endpoint()}"
    assert client.machines == [client.base_uri]
    assert client.key_endpoint == "/v2/keys"


def test_an_etcd_that_is_not_there_is_told() -> None:
    client = EtcdClient("127.0.0.1", free_port(), read_timeout=5)
    with pytest.raises(etcd_errors.EtcdConnectionFailed, match="refused"):
        client.read("/key")
    with pytest.raises(etcd_errors.EtcdException):
        assert client.version


def test_our_errors_are_also_those_of_python_etcd(server: EtcdServer) -> None:
    etcd = pytest.importorskip("etcd", reason="needs python-etcd (make test installs it)")
    client = server.get_client()
    for kind in (etcd.EtcdKeyNotFound, etcd.EtcdKeyError, etcd.EtcdException):
        with pytest.raises(kind):
            client.read("/nothing")
    with pytest.raises(etcd.EtcdConnectionFailed) as failed:
        EtcdClient("127.0.0.1", free_port(), read_timeout=5).read("/key")
    assert isinstance(failed.value, etcd_errors.EtcdConnectionFailed)


# --- backend and store --------------------------------------------------------------------


def test_a_backend_and_a_store_take_either_client(client: Any) -> None:
    name = f"either-{time.monotonic_ns()}"
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


def test_a_token_that_is_not_right_changes_nothing(server: EtcdServer) -> None:
    backend = EtcdRendezvousBackend(server.get_client(), "tokens", "/of/tests")
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


def test_a_store_has_the_calls_of_a_store(server: EtcdServer) -> None:
    store = EtcdStore(server.get_client(), "/of/tests/store", timeout=DEADLINE_S)
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
    assert store.client.read_timeout == 60
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
def test_our_client_serves_the_backend_of_pytorch(server: EtcdServer) -> None:
    pytest.importorskip("etcd", reason="needs python-etcd (make test installs it)")
    theirs = import_module("torch.distributed.elastic.rendezvous.etcd_rendezvous_backend")
    backend = theirs.EtcdRendezvousBackend(server.get_client(), "theirs", "/of/tests")
    assert backend.get_state() is None
    first = backend.set_state(b"one")
    assert first[0] == b"one"
    assert first[2]
    assert backend.set_state(b"two") == (*first[:2], False)
    assert backend.set_state(b"two", first[1])[2]
    ours = EtcdRendezvousBackend(server.get_client(), "theirs", "/of/tests")
    assert ours.get_state() == backend.get_state()


# --- the handler --------------------------------------------------------------------------


def parameters(endpoint: str, **settings: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, "job", 1, 1, join_timeout=20, **settings)


def test_the_password_is_read_from_the_file_that_is_named(tmp_path) -> None:
    (tmp_path / "password").write_text("correct horse\n")
    options = EtcdOptions(user="holdfast", password="correct horse")
    settings = {"user": "holdfast", "password_file": str(tmp_path / "password")}
    with EtcdCluster(tmp_path / "etcd", options=options) as cluster:
        handler = create_handler(parameters(cluster.endpoints, **settings))
        try:
            assert handler.next_rendezvous().world_size == 1
        finally:
            handler.shutdown()


def test_a_password_that_is_nobody_s_or_nothing_is_refused(tmp_path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "password").write_text("correct horse")
    with pytest.raises(ValueError, match="no user"):
        create_handler(parameters("127.0.0.1", password_file=str(tmp_path / "password")))
    with pytest.raises(ValueError, match=r"the password's file .* is empty"):
        create_handler(parameters("127.0.0.1", password_file=str(tmp_path / "empty")))
