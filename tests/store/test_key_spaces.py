"""The store: the calls that PyTorch's stores have, with their meaning, and rounds kept apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.store import key_spaces as stores
from holdfast.store import sentences
from holdfast.store.client import CoordinatorStore, StoreError, StoreOverError, StoreTimeoutError
from holdfast.store.messages import WaitForKeys
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.frames import FRAME_LIMIT, encode
from holdfast.transport.handshake import ClientSide, read_refusal

from ..transport.conftest import Certificates
from ..transport.stage import DEADLINE_S, JOB, Stage

SECRET = ConnectionSecurity(b"a secret token")


def refused(kind: type[StoreError], sentence: str) -> pytest.RaisesExc[StoreError]:
    """The context of a call that is refused with this sentence."""
    return pytest.raises(kind, match=f"^{re.escape(sentence)}$")


class Served:
    """A stage whose loop runs in a thread, so that blocking clients can be used."""

    def __init__(self, stage: Stage, security: ConnectionSecurity = OPEN) -> None:
        self._stage, self._security = stage, security
        stage.spaces.open(1)
        stage.serve(security)
        self.endpoint = stage.endpoint
        self._is_over = False
        # The loop sleeps when nothing happens, and calls from here come with this.
        self._bell_here, self._bell_there = os.pipe()
        self._asked: list[tuple[Callable[[], object], Future[object]]] = []
        stage.loop.add_reader(self._bell_here, self._on_bell)
        self._opened: list[CoordinatorStore] = []
        self._thread = Thread(target=stage.loop.run_until, args=(lambda: self._is_over,))
        self._thread.start()

    def _on_bell(self) -> None:
        os.read(self._bell_here, 1)
        call, future = self._asked.pop(0)
        future.set_result(call())

    def on_loop(self, call: Callable[[], object]) -> object:
        """Call on the loop's thread and return what came of it."""
        future: Future[object] = Future()
        self._asked.append((call, future))
        os.write(self._bell_there, b"!")
        return future.result(DEADLINE_S)

    def store(self, round: int = 1, timeout_s: float = DEADLINE_S) -> CoordinatorStore:
        store = CoordinatorStore(self.endpoint, JOB, self._security, round, timeout_s)
        self._opened.append(store)
        return store

    def open_round(self, round: int) -> None:
        self.on_loop(lambda: self._stage.spaces.open(round))

    def end_round(self, round: int) -> None:
        self.on_loop(lambda: self._stage.spaces.end(round))

    def waiting(self) -> int:
        """How many wait for a key."""
        by_key = self._stage.spaces._space.waiting.by_key
        return int(str(self.on_loop(lambda: sum(map(len, by_key.values())))))

    def close(self) -> None:
        def end() -> None:
            self._is_over = True

        self.on_loop(end)
        self._thread.join()
        for store in self._opened:
            store.close()
        self._stage.loop.remove_reader(self._bell_here)
        os.close(self._bell_here)
        os.close(self._bell_there)


@pytest.fixture
def served(stage: Stage) -> Iterator[Served]:
    served = Served(stage, SECRET)
    yield served
    served.close()


@pytest.fixture
def store(served: Served) -> CoordinatorStore:
    return served.store()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def until_waiting(served: Served, number: int) -> None:
    """The one wait of these tests for something that no event tells of."""
    deadline = time.monotonic() + DEADLINE_S
    while served.waiting() != number:
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.005)


def test_what_was_set_is_got(store: CoordinatorStore) -> None:
    store.set("key", "text")
    assert store.get("key") == b"text"
    store.set("key", b"\0\xff bytes")
    assert store.get("key") == b"\0\xff bytes"
    store.set("key", "")
    assert store.get("key") == b""


def test_another_client_sees_it(served: Served, store: CoordinatorStore) -> None:
    store.set("key", "value")
    assert served.store().get("key") == b"value"


