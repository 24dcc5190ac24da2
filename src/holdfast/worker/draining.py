"""Tells a worker that it is to save: its round ends in order, or a save was requested.

Rules
1. Asking costs next to nothing, so that it can be done at every step: one byte is read of a page
   that the agent shares with its workers, and no system call is made.
2. A worker that says which step it is at gets the same answer as every other worker of the job at
   that very step. So, once the round is to end, it waits for a moment here: until it is known which
   step is the first that no worker has passed, and that is where all of them save.
   A worker that asked just before the news goes on, and may need those that wait here for its next
   step: so each notes where it asks, before it looks, and its agent need not wait to hear of it.
3. Nobody waits longer than there is time, and where there is no agent the answer is no. Where the
   round goes on, the wait ends with the step, or with the word that there is nothing to save any
   more: a worker that went on by itself would be missing where the others save.
4. What was saved is said (`Drain.saved`), or the worker ends: then nobody waits for it any more.
   Where the round goes on, asking again says the same, and that this worker goes on: one that ends
   instead has left the round, as programs do that were written for leaving alone.

A signal that is sent to every process of a node does not end a worker that asks: see
`worker.shield`.

The page comes as a descriptor over the channel, when this is first asked; with that the worker is
one that is waited for. What is on it is in JSON behind a checksum, since it may change while it is
read: what does not fit its sum is not there yet. Standard library only, and little of it.
"""

from __future__ import annotations

import operator
import os
import socket
from typing import TYPE_CHECKING, Any, SupportsIndex

from holdfast.worker.channel import VARIABLE, connect_to_agent, encode
from holdfast.worker.page import ASKED, open_page
from holdfast.worker.shield import Shield

if TYPE_CHECKING:
    from mmap import mmap

    from holdfast.worker.page import Page

PAGE_SIZE = 4096
SUM_AT, LENGTH_AT, BODY_AT = 4, 8, 12
SIGNALS_AT = PAGE_SIZE - 8
"""A mask of the signals that ask a node to leave, for `worker.shield`."""
REASON_MOST = 500
"""Characters of the reason that are on the page: it all fits, however they are written in JSON."""
ANSWER_S = 5.0
ATTEMPTS = 3
NEWS = b"news"
"""Sent by the agent when the page has changed, for workers that wait."""
KEY = "save"
_NEVER = b"\0"
"""The page of a worker that has no agent."""
_LOOK = b"\1"
"""In place of the page: what is asked next is looked at, whatever is shown by then."""


class Drain:
    """Save now: the round is to end, or somebody wants it. True where a condition is asked for."""

    __slots__ = ("_until", "leaving", "reason", "step")

    def __init__(self, until: float, reason: str, step: int | None, leaving: bool = True) -> None:
        self._until = until
        self.leaving = leaving
        """Whether this round ends when all have saved; otherwise it goes on: do not break."""
        self.reason = reason
        """Why the round ends (a node has to leave, or has joined), or who requested the save."""
        self.step = step
        """The step at which all save, where workers have said theirs."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the workers are stopped, saved or not."""
        return max(0.0, self._until - _now())

    def saved(self) -> None:
        """Say that nothing is left to save here. `draining` answers no from then on."""
        _watch.say_saved()

    def __repr__(self) -> str:
        return f"<Drain: {self.reason}; {self.seconds_left:.1f} s left>"


