"""The content of a page, from nodes' answers or from a job's report. No rule of the job is here.

A worker's state is what its node says, unless the events of this round say more: that it failed, or
that all workers stall.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.policy.worker_progress import slow_ones
from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import (
    JobTold,
    NodeOverview,
    RankOverview,
    RanksTold,
    SaveTold,
)
from holdfast.dashboard import wire
from holdfast.dashboard.api import ACTIONS
from holdfast.dashboard.pages import PageState, WorkersShown
from holdfast.dashboard.source import Source
from holdfast.observe.goodput import RECOVERY_PARTS, Interruption, Part
from holdfast.observe.job_report import JobReport
from holdfast.observe.story import StoryEvent
from holdfast.observe.summary import counted, is_overdue


def job_shown(
    told: JobTold,
    ranks: Sequence[RankOverview],
    source: Source,
    pace: StepPace,
    mishaps: Mishaps,
) -> wire.JobShown:
    names = {one.node: one.name or one.host for one in told.nodes}
    outcome = told.outcome
    stepped_at = pace.last_step(ranks)
    is_running = told.stage == "running" and outcome is None
    is_hanging = is_running and mishaps.is_hanging and mishaps.round == told.round
    is_late = is_hanging or (is_running and pace.is_late(stepped_at))
    return wire.JobShown(
        run=told.run_id,
        state="late" if is_late else _state(told),
        words=_late_sentence(told, is_hanging=is_hanging) if is_late else sentence(told),
        round=told.round,
        nodes=told.node_count,
        ranks=told.world_size,
        restarts=told.restarts,
        restarts_most=told.max_restarts,
        step=furthest_step(told, ranks),
        waiting=told.waiting if outcome is None else "",
        outcome=_outcome_shown(outcome),
        coordinator=told.coordinator,
        served_by=names.get(source.node, source.node),
        actions=ACTIONS if outcome is None else (),
        is_journal=False,
        stepped_at=stepped_at,
        saving=_saving(told.save) if outcome is None and told.stage == "running" else "",
        least_nodes=told.min_nodes,
        most_nodes=told.max_nodes,
    )


def ended(state: PageState, outcome: Outcome, step: int | None, failed: Container[int]) -> None:
    """Show that the job has ended like this: with that step, and these workers failed."""
    if state.job is not None:
        state.job = replace(
            state.job,
            state=STATES[outcome.verdict],
            words=ending(outcome.verdict, outcome.reason),
            waiting="",
            outcome=_outcome_shown(outcome),
            actions=(),
            saving="",
            step=max(filter(None, (state.job.step, step)), default=state.job.step),
        )
    if state.workers is not None:
        rest = STATE["finished" if outcome.verdict == "succeeded" else "absent"]
        states = [
            STATE["failed"] if rank in failed else one if one == STATE["finished"] else rest
            for rank, one in enumerate(state.workers.columns["state"])
        ]
        columns = {**state.workers.columns, "state": states}
        state.workers = replace(state.workers, columns=columns)


STATES: dict[str, wire.JobState] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "interrupted": "stopped",
    "not_formed": "failed",
}


def _saving(save: SaveTold | None) -> str:
    if save is None or save.stage not in ("agreeing", "saving"):
        return ""
    words = "agreeing on a step" if save.step is None else f"at step {save.step:,}"
    return f"The workers save, {words}; {counted(save.nodes_left, 'node')} left."


def _outcome_shown(outcome: Outcome | None) -> wire.OutcomeShown | None:
    if outcome is None:
        return None
    return wire.OutcomeShown(outcome.verdict, outcome.reason)


def _state(told: JobTold) -> wire.JobState:
    if told.outcome is not None:
        return STATES[told.outcome.verdict]
    return "failed" if told.stage == "over" else told.stage


def _late_sentence(told: JobTold, *, is_hanging: bool) -> str:
    if is_hanging:
        return f"The job hangs: no worker of round {told.round} moves."
    return f"Round {told.round} runs, but no worker makes a step."


def sentence(told: JobTold) -> str:
    """The job's status, for a headline."""
    if told.outcome is not None:
        return ending(told.outcome.verdict, told.outcome.reason)
    match told.stage:
        case "running":
            workers, nodes = counted(told.world_size, "worker"), counted(told.node_count, "node")
            return f"Round {told.round} runs: {workers} on {nodes}."
        case "stopping":
            return f"Round {told.round} is being ended."
        case "waiting" if told.round:
            return f"Round {told.round} is over; the next one is not formed yet."
        case "waiting":
            return "The first round is not formed yet."
        case _:
            return "The job is over."


def ending(verdict: str, reason: str) -> str:
    """The end of the job, for a headline."""
    if verdict == "interrupted" and reason.startswith("stopped by "):
        return f"{reason[:1].upper()}{reason[1:]}."
    return f"The job {_VERDICTS[verdict]}."


