"""The store of the agents: the calls of PyTorch's stores, with their answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from threading import Thread
from typing import Any

import pytest

from holdfast.elastic.rendezvous import RendezvousStoreInfo
from holdfast.elastic.rendezvous.store import (
    CoordinatorStore,
    PrefixStore,
    StoreError,
    StoreOverError,
    StoreTimeoutError,
)
from holdfast.runtime.loop import EventLoop
from holdfast.store.key_spaces import KeySpaces
from holdfast.transport.auth import OPEN
from holdfast.transport.server import Server

DEADLINE_S = 60.0
SHORT, LONG = timedelta(milliseconds=20), timedelta(seconds=DEADLINE_S)
JOB = "job"


class Deaf:
    """A coordinator that only serves its store."""

    def on_message(self, *_: object) -> None: ...

    on_lost = on_tether = on_tether_ended = on_message


class Served:
    """A server whose loop runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = EventLoop()
        self._spaces = KeySpaces()
        self._spaces.open(1)
        self._server = Server(self._loop, JOB, OPEN, Deaf(), self._spaces)
        self._server.listen(("127.0.0.1", 0))
        self.endpoint = self._server.addresses[0]
        self._bell, self._rope = os.pipe()
        self._is_over = False
        self._loop.add_reader(self._bell, self._on_bell)
        self._thread = Thread(target=self._loop.run_until, args=(lambda: self._is_over,))
        self._thread.start()

    def _on_bell(self) -> None:
        if os.read(self._bell, 1) == b"r":
            self._spaces.open(self._spaces.round + 1)
        else:
            self._is_over = True

    def open_next_round(self) -> None:
        os.write(self._rope, b"r")

    def close(self) -> None:
        os.write(self._rope, b"e")
        self._thread.join()
        self._loop.remove_reader(self._bell)
        self._server.close()
        self._loop.close()
        os.close(self._bell)
        os.close(self._rope)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def store(served: Served) -> Iterator[CoordinatorStore]:
    store = CoordinatorStore(served.endpoint, JOB, timeout=DEADLINE_S)
    yield store
    store.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def distributed() -> Any:
    """PyTorch's, with what its first store opens for the life of the process."""
    module = import_module("torch.distributed")
    module.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return module


def answers(store: Any, timeout_error: type[Exception]) -> Iterator[object]:
    """The same calls on any store, and what came of each."""

    def ask(call: Callable[..., object], *args: object) -> object:
        try:
            return call(*args)
        except timeout_error:
            return "timed out"

    yield ask(store.num_keys)
    yield ask(store.set, "text", "value"), ask(store.get, "text")
    yield ask(store.set, "bytes", b"a\0b"), ask(store.get, "bytes")
    yield ask(store.set, "empty", ""), ask(store.get, "empty")
    yield ask(store.add, "number", 5), ask(store.add, "number", -7), ask(store.get, "number")
    yield ask(store.append, "text", " more"), ask(store.get, "text")
    yield ask(store.append, "appended", "new"), ask(store.get, "appended")
    yield ask(store.check, ["text", "bytes"]), ask(store.check, ["text", "missing"])
    yield ask(store.wait, ["text", "bytes"]), ask(store.wait, ["text"], LONG)
    yield ask(store.wait, ["missing"], SHORT), ask(store.wait, ["missing"], timedelta(0))
    yield ask(store.compare_set, "absent", "wrong", "new"), ask(store.check, ["absent"])
    yield ask(store.compare_set, "absent", "", "new"), ask(store.get, "absent")
    yield ask(store.compare_set, "absent", "wrong", "newer"), ask(store.get, "absent")
    yield ask(store.compare_set, "absent", "new", "newer"), ask(store.get, "absent")
    yield ask(store.multi_set, ["m1", "m2"], ["1", "2"]), ask(store.multi_get, ["m2", "m1"])
    yield ask(store.num_keys)
    yield ask(store.delete_key, "m1"), ask(store.delete_key, "m1"), ask(store.check, ["m1"])
    yield ask(store.set_timeout, SHORT), store.timeout
    yield ask(store.get, "missing"), ask(store.multi_get, ["m2", "missing"])
    yield store.has_extended_api()


@pytest.mark.torch
@pytest.mark.parametrize("prefix", ["", "prefix"])
def test_pytorch_answers_the_same(store: CoordinatorStore, prefix: str, distributed: Any) -> None:
    theirs = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    both = [(store, PrefixStore, StoreTimeoutError)]
    both += [(theirs, distributed.PrefixStore, distributed.DistStoreError)]
    said, expected = (
        list(answers(kind(prefix, any_store) if prefix else any_store, error))
        for any_store, kind, error in both
    )
    assert said == expected


def test_get_waits_until_the_key_is_there(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    other = CoordinatorStore(served.endpoint, JOB)
    got = threads.submit(other.get, "key")
    waited = threads.submit(other.wait, ["key"])
    store.set("key", "value")
    assert got.result(DEADLINE_S) == b"value"
    assert waited.result(DEADLINE_S) is None
    other.close()


def test_times_are_seconds_or_a_timedelta(store: CoordinatorStore) -> None:
    assert store.timeout == timedelta(seconds=DEADLINE_S)
    store.set_timeout(DEADLINE_S + 1.5)
    assert store.timeout == timedelta(seconds=DEADLINE_S + 1.5)
    with pytest.raises(StoreTimeoutError, match="missing"):
        store.wait(["missing"], 0.01)
    with pytest.raises(StoreTimeoutError, match="missing"):
        store.wait(["missing"], 0)
    store.set("there", "")
    store.wait(["there"], timedelta(0))


def test_prefixes_nest_and_share_their_store(store: CoordinatorStore) -> None:
    inner = PrefixStore("inner", PrefixStore("outer", store))
    inner.set("key", "value")
    assert store.get("outer/inner/key") == b"value"
    assert store.num_keys() == inner.num_keys() == 1
    inner.set_timeout(3)
    assert store.timeout == inner.timeout == timedelta(seconds=3)
    assert isinstance(inner.underlying_store, PrefixStore)
    assert inner.underlying_store.underlying_store is store


@pytest.mark.torch
def test_a_prefix_can_be_put_before_a_store_of_pytorch(distributed: Any) -> None:
    theirs = distributed.HashStore()
    PrefixStore("p", theirs).set("key", "value")
    assert theirs.get("p/key") == b"value"


def test_what_cannot_be_done_is_a_runtime_error_with_the_reason(store: CoordinatorStore) -> None:
    store.set("word", "abc")
    with pytest.raises(StoreError, match="not a number") as caught:
        store.add("word", 1)
    assert isinstance(caught.value, RuntimeError)
    assert store.get("word") == b"abc"
    with pytest.raises(StoreError, match="2 values"):
        store.multi_set(["one"], ["1", "2"])


def test_the_end_of_a_round_ends_the_waits_in_it(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    waiting = threads.submit(store.get, "never")
    store.num_keys()
    served.open_next_round()
    with pytest.raises(StoreOverError):
        waiting.result(DEADLINE_S)


def test_a_store_that_is_not_there_is_an_error_of_the_store(served: Served) -> None:
    store = CoordinatorStore(served.endpoint, "another job")
    with pytest.raises(StoreError):
        store.set("key", "value")


def test_the_place_of_the_workers_is_agreed_on_through_it(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    other = CoordinatorStore(served.endpoint, JOB)
    learnt = threads.submit(RendezvousStoreInfo.build, 1, other)
    said = RendezvousStoreInfo.build(0, store, "here")
    assert learnt.result(DEADLINE_S) == said
    other.close()
