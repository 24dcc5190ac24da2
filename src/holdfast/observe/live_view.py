"""What a job is doing right now, in one line: fed with steps as they are taken.

Rules
1. It knows what the steps say, and decides nothing.
2. What is waited for has its words, since when, and until when at the latest where that is known:
   then there is a bar.
3. The line is plain ASCII and never wider than it may be: a terminal's width is counted in columns.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from holdfast.core.coordinator import io as decided
from holdfast.core.node import io as happened
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.bounds import clean
from holdfast.observe.journal import AgentStep, CoordinatorStep, Step

BAR = 10
RATE_OVER_S = 30.0
"""The steps of how long a rate is made of, at most."""
NARROWEST = 24


class Doing(Struct, frozen=True):
    """What is being waited for."""

    words: str
    since: float
    until: float | None = None


class LiveView:
    """Follows the steps of this node, and of the coordinator where it is here."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._began: float | None = None
        self._doing: Doing | None = None
        self._contact_lost: Doing | None = None
        self.round = 0
        self._nodes = self._ranks = self._restarts = 0
        self._unborn: set[int] = set()
        self._steps: deque[tuple[float, int]] = deque()
        self._are_steps_told = False

    def feed(self, step: Step) -> None:
        """Take a step."""
        if isinstance(step, AgentStep):
            self._began = step.at if self._began is None else self._began
            self._of_agent(step)
        elif isinstance(step, CoordinatorStep):
            self._of_coordinator(step)

    # What happens.

    def _of_agent(self, step: AgentStep) -> None:
        at, event = step.at, step.event
        match event:
            case happened.Told(message=message):
                self._told(step, message)
            case happened.WorkerStarted(round=number, local_rank=local_rank):
                self._unborn.discard(local_rank)
                if number == self.round and not self._unborn and self._is("starting the workers"):
                    waits = Doing("no step yet", at) if self._are_steps_told else None
                    self._doing = waits
            case happened.StepReported(round=number, step=reached) if number == self.round:
                self._stepped(at, reached)
            case happened.ZygoteReady(beside=False) | happened.ZygoteLost(beside=False):
                if self._is("importing"):
                    self._doing = Doing("getting ready", at)
            case happened.CoordinatorLost():
                lease_s = self._config.leases.lease_s
                self._contact_lost = self._contact_lost or Doing(
                    "no contact with the coordinator", at, at + lease_s if self.round else None
                )
            case happened.CoordinatorReached():
                self._contact_lost = None
            case happened.AllGone() if self._is("stopping"):
                self._doing = Doing("forming the next round", at)
            case happened.SignalReceived():
                self._doing = Doing("leaving", at)
        for effect in step.effects:
            if isinstance(effect, happened.StartZygote) and not effect.beside:
                until = at + self._config.timeouts.preload_s
                self._doing = Doing("importing modules, once for all workers", at, until)

    def _told(self, step: AgentStep, message: said.ToNode) -> None:
        at = step.at
        match message:
            case said.RunRound(assignment=assignment):
                self.round = assignment.round
                self._nodes, self._ranks = assignment.group_size, assignment.world_size
                self._restarts = assignment.restart_count
                self._unborn = {one.local_rank for one in assignment.workers}
                self._steps.clear()
                self._doing = Doing("starting the workers", at)
            case said.StopRound(round=number) if number == self.round:
                until = at + self._config.timeouts.shutdown_s
                self._doing = Doing("stopping the workers", at, until)
            case said.SaveNow(within_s=within_s):
                self._doing = Doing("the workers save", at, at + within_s)
            case said.SaveOver() if self._is("the workers save"):
                self._doing = None
            case said.Welcomed(waiting=waiting) if waiting and not self._runs():
                if not self._is(waiting):  # Else the coordinator is here, and knows more.
                    self._doing = Doing(waiting, at)
            case said.StandBy(reason=reason) if not self._runs():
                self._doing = Doing(reason, at)
            case said.CloseJob():
                self._doing = Doing("the job ends", at)

    def _of_coordinator(self, step: CoordinatorStep) -> None:
        at = step.at
        for effect in step.effects:
            match effect:
                case decided.Explain(text=text, topic="waiting", within_s=most_s):
                    if not self._runs():
                        self._doing = Doing(text, at, at + most_s if most_s else None)
                case decided.Explain(pause_s=pause_s) if pause_s:
                    self._doing = Doing("a pause before the restart", at, at + pause_s)

    def _stepped(self, at: float, reached: int) -> None:
        self._are_steps_told = True
        if self._is("no step yet") or self._is("starting the workers"):
            self._doing = None
        if self._steps and reached <= self._steps[-1][1]:
            return
        self._steps.append((at, reached))
        while self._steps[-1][0] - self._steps[0][0] > RATE_OVER_S:
            self._steps.popleft()

    def _is(self, words: str) -> bool:
        return self._doing is not None and self._doing.words.startswith(words)

    def _runs(self) -> bool:
        return bool(self.round) and (self._doing is None or self._is("no step yet"))

    # In words.

    def text(self, now: float, width: int) -> str:
        """The line, for a terminal that is so wide; empty where that is too narrow."""
        if width < NARROWEST or self._began is None:
            return ""
        parts = ["holdfast", *self._facts()]
        doing = self._contact_lost or self._doing
        parts.append(_waited(doing, now) if doing is not None else _length(now - self._began))
        line = " | ".join(parts)
        plain = clean(line).encode("ascii", "replace").decode("ascii")
        return plain if len(plain) < width else plain[: width - 4] + "..."

    def _facts(self) -> list[str]:
        if not self.round:
            return []
        ranks = "1 rank" if self._ranks == 1 else f"{self._ranks} ranks"
        facts = [f"round {self.round}", ranks]
        if self._nodes > 1:
            facts[-1] += f" on {self._nodes} nodes"
        if self._steps:
            rate = self._rate()
            facts.append(f"step {self._steps[-1][1]}" + (f", {rate:.3g}/s" if rate else ""))
        if self._restarts:
            facts.append("1 restart" if self._restarts == 1 else f"{self._restarts} restarts")
        return facts

    def _rate(self) -> float:
        """Steps a second, lately; 0 where it is not known."""
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def _waited(doing: Doing, now: float) -> str:
    passed = max(0.0, now - doing.since)
    if doing.until is None or doing.until <= doing.since:
        return f"{doing.words} | {_length(passed)}"
    whole = doing.until - doing.since
    full = round(min(passed / whole, 1.0) * BAR)
    bar = f"[{'#' * full}{'-' * (BAR - full)}]"
    return f"{doing.words} | {bar} {_length(passed)} of {_length(round(whole))}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