_VERDICTS: dict[str, str] = {
    "succeeded": "has succeeded",
    "failed": "has failed",
    "interrupted": "was interrupted",
    "not_formed": "never began",
}


def nodes_shown(told: JobTold, nodes: Sequence[NodeOverview]) -> list[wire.NodeShown]:
    return [
        wire.NodeShown(
            name=one.name or one.host,
            state=one.condition,
            words=one.note,
            slots=one.workers,
            first_rank=one.first_rank,
            coordinator=(one.name or one.host) == told.coordinator,
        )
        for one in nodes
    ]


PARTS: dict[Part, str] = {
    "useful": "useful work",
    "lost steps": "steps done again",
    "import": "importing modules",
    "waiting for nodes": "waiting for nodes",
    "form": "forming rounds",
    "spawn": "starting workers",
    "first step": "to the first step",
    "detect": "noticing failures",
    "stop": "stopping workers",
    "pause": "pausing before a restart",
    "idle after the end": "after the end",
}
"""The useful one first."""


def ledger_shown(start: float, total_s: float, parts_s: Mapping[str, float]) -> wire.LedgerShown:
    parts = [wire.LedgerPart(name, words, parts_s.get(name, 0.0)) for name, words in PARTS.items()]
    return wire.LedgerShown(start, total_s, tuple(parts))


def incidents_shown(interruptions: Iterable[Interruption]) -> list[wire.IncidentShown]:
    """The unwanted interruptions; the last of them may still be going on."""
    incidents = [one for one in interruptions if one.is_incident]
    return [
        wire.IncidentShown(
            number,
            one.at,
            one.round,
            one.ended_by,
            one.reason,
            decision=one.decision,
            ranks=list(one.ranks),
            recovered_s=one.recovery_s if one.is_over else None,
            phases=[
                wire.LedgerPart(part, PARTS[part], one.parts_s[part])
                for part in RECOVERY_PARTS
                if one.is_over and part in one.parts_s
            ],
        )
        for number, one in enumerate(incidents, 1)
    ]


def placed(nodes: Sequence[NodeOverview], told: Mapping[str, RanksTold]) -> list[NodeOverview]:
    """The nodes with their ranks, which a coordinator that inherited its round does not know."""
    return [_placed(node, told.get(node.name or node.host)) for node in nodes]


def _placed(node: NodeOverview, told: RanksTold | None) -> NodeOverview:
    if node.first_rank is not None or told is None or not told.ranks:
        return node
    first = min(one.rank for one in told.ranks)
    return replace(node, first_rank=first, workers=len(told.ranks))


# Workers.

COLUMNS = ("step", "stepped", "pace_ms", "cpu", "memory_mb", "pid", "note")
"""`stepped` is when a worker made its last step, where that is long ago."""
STATE = {name: number for number, name in enumerate(wire.WORKER_STATES)}
KERNEL_STILL = ("stopped", "held by a debugger", "stuck in the kernel")
"""States of a process in which it does nothing."""


class Mishaps(Struct):
    """Facts about the workers of the present round, from events."""

    round: int = 0
    failed: set[int] = field(default_factory=set)
    is_hanging: bool = False

    def take(self, event: StoryEvent) -> None:
        if event.round > self.round:
            self.round, self.failed, self.is_hanging = event.round, set(), False
        if event.kind == "worker_failed" and event.rank is not None and event.round == self.round:
            self.failed.add(event.rank)
        elif event.kind in ("hang", "moving_again"):
            self.is_hanging = event.kind == "hang"


class StepPace(Struct):
    """The usual pace of steps, and the age of the last one."""

    steps_per_s: float | None = None
    now: float = 0.0
    """When the workers were asked."""

    def last_step(self, ranks: Iterable[RankOverview]) -> float | None:
        """When any worker made its last step."""
        ages = [one.step_age_s for one in ranks if one.step_age_s is not None]
        return round(self.now - min(ages), 1) if ages else None

    def is_late(self, stepped_at: float | None) -> bool:
        return stepped_at is not None and is_overdue(self.now - stepped_at, self.steps_per_s)


def furthest_step(told: JobTold, ranks: Sequence[RankOverview]) -> int | None:
    """Of all workers; the coordinator hears of it a heartbeat later."""
    steps = [one.step for one in ranks if one.step is not None]
    return max(steps, default=told.step)


