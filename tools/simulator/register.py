"""A register that works, loses replies, is late, forgets, or is not there.

It keeps the one promise of a register: compare-and-set is atomic. It uses every freedom: reads
may be stale, a reply may be lost although the write was done, a write may be done long after
its caller has given up waiting. What else it can do goes by its kind:

plain      nothing: it has to be asked
pushing    tells whoever watches of every change, as etcd does
holding    pushes, and knows whether the last writer is still there, as etcd's leases do: each
           write is preceded by a sign of life, and whoever gives none for the time of a takeover,
           on the register's own clock, is told to have expired
forgetful  may be restarted empty, as PyTorch's store is

Tokens are never used twice, whatever is forgotten; 0 is that of nothing.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from tools.simulator.plan import RegisterPlan
from tools.simulator.register_watches import Watches
from tools.simulator.timeline import Timeline

from holdfast.core.policy.config import Leases
from holdfast.registers.register_thread import NoAnswer, OnReply, RegisterAnswer

LATE_S = 2.5
STALE_S = 1.5
LOST = 0.4
"""How often a lossy way loses something."""
TAKEN_UP = 0.6
"""How often a write that hung is done when the store works again."""
VERSIONS_KEPT = 32


Write = tuple[bytes, int]
"""What is to be there, and the token of what has to be there until then."""


class RegisterCaller(Protocol):
    """Who asks the register."""

    @property
    def host(self) -> int: ...

    @property
    def token(self) -> int:
        """Of the version that it knows."""
        ...

    def recorded(self, content: bytes, blank: bool) -> None: ...


class Fate:
    """What becomes of one request: when it is carried out, and whether anybody is told."""

    __slots__ = ("answers", "at_s")

    def __init__(self, at_s: float | None, answers: bool = True) -> None:
        self.at_s = at_s
        """After this long; None: never."""
        self.answers = answers


class ClusterRegister:
    """Some bytes, their token, and what is wrong with the way to them."""

    def __init__(
        self, timeline: Timeline, random: Random, terms: Leases, plan: RegisterPlan
    ) -> None:
        self._timeline = timeline
        self._random = random
        self._patience_s = plan.patience * terms.term_s
        self._expiry_s = terms.takeover_s / plan.clock_rate
        self.kind = plan.kind
        self.content: bytes | None = None
        self.token = 0
        self._tokens = 0
        self._versions: list[tuple[float, bytes | None, int]] = [(0.0, None, 0)]
        self._holder: RegisterCaller | None = None
        self._lives: dict[RegisterCaller, float] = {}
        """When each caller last gave a sign of life."""
        self._expired = False
        self.watches = Watches(timeline, random, self._patience_s, terms.term_s)
        # How many faults of each kind are at work.
        self.down = 0
        self.cut_off: dict[int, int] = {}
        self.unheard: dict[int, int] = {}
        """Hosts to which no answer finds its way."""
        self.mute = 0
        self.lossy = 0
        self.stale = 0
        self.slow = 0
        self.refuses = 0
        self.hangs = 0
        self._hangs_until = 0.0

    @property
    def pushes(self) -> bool:
        return self.kind in ("pushing", "holding")

    # RegisterThread.

    def ask(self, caller: RegisterCaller, write: Write | None, tell: OnReply) -> None:
        """Write, or only read; `tell` is told the answer, once."""
        if self.refuses:
            self._timeline.after(self._short(), tell, NoAnswer("permission denied", refused=True))
            return
        fate = self._fate(caller.host)
        told = fate.answers and fate.at_s is not None and fate.at_s < self._patience_s
        if not told:
            self._timeline.after(self._patience_s, tell, NoAnswer("no answer came"))
        if fate.at_s is not None:
            self._timeline.after(fate.at_s, self._serve, caller, write, tell if told else None)
        if write is not None and self.kind == "holding":
            self._live_later(caller, fate)

    def _fate(self, host: int) -> Fate:
        random = self._random
        if self.unreachable(host):
            return Fate(None)
        at_s = self._short()
        if self.slow:
            at_s = self._patience_s * random.uniform(0.1, 3.0)
        if self.hangs:
            done = random.random() < TAKEN_UP
            at_s = max(self._hangs_until - self._timeline.now, 0.0) + at_s
            return Fate(at_s if done else None, at_s < self._patience_s)
        if self.lossy and random.random() < LOST:
            # Done all the same, soon or late, or not at all; only nobody is told.
            late_s = LATE_S if random.random() < 0.3 else self._patience_s
            return Fate(late_s * random.random() if random.random() < 0.5 else None, False)
        return Fate(at_s, not (self.mute or self.unheard.get(host)))

    def _short(self) -> float:
        return 0.002 + 0.02 * self._random.random()

    def unreachable(self, host: int) -> bool:
        return bool(self.down) or bool(self.cut_off.get(host))

    def hang_until(self, time: float) -> None:
        self._hangs_until = max(self._hangs_until, time)

    def _serve(self, caller: RegisterCaller, write: Write | None, tell: OnReply | None) -> None:
        answer = self._read() if write is None else self._write(caller, *write)
        if tell is not None:
            self._timeline.after(self._short(), tell, answer)

    def _read(self) -> RegisterAnswer:
        content, token = self.content, self.token
        if self.stale and self._random.random() >= 0.5:
            since = self._timeline.now - STALE_S * self._random.random()
            older = [version for version in self._versions if version[0] <= since]
            _, content, token = older[-1] if older else self._versions[0]
        return RegisterAnswer(content, token, expired=self._expired and token == self.token)

    def _write(self, caller: RegisterCaller, content: bytes, token: int) -> RegisterAnswer:
        if token != self.token:
            return RegisterAnswer(self.content, self.token)
        blank = self.content is None
        self._tokens += 1
        self._hold(caller)
        self._change(content, self._tokens)
        caller.recorded(content, blank)
        return RegisterAnswer(self.content, self.token, has_set=True)

    def _change(self, content: bytes, token: int) -> None:
        self.content, self.token = content, token
        self._versions.append((self._timeline.now, content, token))
        del self._versions[:-VERSIONS_KEPT]
        self.watches.tell(self._news(), self.unreachable)

    def _news(self) -> RegisterAnswer:
        return RegisterAnswer(self.content, self.token, expired=self._expired)

    def restart_empty(self) -> None:
        """All that it knew is gone, with the memory of older versions."""
        self.content, self.token = None, 0
        self._versions = [(0.0, None, 0)]

    # Watching.

    def watch(self, caller: RegisterCaller, tell: OnReply | None) -> None:
        """Tell this caller of every change from now on, or no longer."""
        if tell is None:
            self.watches.end(caller)
        elif self.unreachable(caller.host) or self.refuses:
            self._timeline.after(self._patience_s, tell, NoAnswer(""))
        else:
            self.watches.begin(caller, tell)
            if caller.token != self.token or self._expired:
                self.watches.tell(self._news(), self.unreachable, caller)

    # Knowing the holder.

    def _hold(self, caller: RegisterCaller) -> None:
        """Whoever wrote last is there for as long as its signs of life go on."""
        self._holder, self._expired = caller, False
        if self.kind == "holding":
            self._lives.setdefault(caller, self._timeline.now)
            self._look_later(caller)

    def _live_later(self, caller: RegisterCaller, fate: Fate) -> None:
        """The sign of life goes first; the write may be lost, or come long after it."""
        at_s = fate.at_s
        if at_s is None and (self.unreachable(caller.host) or self._random.random() < 0.5):
            return
        if at_s is None or (at_s > self._patience_s and self._random.random() < 0.5):
            at_s = self._short()
        self._timeline.after(at_s, self._lived, caller)

    def _lived(self, caller: RegisterCaller) -> None:
        self._lives[caller] = self._timeline.now

    def _look_later(self, caller: RegisterCaller) -> None:
        after_s = self._lives[caller] + self._expiry_s - self._timeline.now
        self._timeline.after(max(after_s, 0.0), self._look, caller)

    def _look(self, caller: RegisterCaller) -> None:
        if self._holder is not caller or self._expired:
            return
        if self._lives[caller] + self._expiry_s > self._timeline.now + 1e-9:
            self._look_later(caller)
            return
        self._expired = True
        self.watches.tell(self._news(), self.unreachable)

    def release(self, caller: RegisterCaller) -> None:
        """The caller ends in order, and says so."""
        if self._holder is caller and self.kind == "holding" and not self.unreachable(caller.host):
            self._lives[caller] = float("-inf")
            self._timeline.after(self._short(), self._look, caller)
