"""What requests to the store may cost: in memory, and in looking at keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.store import key_spaces as stores
from holdfast.store import sentences
from holdfast.store import waiting as store_waiting
from holdfast.store.client import StoreError
from holdfast.store.messages import Done, Get, NotDone, Set, WaitForKeys, answers
from holdfast.transport import connection
from holdfast.transport.auth import OPEN
from holdfast.transport.frames import encode
from holdfast.transport.handshake import ClientSide

from ..transport.stage import DEADLINE_S, JOB, Raw, Stage
from .test_key_spaces import Served, refused, until_waiting


@pytest.fixture
def served(stage: Stage) -> Iterator[Served]:
    served = Served(stage)
    yield served
    served.close()


def line(stage: Stage, number: int = 0) -> Raw:
    """A store connection that does what it likes."""
    side, raw = ClientSide(JOB, f"worker{number}", "store", OPEN), stage.raw()
    raw.send(side.opening(1))
    stage.until(lambda: raw.frames)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    stage.until(lambda: len(raw.frames) == 2)
    return raw


def asked(stage: Stage, raw: Raw, request: WaitForKeys | Get | Set) -> object:
    """The answer to a request; None if it waits, once the server has looked at it."""
    before = len(raw.frames)
    raw.send(encode(request))
    waiting = stage.spaces._space.waiting
    held = waiting.bytes_held
    stage.until(lambda: len(raw.frames) > before or waiting.bytes_held > held)
    return answers.decode(raw.frames[-1]) if len(raw.frames) > before else None


@pytest.mark.parametrize("ask", ["wait", "multi_get", "check"])
def test_the_keys_of_one_request_are_limited(served: Served, ask: str) -> None:
    store = served.store()
    keys = [f"key{number}" for number in range(store_waiting.KEYS_MOST + 1)]
    call: Callable[[list[str]], object] = getattr(store, ask)
    with refused(StoreError, sentences.too_many_keys(len(keys), store_waiting.KEYS_MOST)):
        call(keys)
    store.set("key0", "1")
    assert store.get("key0") == b"1"
    assert served.waiting() == 0


def test_as_many_keys_as_are_allowed_are_waited_for(served: Served) -> None:
    keys = [f"key{number}" for number in range(store_waiting.KEYS_MOST)]
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(served.store().multi_get, keys)
        until_waiting(served, 1)
        store = served.store()
        store.multi_set(keys[1:], ["1"] * (len(keys) - 1))
        store.set(keys[0], "0")
        assert got.result(DEADLINE_S) == [b"0"] + [b"1"] * (len(keys) - 1)


def test_all_who_wait_hold_a_bounded_room(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_waiting, "WAITING_BYTES", 1 << 20)
    stage.spaces.open(1)
    stage.serve()
    good = stage.connect("good")
    refused: list[Raw] = []
    waiting: list[Raw] = []
    for number in range(40):
        raw = line(stage, number)
        answer = asked(stage, raw, WaitForKeys(tuple(f"{number}/{key}" for key in range(1000))))
        (waiting if answer is None else refused).append(raw)
        if answer is not None:
            assert isinstance(answer, NotDone)
            assert answer.reason == sentences.too_many_waiting(1 << 20)
        assert stage.spaces._space.waiting.bytes_held <= 1 << 20
    assert len(waiting) > 5
    assert len(refused) > 5
    # Others are served, and who was refused may ask for what there is room for.
    assert isinstance(asked(stage, refused[0], Set((("key", b"1"),))), Done)
    for raw in waiting:
        raw.close()
    stage.until(lambda: stage.spaces._space.waiting.bytes_held == 0)
    assert asked(stage, refused[0], WaitForKeys(("later",))) is None
    stage.assert_undisturbed(good)


def test_those_who_wait_for_the_same_keys_share_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that meets: each waits for the keys of all."""
    monkeypatch.setattr(store_waiting, "WAITING_BYTES", 1 << 20)
    stage.spaces.open(1)
    stage.serve()
    keys = tuple(f"a prefix of some length/{number}" for number in range(500))
    crowd = [line(stage, number) for number in range(60)]
    for raw in crowd:
        assert asked(stage, raw, Get(keys)) is None
    setter = line(stage, 99)
    for key in keys:
        assert isinstance(asked(stage, setter, Set(((key, b"1"),))), Done)
    stage.until(lambda: all(len(raw.frames) == 3 for raw in crowd))
    waiting = stage.spaces._space.waiting
    assert (waiting.bytes_held, waiting.by_key, waiting._lists) == (0, {}, {})


def test_one_that_asks_on_without_reading_is_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OUTPUT_LIMIT", 1 << 30)
    stage.spaces.open(1)
    stage.serve()
    good = stage.connect("good")
    raw = line(stage)
    assert isinstance(asked(stage, raw, Set((("large", bytes(1_000_000)),))), Done)
    raw.read_no_more()
    for _ in range(20):
        raw.send(encode(Get(("large",))))
    stage.until(lambda: stage.server.rejected["slow reader"])
    stage.assert_undisturbed(good)


def test_a_key_is_limited_too(served: Served) -> None:
    store = served.store()
    with refused(StoreError, sentences.too_large("key", stores.KEY_BYTES + 1, stores.KEY_BYTES)):
        store.set("k" * (stores.KEY_BYTES + 1), "")
    store.set("k" * stores.KEY_BYTES, "1")