class _DrainWatch:
    """The page as this process sees it, and its connection to the agent."""

    def __init__(self) -> None:
        self.page: mmap | bytes | None = None
        self._signs: Page | None = None
        """The page that the agent reads (`worker.page`)."""
        self._line: socket.socket | None = None
        self._attempts = 0
        self._waits = self._was_told = self._has_saved = False
        self._serial = 0
        """Of the last that was looked at: each is another time to save."""
        self._told: bool | None = None
        """It was told to save, and goes on as far as is known: whether the round was to end."""
        self._shared: mmap | bytes | None = None
        """The page of the agent. `page` is another one while the next request is looked at."""

    def open(self) -> mmap | bytes:
        """Ask for the page; a process that has it hears when the agent does."""
        name = os.environ.get(VARIABLE)
        self._attempts += 1
        if not name or self._attempts > ATTEMPTS:
            self.page = _NEVER
            return _NEVER
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.settimeout(ANSWER_S)
            connect_to_agent(line, name)
            line.send(encode({KEY: "listens"}), socket.MSG_NOSIGNAL)
            _, (descriptor, *_), _, _ = socket.recv_fds(line, len(NEWS), 1)
            page = self.page = self._shared = _mapped(descriptor)
            self._line = line
        except (OSError, ValueError):
            line.close()  # It is gone, or behind: the next call tries again.
            return _NEVER
        signals = int.from_bytes(page[SIGNALS_AT:PAGE_SIZE], "little")
        _shield.install(self._opened(), signals, self._signal_came)
        return page

    def _opened(self) -> Page:
        if self._signs is None:
            self._signs = open_page(os.environ)
        return self._signs

    def _signal_came(self) -> None:
        """It may be about this worker alone: that shows when it asks next."""
        self.page = _LOOK

    def note(self, step: int) -> None:
        """Leave where it asks (rule 2)."""
        signs = self._signs or self._opened()
        try:
            signs.words[ASKED] = step + 1
        except ValueError:
            pass  # More than 64 bits: no step of anything, and no reason to end a training.

    def look(self, step: int | None) -> Drain | None:
        """Something is to be saved: whether it is this worker's turn."""
        if self._told is not None:
            self._asked_again(self._told)
        drain = self._answer(step)
        self.page = self._shared
        if self._told is not None or _shield.received is not None:
            self.page = _LOOK
        return drain

    def _answer(self, step: int | None) -> Drain | None:
        shown = self._shown()
        if shown is None:
            _shield.end_if_alone()
            return None
        _shield.received = None  # Whatever came, this worker is asked to save.
        if self._has_saved:
            return None
        if step is not None and shown["step"] is None:
            shown = self._wait(step)
        at = shown["step"] if shown is not None else None
        if shown is None or (step is not None and (at is None or step < at)):
            return None
        if not self._was_told:
            self._was_told = True
            self._say({KEY: "told"})
        self._told = shown["leaves"]
        return Drain(shown["until"], shown["reason"], at, shown["leaves"])

    def _asked_again(self, leaves: bool) -> None:
        """It asks again after it was told to save: it has saved, if the round goes on (rule 4)."""
        shown = read(self._shared) if self._shared is not None else None
        if leaves and shown is not None and shown["serial"] == self._serial:
            return  # The round is about to end.
        self._told = None
        self.say_saved()
        self._say({KEY: "goes on"})

    def _wait(self, step: int) -> dict[str, Any] | None:
        """Until it is known where all save, or there is no time left (rules 2 and 3)."""
        shown = self._shown()
        while self._shared is not None and self._shared[0]:
            if shown is not None and shown["step"] is not None:
                return shown
            if shown is not None and not self._waits:
                self._waits = True
                self._say({KEY: "waits", "step": step})
            bounded = shown is not None and shown["leaves"]
            left_s = shown["until"] - _now() if shown is not None and bounded else None
            if self._line is None or not self._hears(left_s):
                return None
            shown = self._shown()
        return None  # There is nothing to save any more.

    def _hears(self, within_s: float | None) -> bool:
        """News, within that time where there is a bound; False where none come."""
        if within_s is not None and within_s <= 0:
            return False
        assert self._line is not None, "nobody is there to hear"
        try:
            self._line.settimeout(within_s)
            return bool(self._line.recv(len(NEWS)))
        except OSError:
            return False

    def say_saved(self) -> None:
        if not self._has_saved:
            self._has_saved = True
            self._say({KEY: "saved"})

    def _say(self, message: dict[str, Any]) -> None:
        if self._line is None:
            return
        message["serial"] = self._serial
        try:
            self._line.send(encode(message), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # The agent is gone, and this worker with it in a moment.

    def begin_anew(self) -> None:
        """In a forked child, which is another process: it needs a line of its own."""
        if self._line is not None:
            self._line.close()  # Only its copy.
        self.page = self._line = self._shared = self._told = None
        self._signs = None
        _shield.remove()
        self._attempts = self._serial = 0
        self._waits = self._was_told = self._has_saved = False

    def _shown(self) -> dict[str, Any] | None:
        shown = read(self._shared) if self._shared is not None else None
        if shown is not None and shown["serial"] != self._serial:
            self._serial = shown["serial"]
            self._waits = self._was_told = self._has_saved = False
        return shown


def _now() -> float:
    """On the agent's clock, which goes on while a machine sleeps."""
    import time

    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _mapped(descriptor: int) -> mmap:
    import mmap

    try:
        return mmap.mmap(descriptor, PAGE_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)


def read(page: mmap | bytes) -> dict[str, Any] | None:
    """The content of the page; None while it is empty or being written."""
    import json
    import zlib

    if not page[0]:
        return None
    length = int.from_bytes(page[LENGTH_AT : LENGTH_AT + 4], "little")
    body = bytes(page[BODY_AT : BODY_AT + min(length, PAGE_SIZE)])
    if zlib.crc32(body) != int.from_bytes(page[SUM_AT : SUM_AT + 4], "little"):
        return None
    shown: dict[str, Any] = json.loads(body)
    return shown


_shield = Shield()
_watch = _DrainWatch()
os.register_at_fork(after_in_child=_watch.begin_anew)


def draining(step: SupportsIndex | None = None) -> Drain | None:
    """Whether to save now: the round ends, or a save was requested. Cheap enough for every step.

    A round ends in order when a node has to leave or another one joins, and when somebody asks for
    a restart or another number of nodes.

    With the number of the step, which every worker counts alike, all workers of the job are told at
    one and the same step: save together there, then call `saved()` on the answer, or end. Without
    it, each is told as soon as it asks, and they have to agree by themselves. Raises `TypeError`
    for what is not a whole number.
    """
    page = _watch.page
    if page is None:
        page = _watch.open()
    at = None if step is None else operator.index(step)
    if at is not None:
        _watch.note(at)
    _shield.note_asked()
    return _watch.look(at) if page[0] else None
