"""A register off the loop: its calls block in a thread, its answers come on the loop.

Rules
1. Every request is answered exactly once, on the loop, and never from within the call that asks.
   What has not been answered within `patience_s` is answered with `NoAnswer`; what comes later
   is dropped.
2. One register object is used by one thread at a time. Where a call hangs, its thread and its
   object are left alone, and the next request gets new ones; when too many hang, nothing more
   is tried until one of them comes back.
3. Changes are waited for in a thread of their own, on an object of its own.
4. Tokens stay on this side: the loop knows each by a number, and 0 is that of nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.registers.register import (
    Closes,
    Forgets,
    KeepsForATime,
    Register,
    RegisterRefused,
    Token,
    WaitsForChange,
)
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.runtime.thread_calls import ThreadCalls

HANGING_MAX = 3
TOKENS_KNOWN = 32
WAIT_S = 30.0
"""Duration of one wait for a change, before the next begins."""
FAREWELL_S = 1.0
"""Time that `close` gives the register to release what it holds."""


class RegisterAnswer(Struct, frozen=True):
    """The content of the register; None where nothing was ever written."""

    content: bytes | None
    token: int
    has_set: bool = False
    expired: bool = False


class NoAnswer(Struct, frozen=True):
    """Nothing is known; `refused` if asking again is of no use."""

    reason: str
    refused: bool = False


Reply: TypeAlias = RegisterAnswer | NoAnswer
OnReply: TypeAlias = Callable[[Reply], None]
JobRequest: TypeAlias = Callable[[Register], Any]


class RegisterContent(Struct, frozen=True):
    """An answer as the register gave it, on its way to the loop."""

    content: bytes | None
    token: Token
    has_set: bool = False
    expired: bool = False


def _read(register: Register) -> RegisterContent:
    found = register.get_state()
    content, token = (None, None) if found is None else found
    return RegisterContent(content, token, expired=getattr(register, "holder_expired", False))


def _write(register: Register, content: bytes, token: Token | None) -> RegisterContent:
    found = register.set_state(content, token)
    if found is None:
        return _read(register)  # PyTorch's word for "not set, and nothing to show".
    return RegisterContent(*found)


class RegisterThread:
    """One job's register, as the loop sees it."""

    def __init__(self, loop: Loop, make: Callable[[], Register], patience_s: float) -> None:
        """`make` is called here once, and in other threads when one hangs."""
        self._loop, self._make, self._patience_s = loop, make, patience_s
        self._tokens: dict[int, Token] = {}
        self._numbers = 0
        self._asked = 0
        self._waiting: dict[int, OpenRequest] = {}
        self._hanging: list[AskingThread] = []
        self._watcher: Watcher | None = None
        self._calls = ThreadCalls(loop)
        first = make()
        self.tells_of_changes = isinstance(first, WaitsForChange)
        self.can_forget = isinstance(first, Forgets)
        self._caller: AskingThread | None = AskingThread(lambda: first, self._tell)

    def _tell(self, number: int, found: RegisterContent | NoAnswer) -> None:
        """From any thread."""
        self._calls.put(self._on_answer, number, found)

    # Requests.

    def read(self, reply: OnReply) -> None:
        self._ask(_read, reply)

    def write(
        self, content: bytes, token: int, reply: OnReply, keep_s: float | None = None
    ) -> None:
        """`keep_s` is how long this, and what follows, has to outlive us; None: as usual."""
        expected = self._tokens.get(token)
        if token and expected is None:
            self._loop.call_soon(reply, NoAnswer("the version is too old to be known"))
            return

        def write(register: Register) -> RegisterContent:
            if keep_s is not None and isinstance(register, KeepsForATime):
                register.keep_for(keep_s)
            return _write(register, content, expected)

        self._ask(write, reply)

    def forget_after(self, seconds: float, reply: OnReply) -> None:
        """The job is over: nothing of it has to be kept for longer."""

        def forget(register: Register) -> RegisterContent:
            if isinstance(register, Forgets):
                register.forget_after(seconds)
            return RegisterContent(None, None)

        self._ask(forget, reply)

    def _ask(self, request: JobRequest, reply: OnReply) -> None:
        self._asked += 1
        self._hanging = [caller for caller in self._hanging if caller.is_alive()]
        if self._caller is None and len(self._hanging) < HANGING_MAX:
            self._caller = AskingThread(self._make, self._tell)
        timer = self._loop.call_later(self._patience_s, self._give_up, self._asked)
        self._waiting[self._asked] = OpenRequest(reply, timer, self._caller)
        if self._caller is not None:
            self._caller.ask(self._asked, request)

    def _give_up(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        # It may have been given up for an earlier request: the one in its place does not hang.
        if self._caller is not None and waiting.caller is self._caller:
            self._caller.end()
            self._hanging.append(self._caller)
            self._caller = None
        waiting.reply(NoAnswer(f"no answer within {self._patience_s:g} s"))

    def _on_answer(self, number: int, found: RegisterContent | NoAnswer) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.reply(self._numbered(found))

    # Changes.

    def watch(self, token: int, reply: OnReply) -> None:
        """Tell of every change after that version, until `stop_watching` or a `NoAnswer`."""
        self.stop_watching()
        self._asked += 1
        number = self._asked

        def on_change(found: RegisterContent | NoAnswer) -> None:
            if self._watcher is not None and self._watcher.number == number:
                reply(self._numbered(found))

        self._watcher = Watcher(number, self._make, self._tokens.get(token), self._loop, on_change)

    def stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.end()

    # Tokens.

    def _numbered(self, found: RegisterContent | NoAnswer) -> Reply:
        if isinstance(found, NoAnswer):
            return found
        number = self._number_of(found.token)
        return RegisterAnswer(found.content, number, found.has_set, found.expired)

    def _number_of(self, token: Token) -> int:
        if token is None:
            return 0
        for number, known in self._tokens.items():
            if known == token:
                return number
        self._numbers += 1
        self._tokens[self._numbers] = token
        if len(self._tokens) > TOKENS_KNOWN:
            del self._tokens[next(iter(self._tokens))]
        return self._numbers

    # The end.

    def close(self) -> None:
        """Let the register go of what it holds, if it can be had soon; then forget it."""
        self.stop_watching()
        for waiting in self._waiting.values():
            waiting.timer.cancel()
        self._waiting.clear()
        if self._caller is not None:
            self._caller.ask(0, _close)
            self._caller.end()
            self._caller.join(FAREWELL_S)
        self._calls.close()


def _close(register: Register) -> RegisterContent:
    if isinstance(register, Closes):
        register.close()
    return RegisterContent(None, None)


class OpenRequest(Struct, frozen=True):
    """A request that has not been answered."""

    reply: OnReply
    timer: Cancellable
    caller: AskingThread | None
    """The thread that got the call; None where too many hang."""


class AskingThread(threading.Thread):
    """A thread that asks one register one thing after the other. It keeps no process alive."""

    def __init__(
        self, make: Callable[[], Register], tell: Callable[[int, RegisterContent | NoAnswer], None]
    ) -> None:
        super().__init__(name="register", daemon=True)
        self._make, self._tell = make, tell
        self._requests: SimpleQueue[tuple[int, JobRequest] | None] = SimpleQueue()
        self.start()

    def ask(self, number: int, request: JobRequest) -> None:
        self._requests.put((number, request))

    def end(self) -> None:
        """After what was asked before."""
        self._requests.put(None)

    def run(self) -> None:
        register: Register | None = None
        while (asked := self._requests.get()) is not None:
            number, request = asked
            try:
                if register is None:
                    register = self._make()
                found: RegisterContent | NoAnswer = request(register)
            except Exception as error:  # noqa: BLE001 - a register is anybody's code
                found = _no_answer(error)
            self._tell(number, found)


def _no_answer(error: Exception) -> NoAnswer:
    words = str(error) or type(error).__name__
    return NoAnswer(words, isinstance(error, RegisterRefused))


class Watcher(threading.Thread):
    """A thread that waits for changes, until one wait fails."""

    def __init__(
        self,
        number: int,
        make: Callable[[], Register],
        token: Token | None,
        loop: Loop,
        on_change: Callable[[RegisterContent | NoAnswer], None],
    ) -> None:
        super().__init__(name="register's changes", daemon=True)
        self.number = number
        self._token = token
        self._ended = threading.Event()
        self._calls, self._on_change = ThreadCalls(loop), on_change
        self._make = make
        self._held: list[Register] = []
        """The register, until somebody takes it to close it: this thread or another."""
        self.start()

    def run(self) -> None:
        try:
            self._wait(self._make())
        except Exception as error:  # noqa: BLE001 - a register is anybody's code
            self._calls.put(self._on_change, _no_answer(error))

    def _wait(self, register: Register) -> None:
        assert isinstance(register, WaitsForChange), "it was asked for"
        self._held.append(register)  # Before the look whether it has ended: one of us sees it.
        while not self._ended.is_set():
            changed = register.wait_for_change(self._token, WAIT_S)
            if changed is not None:
                content, self._token = changed
                expired = getattr(register, "holder_expired", False)
                found = RegisterContent(content, self._token, expired=expired)
                self._calls.put(self._on_change, found)
        self._let_go()

    def end(self) -> None:
        """Tell nothing more. The thread ends when its wait does, which closing cuts short."""
        self._ended.set()
        self._calls.close()
        if self._held:
            # Not here: it may have to wait until the other thread lets go of the register.
            threading.Thread(target=self._let_go, daemon=True).start()

    def _let_go(self) -> None:
        """Close the register, once, whichever thread comes first."""
        try:
            register = self._held.pop()
        except IndexError:
            return
        if isinstance(register, Closes):
            register.close()
