"""A leader that dies is followed soon, and the next one speaks: at once where its death is proven.

Then a round that has lost that node with it is formed again at once, if enough others are left.

Looked at where that death is all that ever went wrong, apart from workers: a successor is there,
it knows that it is one, and nothing stands between it and the register.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.facts import (
    AgentBegan,
    AgentDied,
    AgentFinished,
    FaultStruck,
    FirstWord,
    History,
    LeaderEnded,
    Recorded,
    RoundEnding,
    Violation,
    WorkerBegan,
    only,
)
from tools.simulator.plan import Plan

NAME = "succession"
OF_WORKERS = frozenset(
    {"worker fails", "worker never retries", "slow start", "slow stop", "zygote lost"}
)
CLAIM_S = 0.2
"""From the news to the register: two ways through the network, and one write."""
STAGGER_S = 0.5
ASKING_S = 0.05
START_S = 0.5
LINGERS_S = 0.15
REDIAL_S, REDIAL_LATER_S = 0.7, 2.3
"""Until a node that lost its leader has found the next one, which may not lead yet at first: it
dials less often the longer it takes."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    if plan.embedded:
        return
    struck = [f for f in only(history, FaultStruck) if f.kind not in OF_WORKERS]
    ended = only(history, LeaderEnded)
    if len(struck) != 1 or not ended or ended[0].at > plan.heal_at:
        return
    end = ended[0]
    index = history.index(end)
    last = _last_word(plan, history[:index], end)
    if last is None:
        return
    others = _alive(history[:index], history[index:], end) - {end.node}
    heirs = [node for node in last.document.successors if node in others]
    if not heirs:
        return
    claim_s = _claim_s(plan, last, heirs, end)
    died = (f.at for f in history[:index] if isinstance(f, AgentDied) and f.node == end.node)
    # Its connections end with the agent, its tether only with the last process there.
    lingered = end.silent or end.at - next(died, end.at) > LINGERS_S
    redial_s = REDIAL_LATER_S if lingered else REDIAL_S
    yield from _followed(history[index:], last, end, claim_s)
    if len(others) > 1:
        yield from _spoken(history[index:], last, end, claim_s + redial_s)
    if not end.silent and len(others) >= plan.config.min_nodes:
        yield from _formed(plan, history, index, claim_s + redial_s)


def _last_word(plan: Plan, before: History, end: LeaderEnded) -> Recorded | None:
    """What it had written, if its successors had the time to learn that they are."""
    records = only(before, Recorded)
    if not records or records[-1].document.leader != end.node:
        return None
    last = records[-1].document
    if last.ledger.outcome is not None:
        return None
    same = [f for f in records if f.document.successors == last.successors]
    known = end.at - same[0].at > plan.config.leases.term_s
    return records[-1] if known else None


def _alive(before: History, after: History, end: LeaderEnded) -> set[str]:
    """Nodes that are there all the time."""
    until = end.at + 30.0
    began = {f.node for f in before if isinstance(f, AgentBegan)}
    gone = [f for f in (*before, *after) if isinstance(f, AgentDied | AgentFinished)]
    return began - {f.node for f in gone if f.at < until}


def _claim_s(plan: Plan, last: Recorded, heirs: list[str], end: LeaderEnded) -> float:
    leases = plan.config.leases
    waits = last.document.successors.index(heirs[0]) * STAGGER_S
    if end.silent:
        # Who is not told of changes finds out by asking: of the last sign of life, and of none.
        waits += leases.takeover_s + 2 * (leases.term_s / 3 + ASKING_S)
    return waits * (1 + leases.drift) + CLAIM_S


def _followed(
    after: History, last: Recorded, end: LeaderEnded, within_s: float
) -> Iterator[Violation]:
    claims = (f.at for f in after if isinstance(f, Recorded) and f.document.leader != end.node)
    took_s = next(claims, float("inf")) - end.at
    if took_s > within_s:
        text = f"{end.node} was followed after {took_s:.2f} s, not within {within_s:.2f} s"
        yield Violation(NAME, end.at, text)


def _spoken(
    after: History, last: Recorded, end: LeaderEnded, within_s: float
) -> Iterator[Violation]:
    words = (f.at for f in after if isinstance(f, FirstWord) and f.term > last.document.term)
    took_s = next(words, float("inf")) - end.at
    if took_s > within_s:
        text = f"nobody spoke until {took_s:.2f} s after {end.node}, not within {within_s:.2f} s"
        yield Violation(NAME, end.at, text)


def _formed(plan: Plan, history: History, index: int, within_s: float) -> Iterator[Violation]:
    """Survivors stop what they run, and start again without whom they know to be dead."""
    end = history[index]
    assert isinstance(end, LeaderEnded)
    began = [f for f in history[:index] if isinstance(f, WorkerBegan)]
    round = max((f.round for f in began), default=0)
    ended = any(isinstance(f, RoundEnding) and f.round == round for f in history[:index])
    of_its_own = any(f.node == end.node for f in began if f.round == round)
    if ended or not of_its_own or len({host.role for host in plan.hosts}) > 1:
        return
    times = plan.config.timeouts
    within_s += plan.config.leases.tether_s + times.shutdown_s + 2 * times.unkillable_s + START_S
    later = (f for f in history[index:] if isinstance(f, WorkerBegan) and f.round > round)
    took_s = next((f.at for f in later), float("inf")) - end.at
    closed = any(isinstance(f, Recorded) and f.document.ledger.outcome for f in history[index:])
    if took_s > within_s and not (closed and took_s == float("inf")):
        text = f"the next round began {took_s:.2f} s after {end.node}, not within {within_s:.2f} s"
        yield Violation(NAME, end.at, text)