def workers_shown(
    told: JobTold,
    nodes: Sequence[NodeOverview],
    by_node: Mapping[str, RanksTold],
    mishaps: Mishaps,
    pace: StepPace,
) -> WorkersShown:
    """All workers of the present round."""
    count = max(
        (one.first_rank + one.workers for one in nodes if one.first_rank is not None), default=0
    )
    columns: dict[str, list[float | int | None]] = {
        "state": list(_states(told, nodes, count)),
        **{name: [None] * count for name in COLUMNS},
    }
    ranks = [rank for told_here in by_node.values() for rank in told_here.ranks]
    base = furthest_step(told, ranks) or 0
    paces = {one.rank: one.steps_per_s for one in ranks if one.steps_per_s}
    slow = slow_ones(paces)
    notes = [""]
    for one in ranks:
        if one.rank >= count:
            continue  # Of a round that came between the two requests.
        columns["pid"][one.rank] = one.pid
        columns["step"][one.rank] = None if one.step is None else one.step - base
        columns["pace_ms"][one.rank] = _rounded(1000 / one.steps_per_s) if one.steps_per_s else None
        columns["cpu"][one.rank] = None if one.cpu is None else round(one.cpu * 100)
        columns["memory_mb"][one.rank] = one.memory_bytes and one.memory_bytes >> 20
        columns["note"][one.rank] = _note(notes, one)
        if told.stage == "running":
            columns["state"][one.rank] = STATE[_worker_state(told, one, slow, mishaps, pace)]
            if columns["state"][one.rank] in (STATE["late"], STATE["still"]) and one.step_age_s:
                columns["stepped"][one.rank] = round(pace.now - one.step_age_s)
    if mishaps.round == told.round:
        for rank in mishaps.failed:
            if rank < count:
                columns["state"][rank] = STATE["failed"]
    return WorkersShown(pace.now, base, count, columns, notes)


def _states(told: JobTold, nodes: Sequence[NodeOverview], count: int) -> list[int]:
    """The states of workers of which only their node is known."""
    states = [STATE["absent"]] * count
    for node in nodes:
        if node.first_rank is None or node.condition == "silent":
            continue
        state = "starting" if told.stage == "running" else "stopping"
        if node.condition == "finished":
            state = "finished"
        states[node.first_rank : node.first_rank + node.workers] = [STATE[state]] * node.workers
    return states


def _worker_state(
    told: JobTold, one: RankOverview, slow: Container[int], mishaps: Mishaps, pace: StepPace
) -> str:
    if one.state == "finished":
        return "finished"
    if (mishaps.is_hanging and mishaps.round == told.round) or one.state in KERNEL_STILL:
        return "still"
    if one.step is None and told.step is not None:
        return "starting"
    if is_overdue(one.step_age_s, pace.steps_per_s):
        return "late"
    return "slow" if one.rank in slow else "running"


def _note(notes: list[str], one: RankOverview) -> int:
    """The number of a worker's note: its phase, and its state in the kernel if that is unusual."""
    unusual = one.state if one.state in KERNEL_STILL else ""
    words = ", ".join(filter(None, (one.phase, unusual)))
    if words not in notes:
        notes.append(words)
    return notes.index(words)


def _rounded(milliseconds: float) -> float:
    """To three digits: more would only be sent again and again."""
    digits = 3 - len(str(int(milliseconds)))
    return round(milliseconds, max(0, digits)) if digits >= 0 else float(round(milliseconds))


# A job's report.


def static_page(told: JobReport) -> PageState:
    """The content of the page of a job's report: nothing of it changes."""
    book = told.ledger
    return PageState(
        job=_job_of_report(told),
        nodes=[
            wire.NodeShown(
                one.host, "" if one.is_whole else "its journal ends early", "", 0, None, False
            )
            for one in told.nodes
        ],
        ledger=ledger_shown(book.start, book.end - book.start, dict(book.parts_s.items())),
        segments=list(book.segments),
        lanes=[wire.LaneShown(one.host, one.start, one.end, one.runs) for one in told.nodes],
        incidents=incidents_shown(book.interruptions),
        events=list(told.events),
    )


def _job_of_report(told: JobReport) -> wire.JobShown:
    reason = told.outcome.partition(": ")[2]
    last = told.rounds[-1] if told.rounds else None
    return wire.JobShown(
        run=told.job,
        state=STATES[told.verdict] if told.verdict else "cut off",
        words=_sentence_of_report(told, reason),
        round=last.number if last is not None else 0,
        nodes=last.nodes if last is not None else len(told.nodes),
        ranks=last.ranks if last is not None else 0,
        restarts=told.restarts,
        restarts_most=told.max_restarts,
        step=None,
        waiting="",
        outcome=wire.OutcomeShown(told.verdict, reason) if told.verdict else None,
        coordinator="",
        served_by="",
        actions=(),
        is_journal=True,
        notes=told.unknowns,
    )


def _sentence_of_report(told: JobReport, reason: str) -> str:
    if told.is_running:
        return "It is running; this is its journal so far."
    if not told.verdict:
        return "How the job ended is not in its journals."
    return ending(told.verdict, reason)
