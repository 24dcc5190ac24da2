"""etcd through the names of PyTorch: server, backend, store. With a real etcd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.etcd_rendezvous_backend import (
    EtcdRendezvousBackend,
    create_backend,
)
from holdfast.elastic.rendezvous.etcd_server import EtcdServer
from holdfast.elastic.rendezvous.etcd_store import EtcdStore
from holdfast.elastic.rendezvous.store import StoreTimeoutError

from ..etcd_cluster import etcd_program

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", etcd_program())
        server = EtcdServer()
    server.start(stderr=subprocess.DEVNULL)
    yield server
    server.stop()


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
    with pytest.raises(ValueError, match="protocol"):
        create_backend(
            RendezvousParameters("etcd-v2", "localhost", "made", 1, 1, protocol="gopher")
        )
