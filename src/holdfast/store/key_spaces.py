"""A key-value store on the coordinator's server, with a key space for each round.

Rules
- One round's keys are never seen in another: a connection belongs to the space of the round
  that it named. `KeySpaces.open(round)` opens the next space and drops all older ones; who
  waited in them is told that the round is over.
- A request for a key that is not there is answered when it is: nothing polls, and no clock
  runs here. A client that does not want to wait any longer hangs up.
- A connection has one request at a time, and reads the answer before the next. Sizes are limited:
  of a value by `VALUE_BYTES`, of a key by `KEY_BYTES`, of all keys and values of a space by
  `SPACE_BYTES`, of waiting in `store_waiting`.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.store import messages, sentences
from holdfast.store.waiting import CannotDo, Waiter, Waiters, require_few, size_of
from holdfast.transport.connection import FramedConnection
from holdfast.transport.frames import FRAME_LIMIT, ProtocolError, encode

SPACE_BYTES = 64 << 20
BYTES_PER_KEY = 128
"""Counted for each key beside its own and its value's length: what it costs to hold it."""
VALUE_BYTES = FRAME_LIMIT - 4096
KEY_BYTES = 4096
_DONE = messages.Done()
_BYTES_AROUND_VALUES = 1024
"""Overhead of a frame of values, at most, with ten bytes more for each value."""


class Space(Struct, eq=False):
    """The keys of one round, and who waits for which."""

    round: int
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: Waiters = field(default_factory=Waiters)
    bytes_held: int = 0
    deletions: int = 0
    is_over: bool = False

    def end(self) -> None:
        """Drop all keys, and tell those who wait for one."""
        self.is_over = True
        told = self.waiting.end()
        self.values.clear()
        for connection in told:
            connection.state = self
            _answer(connection, _over(self.round))

    def put(self, key: str, value: bytes) -> None:
        """Set a key; raises `CannotDo` when there is no room for it."""
        if len(value) > VALUE_BYTES:
            raise CannotDo(sentences.too_large("value", len(value), VALUE_BYTES))
        if size_of(key) > KEY_BYTES:
            raise CannotDo(sentences.too_large("key", size_of(key), KEY_BYTES))
        old = self.values.get(key)
        growth = len(value) - len(old) if old is not None else _cost(key, value)
        if growth > 0 and self.bytes_held + growth > SPACE_BYTES:
            raise CannotDo(sentences.store_full(SPACE_BYTES))
        self.bytes_held += growth
        self.values[key] = value

    def remove(self, key: str) -> bool:
        value = self.values.pop(key, None)
        if value is None:
            return False
        self.bytes_held -= _cost(key, value)
        self.deletions += 1
        return True

    def read(self, keys: tuple[str, ...]) -> messages.Values:
        """All the values; raises `CannotDo` when one frame cannot hold them."""
        values = tuple(self.values[key] for key in keys)
        if sum(map(len, values)) + 10 * len(values) + _BYTES_AROUND_VALUES > FRAME_LIMIT:
            raise CannotDo(sentences.answer_too_large(FRAME_LIMIT))
        return messages.Values(values)


def _cost(key: str, value: bytes) -> int:
    return size_of(key) + len(value) + BYTES_PER_KEY


