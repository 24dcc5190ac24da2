"""`utils.store`: the same calls on the store as PyTorch's makes, whatever the store is.

Only that the last to arrive does not wait for itself with us: the store may be gone by then.
A test that takes `meeting` runs against both; the others are about ours alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from holdfast.elastic.utils import store as ours

Module = Any
OWN_TIMEOUT = timedelta(seconds=1234)


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def meeting(request: pytest.FixtureRequest) -> Module:
    return import_module(f"{request.param}.utils.store")


class Noting:
    """A store that notes every call and has everything that is asked for."""

    def __init__(self, arrivals: int = 3) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.arrivals = arrivals
        self._timeout = OWN_TIMEOUT

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self.calls.append(("set_timeout", timeout))
        self._timeout = timeout

    def set(self, key: str, value: Any) -> None:
        self.calls.append(("set", key, value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.calls.append(("multi_get", list(keys)))
        return [key.encode() for key in keys]

    def add(self, key: str, amount: int) -> int:
        self.calls.append(("add", key, amount))
        return self.arrivals

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.calls.append(("wait", list(keys), timeout))


READ = ("multi_get", ["p0", "p1", "p2"])
COUNTED = ("add", "p/finished/num_members", 1)
COMPLETE = ("set", "p/finished/last_member", "<val_ignored>")
WAITED = ("wait", ["p/finished/last_member"], None)


@pytest.mark.parametrize(
    ("rank", "arrivals", "calls"),
    [
        (0, 3, [READ, COUNTED, COMPLETE]),
        (0, 1, [READ, COUNTED, WAITED]),
        (1, 3, [READ, COUNTED, COMPLETE]),
        (2, 2, [READ, COUNTED]),
    ],
)
def test_all_values_are_read_and_rank_0_goes_last(
    meeting: Module, rank: int, arrivals: int, calls: list[Any]
) -> None:
    store = Noting(arrivals)
    assert meeting.get_all(store, rank, "p", 3) == [b"p0", b"p1", b"p2"]
    waits_for_itself = rank == 0 and COMPLETE in calls and meeting is not ours
    assert store.calls == ([*calls, WAITED] if waits_for_itself else calls)


def test_everybody_gives_and_reads(meeting: Module) -> None:
    store = Noting()
    assert meeting.synchronize(store, b"mine", 1, 3, "p", timeout=7) == [b"p0", b"p1", b"p2"]
    assert store.calls == [
        ("set_timeout", timedelta(seconds=7)),
        ("set", "p1", b"mine"),
        READ,
        COUNTED,
        COMPLETE,
        ("set_timeout", OWN_TIMEOUT),
    ]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_barrier_counts_and_waits(meeting: Module, is_last: bool) -> None:
    store = Noting(arrivals=3 if is_last else 1)
    assert meeting.barrier(store, 3, key_prefix="p") is None
    complete = [("set", "p/last_member", "<val_ignored>")] if is_last else []
    wait = [("wait", ["p/last_member"], None)] if not (is_last and meeting is ours) else []
    assert store.calls == [
        ("set_timeout", timedelta(seconds=300)),
        ("add", "p/num_members", 1),
        *complete,
        *wait,
        ("set_timeout", OWN_TIMEOUT),
    ]


def test_the_last_at_a_barrier_needs_the_store_no_more() -> None:
    store = Noting(arrivals=3)
    store.wait = lambda *_: raise_it(ConnectionError("gone"))  # type: ignore[method-assign]
    ours.barrier(store, 3, "p")


def test_the_timeout_of_a_store_is_lent(meeting: Module) -> None:
    store = Noting()
    with meeting.store_timeout(store, 2.5):
        assert store.timeout == timedelta(seconds=2.5)
    assert store.timeout == OWN_TIMEOUT


def test_the_timeout_of_a_store_is_given_back_after_an_error() -> None:
    store = Noting(arrivals=2)
    store.wait = lambda *_: raise_it(TimeoutError("too late"))  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="too late"):
        ours.barrier(store, 3, "p", barrier_timeout=1)
    assert store.timeout == OWN_TIMEOUT


def test_names_for_the_missing_need_a_rank(meeting: Module) -> None:
    with pytest.raises(AssertionError):
        meeting.barrier(Noting(), 3, "p", rank_tracing_decoder=str)


def raise_it(error: Exception) -> None:
    raise error


# --- who is missing -----------------------------------------------------------------------


class Lacking(Noting):
    """A store in which some keys never appear."""

    def __init__(self, error: Callable[[str], Exception], *absent: str) -> None:
        super().__init__(arrivals=1)
        self.error = error
        self.absent = absent

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        super().wait(keys, timeout)
        if keys[0] in self.absent:
            raise self.error(f"no {keys[0]}")


def error_of(meeting: Module) -> type[Exception]:
    """What stores raise there: PyTorch's own class, and for us any timeout."""
    error: type[Exception] = getattr(meeting, "DistStoreError", TimeoutError)
    return error


