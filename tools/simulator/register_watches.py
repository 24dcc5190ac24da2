"""Whoever wants to be told of a register's changes, and what becomes of what they are told.

Rules
1. Each is told in order, unless the order itself is what goes wrong.
2. A way that is cut breaks a watch off: its caller is told, and has to watch again.
3. A watch may be broken without a word. Its caller is told when that is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tools.simulator.timeline import Timeline

from holdfast.registers.register_thread import NoAnswer, OnReply, RegisterAnswer

if TYPE_CHECKING:
    from tools.simulator.register import RegisterCaller

TWICE = 0.3
"""How often something is told twice where pushes are jumbled."""

IsCut = Callable[[int], bool]


class RegisterWatch:
    """One caller's."""

    __slots__ = ("broken", "caller", "last_at", "tell")

    def __init__(self, caller: RegisterCaller, tell: OnReply) -> None:
        self.caller, self.tell = caller, tell
        self.last_at = 0.0
        self.broken = False


class Watches:
    """All of a register."""

    def __init__(
        self, timeline: Timeline, random: Random, patience_s: float, term_s: float
    ) -> None:
        self._timeline = timeline
        self._random = random
        self._patience_s = patience_s
        self._term_s = term_s
        self._watches: dict[RegisterCaller, RegisterWatch] = {}
        self.late = 0
        self.jumbled = 0

    def begin(self, caller: RegisterCaller, tell: OnReply) -> None:
        self._watches[caller] = RegisterWatch(caller, tell)

    def end(self, caller: RegisterCaller) -> None:
        self._watches.pop(caller, None)

    def tell(self, news: RegisterAnswer, cut: IsCut, caller: RegisterCaller | None = None) -> None:
        """Tell everybody, or that one caller."""
        watches = self._watches.values() if caller is None else [self._watches[caller]]
        for watch in watches:
            self._later(watch, news, cut)
            if self.jumbled and self._random.random() < TWICE:
                self._later(watch, news, cut)

    def _later(self, watch: RegisterWatch, news: RegisterAnswer, cut: IsCut) -> None:
        at = self._timeline.now + 0.002 + 0.02 * self._random.random()
        if self.late:
            at += self._term_s * self._random.uniform(0.3, 2.0)
        if self.jumbled:
            at += 2 * self._term_s * self._random.random()
        else:
            at = watch.last_at = max(at, watch.last_at)
        self._timeline.at(at, self._push, watch, news, cut)

    def _push(self, watch: RegisterWatch, news: RegisterAnswer, cut: IsCut) -> None:
        caller = watch.caller
        if watch.broken or self._watches.get(caller) is not watch:
            return
        if cut(caller.host):
            watch.broken = True
            self._timeline.after(self._patience_s, self._found_broken, watch)
        else:
            watch.tell(news)

    # What goes wrong.

    def break_silently(self, host: int, lasts_s: float) -> None:
        """Nothing comes any more on this host's watches; it is found out after so long."""
        for caller, watch in self._watches.items():
            if caller.host == host:
                watch.broken = True
                self._timeline.after(lasts_s, self._found_broken, watch)

    def _found_broken(self, watch: RegisterWatch) -> None:
        if self._watches.get(watch.caller) is watch:
            del self._watches[watch.caller]
            watch.tell(NoAnswer("the watch broke off"))
