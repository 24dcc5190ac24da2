"""A register that works, loses replies, is late, or is not there.

It keeps the one promise of a register: compare-and-set is atomic. It uses every freedom: reads
may be stale, a reply may be lost although the write was done, a write may be done long after
its caller has given up waiting.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from holdfast.core.document import Document
from holdfast.core.leadership_io import (
    LeadershipEvent,
    ReadRegister,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    WriteRegister,
)
from holdfast.testing.timeline import Timeline

LATE_S = 2.5
STALE_S = 1.5


class Caller(Protocol):
    """Who asks the register: replies are posted to it."""

    @property
    def host(self) -> int: ...

    def answered(self, event: LeadershipEvent) -> None: ...

    def recorded(self, document: Document) -> None: ...


class Register:
    """One document, its token, and what is wrong with the way to it."""

    def __init__(self, timeline: Timeline, random: Random, timeout_s: float) -> None:
        self._timeline = timeline
        self._random = random
        self._timeout_s = timeout_s
        self.document: Document | None = None
        self.token = 0
        self._versions: list[tuple[float, Document | None, int]] = [(0.0, None, 0)]
        self.down = 0
        """How many faults keep everybody from it."""
        self.cut_off: dict[int, int] = {}
        self.lossy = 0
        self.stale = 0
        self._watchers: dict[int, Caller] = {}

    def ask(self, caller: Caller, request: ReadRegister | WriteRegister) -> None:
        random = self._random
        unclear = RegisterUnclear(False)
        if isinstance(request, WriteRegister):
            unclear = RegisterUnclear(True, request.document.nonce)
        delay_s = 0.002 + 0.02 * random.random()
        lost = self.lossy and random.random() < 0.4
        if self._unreachable(caller.host) or lost:
            self._timeline.after(self._timeout_s, caller.answered, unclear)
            if lost and random.random() < 0.5:
                # Done all the same, soon or late; only nobody is told.
                late_s = LATE_S if random.random() < 0.3 else self._timeout_s
                self._timeline.after(late_s * random.random(), self._serve, caller, request, False)
            return
        self._timeline.after(delay_s, self._serve, caller, request, True)

    def watch(self, caller: Caller, on: bool) -> None:
        """Tell this caller of every change from now on, or no longer."""
        if on:
            self._watchers[id(caller)] = caller
        else:
            self._watchers.pop(id(caller), None)

    def _tell_watchers(self) -> None:
        for caller in self._watchers.values():
            delay_s = 0.002 + 0.02 * self._random.random()
            self._timeline.after(delay_s, self._push, caller, self.document, self.token)

    def _push(self, caller: Caller, document: Document | None, token: int) -> None:
        """A way that is cut breaks the watch off: the caller is told, and watches again."""
        if self._watchers.get(id(caller)) is not caller:
            return
        if self._unreachable(caller.host):
            del self._watchers[id(caller)]
            self._timeline.after(self._timeout_s, caller.answered, RegisterUnclear(False))
        else:
            caller.answered(RegisterRead(document, token))

    def _unreachable(self, host: int) -> bool:
        return bool(self.down) or bool(self.cut_off.get(host))

    def _serve(self, caller: Caller, request: ReadRegister | WriteRegister, answers: bool) -> None:
        event: LeadershipEvent
        if isinstance(request, WriteRegister):
            event = self._write(caller, request)
        else:
            document, token = self._read()
            event = RegisterRead(document, token)
        if answers:
            self._timeline.after(0.002 + 0.02 * self._random.random(), caller.answered, event)

    def _read(self) -> tuple[Document | None, int]:
        if not self.stale or self._random.random() < 0.5:
            return self.document, self.token
        since = self._timeline.now - STALE_S * self._random.random()
        older = [version for version in self._versions if version[0] <= since]
        _, document, token = older[-1] if older else self._versions[0]
        return document, token

    def _write(self, caller: Caller, request: WriteRegister) -> RegisterWrote:
        if request.token != self.token:
            return RegisterWrote(False, self.document, self.token, request.document.nonce)
        self.document = request.document
        self.token += 1
        self._versions.append((self._timeline.now, self.document, self.token))
        del self._versions[:-32]
        self._tell_watchers()
        caller.recorded(request.document)
        return RegisterWrote(True, self.document, self.token, request.document.nonce)