class KeySpaces:
    """Serves the store connections of a `Server`."""

    def __init__(self) -> None:
        self._space = Space(0, is_over=True)

    @property
    def round(self) -> int:
        """The round whose keys are served; 0 before the first."""
        return self._space.round

    def open(self, round: int) -> None:
        """Begin a round's key space and drop the older one. Older rounds are ignored."""
        if round <= self._space.round:
            return
        older, self._space = self._space, Space(round)
        older.end()

    def end(self, round: int) -> None:
        """Drop a round's keys, unless a later round has begun."""
        if round == self._space.round:
            self._space.end()

    # What the server asks.

    def require(self, round: int) -> None:
        """Raise `ProtocolError` unless this round's keys are served now."""
        if round < self._space.round:
            raise ProtocolError("round", sentences.round_over(round))
        if round > self._space.round:
            raise ProtocolError("round", sentences.round_not_begun(round), permanent=False)

    def admit(self, connection: FramedConnection, round: int) -> None:
        connection.state = self._space
        connection.on_frame = self._on_request

    def ended(self, connection: FramedConnection) -> None:
        """Forget what the connection waited for."""
        if isinstance(connection.state, Waiter):
            self._space.waiting.give_up(connection.state)

    # Requests.

    def _on_request(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        space = connection.state
        if isinstance(space, Waiter):
            raise ProtocolError("garbage", "a store request while another is waiting")
        if connection.has_unread:
            raise ProtocolError("slow reader", "a store request before the last answer was read")
        request = messages.requests.decode(payload)
        if space.is_over:
            _answer(connection, _over(space.round))
            return
        try:
            answer = _do(space, request)
            if answer is None:
                assert isinstance(request, messages.Get | messages.WaitForKeys)
                is_get = isinstance(request, messages.Get)
                waiter = Waiter(connection, request.keys, is_get, space.deletions)
                space.waiting.begin(waiter, space.values)
        except CannotDo as refusal:
            answer = messages.NotDone(str(refusal))
        if answer is not None:
            _answer(connection, answer)
        # Even of a request that could not be done in full, a part may have been.
        _wake(space, request)


def _over(round: int) -> messages.NotDone:
    return messages.NotDone(sentences.round_over(round), is_over=True)


def _answer(connection: FramedConnection, answer: messages.Answer) -> None:
    connection.send(encode(answer))


def _do(space: Space, request: messages.AnyRequest) -> messages.Answer | None:
    """Carry a request out; None if it has to wait; raises `CannotDo`."""
    if isinstance(request, messages.Get | messages.WaitForKeys | messages.Check):
        require_few(request.keys)
    match request:
        case messages.Set(pairs):
            for key, value in pairs:
                space.put(key, value)
            return _DONE
        case messages.Get(keys) | messages.WaitForKeys(keys) if not all(
            key in space.values for key in keys
        ):
            return None
        case messages.Get(keys):
            return space.read(keys)
        case messages.WaitForKeys():
            return _DONE
        case messages.Check(keys):
            return messages.Number(int(all(key in space.values for key in keys)))
        case messages.Add(key, amount):
            return messages.Number(_add(space, key, amount))
        case messages.Append(key, value):
            space.put(key, space.values.get(key, b"") + value)
            return messages.Number(len(space.values[key]))
        case messages.CompareSet():
            return messages.Values((_compare_set(space, request),))
        case messages.Delete(key):
            return messages.Number(int(space.remove(key)))
        case messages.CountKeys():
            return messages.Number(len(space.values))


def _add(space: Space, key: str, amount: int) -> int:
    old = space.values.get(key, b"0")
    try:
        number = int(old) + amount
    except ValueError:
        raise CannotDo(sentences.not_a_number(key)) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise CannotDo(sentences.number_too_large(key))
    space.put(key, b"%d" % number)
    return number


def _compare_set(space: Space, request: messages.CompareSet) -> bytes:
    """The value of the key afterwards; the expected one if it has none, as in TCPStore."""
    current = space.values.get(request.key)
    if current is None and request.expected:
        return request.expected
    if current is not None and current != request.expected:
        return current
    space.put(request.key, request.desired)
    return request.desired


# Waiting.


def _wake(space: Space, request: messages.AnyRequest) -> None:
    """Answer those who waited for what the request has set."""
    match request:
        case messages.Set(pairs):
            keys = [key for key, _ in pairs]
        case messages.Add(key) | messages.Append(key) | messages.CompareSet(key):
            keys = [key]
        case _:
            return
    for key in keys:
        if key in space.waiting.by_key and key in space.values:
            for waiter in space.waiting.found(key, space.values, space.deletions):
                waiter.connection.state = space
                _answer(waiter.connection, _found(space, waiter))


def _found(space: Space, waiter: Waiter) -> messages.Answer:
    if not waiter.wants_values:
        return _DONE
    try:
        return space.read(waiter.keys)
    except CannotDo as refusal:
        return messages.NotDone(str(refusal))