def test_get_waits_until_the_key_is_there(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    got = threads.submit(served.store().get, "key")
    until_waiting(served, 1)
    assert not got.done()
    store.set("key", "value")
    assert got.result(DEADLINE_S) == b"value"


@pytest.mark.parametrize(
    "create",
    [
        lambda store: store.add("key", 1),
        lambda store: store.append("key", "1"),
        lambda store: store.compare_set("key", "", "1"),
        lambda store: store.multi_set(["other", "key"], ["0", "1"]),
    ],
    ids=["add", "append", "compare_set", "multi_set"],
)
def test_whatever_creates_a_key_wakes_those_who_wait_for_it(
    served: Served,
    store: CoordinatorStore,
    threads: ThreadPoolExecutor,
    create: Callable[[CoordinatorStore], object],
) -> None:
    got = [threads.submit(served.store().get, "key") for _ in range(3)]
    until_waiting(served, 3)
    create(store)
    assert [future.result(DEADLINE_S) for future in got] == [b"1"] * 3


def test_a_key_that_is_not_there_in_time_is_named(store: CoordinatorStore) -> None:
    with refused(StoreTimeoutError, sentences.not_set(["missing"], 0.05)):
        store.wait(["missing"], 0.05)
    store.set("there", "")
    with refused(StoreTimeoutError, sentences.not_set(["there", "missing"], 0.05)):
        store.wait(["there", "missing"], 0.05)
    store._timeout_s = 0.05
    with pytest.raises(StoreTimeoutError):
        store.multi_get(["there", "missing"])
    with refused(StoreTimeoutError, sentences.not_set(["missing"], 0.05)):
        store.get("missing")
    assert store.get("there") == b""


def test_one_who_waits_no_longer_is_forgotten(served: Served, store: CoordinatorStore) -> None:
    with pytest.raises(StoreTimeoutError):
        store.wait(["a", "b"], 0.05)
    until_waiting(served, 0)


def test_wait_is_for_all_of_the_keys(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    waited = threads.submit(served.store().wait, ["a", "b", "a"])
    until_waiting(served, 1)
    store.set("a", "")
    until_waiting(served, 1)
    assert not waited.done()
    store.set("b", "")
    waited.result(DEADLINE_S)


def test_a_key_that_was_deleted_while_another_is_waited_for_is_waited_for_too(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    store.set("a", "1")
    got = threads.submit(served.store().multi_get, ["a", "b"])
    until_waiting(served, 1)
    store.delete_key("a")
    store.set("b", "2")
    until_waiting(served, 1)
    store.set("a", "3")
    assert got.result(DEADLINE_S) == [b"3", b"2"]


def test_add_counts_from_nothing_and_is_text_to_others(store: CoordinatorStore) -> None:
    assert store.add("n", 3) == 3
    assert store.add("n", -5) == -2
    assert store.get("n") == b"-2"
    store.set("n", "40")
    assert store.add("n", 2) == 42
    store.set("n", "forty")
    with refused(StoreError, sentences.not_a_number("n")):
        store.add("n", 1)
    store.set("n", str(2**63 - 1))
    with refused(StoreError, sentences.number_too_large("n")):
        store.add("n", 1)


def test_adding_at_once_loses_nothing(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    sums = [threads.submit(store.add, "n", 1) for _ in range(200)]
    assert sorted(future.result(DEADLINE_S) for future in sums) == list(range(1, 201))


def test_check_is_about_now(store: CoordinatorStore) -> None:
    store.set("a", "")
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert store.check([])


@pytest.mark.parametrize(
    ("held", "expected", "result", "then"),
    [
        (None, "", b"new", b"new"),
        (None, "old", b"old", None),
        (b"old", "old", b"new", b"new"),
        (b"old", "other", b"old", b"old"),
        (b"old", "", b"old", b"old"),
        (b"", "", b"new", b"new"),
    ],
)
def test_compare_set(
    store: CoordinatorStore, held: bytes | None, expected: str, result: bytes, then: bytes | None
) -> None:
    if held is not None:
        store.set("key", held)
    assert store.compare_set("key", expected, "new") == result
    assert store.check(["key"]) == (then is not None)
    if then is not None:
        assert store.get("key") == then


COMPARISONS = [("x", "1"), ("", "1"), ("", "2"), ("1", "2"), ("1", "3"), ("2", "")]
IN_PYTORCH = f"""
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
print([(store.compare_set("key", *pair), store.check(["key"])) for pair in {COMPARISONS}])
"""


@pytest.mark.torch
@pytest.mark.thorough
def test_compare_set_is_as_in_pytorch(store: CoordinatorStore) -> None:
    theirs = subprocess.run(
        [sys.executable, "-c", IN_PYTORCH], check=True, capture_output=True, text=True, timeout=110
    )
    ours = [(store.compare_set("key", *pair), store.check(["key"])) for pair in COMPARISONS]
    assert str(ours) == theirs.stdout.strip()


def test_delete_key_says_whether_it_was_there(store: CoordinatorStore) -> None:
    store.set("key", "")
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert not store.check(["key"])


def test_num_keys(store: CoordinatorStore) -> None:
    assert store.num_keys() == 0
    store.multi_set(["a", "b"], ["", ""])
    store.set("a", "again")
    assert store.num_keys() == 2
    store.delete_key("a")
    assert store.num_keys() == 1


def test_several_at_once(store: CoordinatorStore) -> None:
    store.multi_set(["a", "b", "c"], ["1", b"2", "3"])
    assert store.multi_get(["c", "a", "c"]) == [b"3", b"1", b"3"]
    assert store.multi_get([]) == []
    with refused(StoreError, sentences.keys_and_values_differ(2, 1)):
        store.multi_set(["a", "b"], ["1"])


def test_append_begins_with_nothing(store: CoordinatorStore) -> None:
    store.append("log", "one ")
    store.append("log", b"two")
    assert store.get("log") == b"one two"


def test_one_thread_waits_while_another_sets_through_the_same_store(
    served: Served, store: CoordinatorStore, threads: ThreadPoolExecutor
) -> None:
    got = threads.submit(store.get, "key")
    until_waiting(served, 1)
    threads.submit(store.set, "key", "value").result(DEADLINE_S)
    assert got.result(DEADLINE_S) == b"value"


# --- rounds ---------------------------------------------------------------------------------


def test_a_new_round_sees_no_key_of_the_old(served: Served, store: CoordinatorStore) -> None:
    store.set("key", "old")
    served.open_round(2)
    newer = served.store(round=2)
    assert newer.num_keys() == 0
    with pytest.raises(StoreTimeoutError):
        newer.wait(["key"], 0.05)
    with pytest.raises(StoreOverError):
        store.set("key", "late")
    assert newer.num_keys() == 0


def test_those_who_wait_are_told_that_their_round_is_over(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    waiting = [threads.submit(served.store().wait, ["a", "b"]) for _ in range(3)]
    until_waiting(served, 3)
    served.open_round(2)
    for future in waiting:
        with pytest.raises(StoreOverError):
            future.result(DEADLINE_S)


def test_a_round_can_end_before_the_next_one_begins(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    waiting = threads.submit(served.store().wait, ["a"])
    until_waiting(served, 1)
    served.end_round(1)
    with pytest.raises(StoreOverError):
        waiting.result(DEADLINE_S)
    with pytest.raises(StoreOverError):
        served.store().set("a", "late")
    served.open_round(2)
    served.end_round(1)
    served.store(round=2).set("a", "of the next round")


def test_a_round_that_is_over_or_has_not_begun_is_refused(served: Served) -> None:
    served.open_round(5)
    with pytest.raises(StoreOverError):
        served.store(round=4).num_keys()
    with refused(StoreError, sentences.round_not_begun(6)) as caught:
        served.store(round=6).num_keys()
    assert not isinstance(caught.value, StoreOverError)


def test_an_older_round_cannot_be_opened_again(served: Served) -> None:
    served.open_round(3)
    served.store(round=3).set("key", "value")
    served.open_round(2)
    served.open_round(3)
    assert served.store(round=3).get("key") == b"value"


# --- limits and strangers -------------------------------------------------------------------


def test_sizes_are_limited(store: CoordinatorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set("large", bytes(stores.VALUE_BYTES))
    assert len(store.get("large")) == stores.VALUE_BYTES
    limit = stores.VALUE_BYTES
    with refused(StoreError, sentences.too_large("value", limit + 1, limit)):
        store.append("large", "x")
    with pytest.raises(StoreError, match="above"):
        store.set("larger", bytes(2 << 20))
    store.set("second", bytes(stores.VALUE_BYTES))
    with refused(StoreError, sentences.answer_too_large(FRAME_LIMIT)):
        store.multi_get(["large", "second"])
    monkeypatch.setattr(stores, "SPACE_BYTES", 5 << 19)
    with refused(StoreError, sentences.store_full(5 << 19)):
        store.set("third", bytes(stores.VALUE_BYTES))
    store.delete_key("second")
    store.set("third", bytes(stores.VALUE_BYTES))


def test_a_full_store_still_wakes_for_what_it_took(
    served: Served,
    store: CoordinatorStore,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got = threads.submit(served.store().get, "small")
    until_waiting(served, 1)
    monkeypatch.setattr(stores, "SPACE_BYTES", 1000)
    with refused(StoreError, sentences.store_full(1000)):
        store.multi_set(["small", "large"], ["1", bytes(5000)])
    assert got.result(DEADLINE_S) == b"1"


def test_a_wrong_token_or_job_is_refused(served: Served) -> None:
    with pytest.raises(StoreError, match="wrong token"):
        CoordinatorStore(served.endpoint, JOB, ConnectionSecurity(b"other")).num_keys()
    with pytest.raises(StoreError, match=f"serves job {JOB}, not other"):
        CoordinatorStore(served.endpoint, "other", SECRET).num_keys()


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"the store at 127\.0\.0\.1:1: refused the connection"):
        CoordinatorStore(Endpoint("127.0.0.1", 1), JOB).num_keys()
    with refused(StoreError, sentences.unresolved("no-such-host.invalid")):
        CoordinatorStore(Endpoint("no-such-host.invalid", 1), JOB).num_keys()


def test_a_second_request_before_the_answer_is_refused(stage: Stage) -> None:
    stage.spaces.open(1)
    stage.serve()
    good = stage.connect("good")
    side, raw = ClientSide(JOB, "worker", "store", OPEN), stage.raw()
    raw.send(side.opening(1))
    stage.until(lambda: raw.frames)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove() + encode(WaitForKeys(("key",))) + encode(WaitForKeys(("other",))))
    stage.until(lambda: raw.is_ended)
    error = read_refusal(raw.frames[-1])
    assert error is not None
    assert error.kind == "garbage"
    assert stage.spaces._space.waiting.by_key == {}
    stage.assert_undisturbed(good)


def test_after_a_fork_the_child_has_a_connection_of_its_own(store: CoordinatorStore) -> None:
    store.set("key", "value")
    child = os.fork()
    if child == 0:
        os._exit(0 if store.get("key") == b"value" and store.add("n", 1) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.add("n", 1) == 2


def test_a_connection_that_was_closed_while_idle_is_replaced(
    served: Served, store: CoordinatorStore, stage: Stage
) -> None:
    store.set("key", "value")

    def close_all() -> None:
        for connection in list(stage.server._connections):
            stage.server._discard(connection)

    served.on_loop(close_all)
    assert store.get("key") == b"value"


def test_with_tls(stage: Stage, certificates: Certificates) -> None:
    served = Served(stage, ConnectionSecurity(b"token", certificates.files()))
    try:
        store = served.store()
        store.set("key", bytes(500_000))
        assert store.get("key") == bytes(500_000)
    finally:
        served.close()