def test_rank_0_names_the_missing(meeting: Module) -> None:
    error = error_of(meeting)
    store = Lacking(error, "p/last_member", "p2/TRACE")
    with pytest.raises(error, match=r"missing_ranks=\[host 2\]") as caught:
        meeting.barrier(store, 4, "p", 1, 0, lambda rank: f"host {rank}", trace_timeout=3)
    assert "world_size=4" in str(caught.value)
    assert store.calls[3:] == [
        ("set", "p0/TRACE", "<val_ignored>"),
        ("wait", ["p1/TRACE"], timedelta(seconds=3)),
        ("wait", ["p2/TRACE"], timedelta(seconds=3)),
        ("wait", ["p3/TRACE"], timedelta(milliseconds=1)),
        ("set", "p/TRACING_GATE", "<val_ignored>"),
        *([("set_timeout", OWN_TIMEOUT)] if meeting is ours else []),
    ]


def test_the_others_point_to_rank_0(meeting: Module) -> None:
    error = error_of(meeting)
    store = Lacking(error, "p/last_member")
    with pytest.raises(error, match=r"check rank 0 \(host 0\) for missing rank info"):
        meeting.barrier(store, 4, "p", 1, 2, lambda rank: f"host {rank}")
    assert ("set", "p2/TRACE", "<val_ignored>") in store.calls


def test_a_missing_rank_0_leaves_the_stores_own_error(meeting: Module) -> None:
    error = error_of(meeting)
    store = Lacking(error, "p/last_member", "p/TRACING_GATE")
    with pytest.raises(error, match="no p/last_member"):
        meeting.barrier(store, 4, "p", rank=2)


def test_in_a_crowd_only_the_first_are_named(meeting: Module) -> None:
    error = error_of(meeting)
    store = Lacking(error, "p/last_member", *(f"p{rank}/TRACE" for rank in range(100)))
    with pytest.raises(error) as caught:
        meeting.barrier(store, 100, "p", rank=0)
    named = str(caught.value).partition("missing_ranks=[")[2].partition("]")[0]
    assert len(named.split(", ")) == 16


def test_the_missing_are_named_in_order() -> None:
    absent = (f"p{rank}/TRACE" for rank in (9, 3, 5))
    store = Lacking(TimeoutError, "p/last_member", *absent)
    with pytest.raises(TimeoutError, match=r"missing_ranks=\[3, 5, 9\]"):
        ours.barrier(store, 10, "p", rank=0)


class NeedsTwo(RuntimeError):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one, two)


def test_an_error_that_cannot_be_made_anew_gets_a_note() -> None:
    store = Lacking(lambda words: NeedsTwo(words, 2), "p/last_member", "p1/TRACE")
    with pytest.raises(NeedsTwo) as caught:
        ours.barrier(store, 2, "p", rank=0)
    assert "missing_ranks=[1]" in caught.value.__notes__[0]


# --- stores of others ---------------------------------------------------------------------


class Plain:
    """The least that a store can be: four methods, and no timeout."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self._changed:
            self._values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            return total

    def wait(self, keys: list[str]) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: all(k in self._values for k in keys), 30)
        if not there:
            raise TimeoutError(keys)


def meet(store: Any, kinds: list[Module]) -> None:
    """As many ranks as there are kinds exchange what they have, each with its own kind."""
    size = len(kinds)

    def take_part(rank: int) -> list[bytes]:
        kinds[rank].barrier(store, size, "before", 30, rank)
        return list(kinds[rank].synchronize(store, b"%d" % rank, rank, size, "exchange", 30))

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(take_part, range(size)))
    assert found == [[b"%d" % rank for rank in range(size)]] * size


def test_the_least_of_stores_will_do() -> None:
    meet(Plain(), [ours] * 4)


@pytest.mark.torch
def test_agents_of_both_kinds_meet_in_one_store() -> None:
    theirs = import_module("torch.distributed.elastic.utils.store")
    store = import_module("torch.distributed").HashStore()
    meet(store, [ours, theirs, ours, theirs])


class Hurried:
    """Another store, in which only rank 0's search is waited for, and nobody at a barrier."""

    def __init__(self, store: Any) -> None:
        self.set, self.add = store.set, store.add
        self._wait = store.wait

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        is_patient = keys == ["p/TRACING_GATE"]
        self._wait(keys, timedelta(seconds=60) if is_patient else timedelta(milliseconds=50))


@pytest.mark.torch
def test_the_missing_are_found_in_a_real_store() -> None:
    torch_distributed = import_module("torch.distributed")
    store = torch_distributed.HashStore()

    def take_part(rank: int) -> str:
        with pytest.raises(torch_distributed.DistStoreError) as caught:
            ours.barrier(Hurried(store), 3, "p", 1, rank, lambda rank: f"host {rank}")
        return str(caught.value)

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(take_part, 1)
        store.wait(["p1/TRACE"], timedelta(seconds=60))
        assert "missing_ranks=[host 2]" in take_part(0)
        assert "check rank 0 (host 0)" in second.result(60)
