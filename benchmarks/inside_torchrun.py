"""(o) The stock launcher, `torchrun`, that meets through Holdfast, beside its own c10d backend.

Two nodes of a job of one or two step together, and one of them is killed; when the other steps
alone, a new node comes. A node is a real `torchrun` with one worker, which forms a gloo group.
Only the name of the backend differs: agents, workers and what they import are the same, so that
a part of each figure is the same for both. The rows "to the first line" leave out what a worker
does after its start, most of it the import of torch.

A node that is killed loses all its processes, as a machine does that is gone. `torchrun` starts
each worker in a session of its own: a signal to the agent, or to its process group, leaves them
running.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points

from msgspec import Struct

from benchmarks.figures import HOLDFAST, Figure
from benchmarks.jobs import Job, Report, RunFailed
from benchmarks.launchers import (
    free_port,
    torchrun,
    torchrun_with_holdfast,
    torchrun_with_shared_store,
)
from benchmarks.nodes import Contender, in_world, kill, last_step, node
from benchmarks.session import Session

FORM_DEADLINE_S = 120.0
RECOVER_DEADLINE_S = 120.0
JOIN_DEADLINE_S = 60.0
SETTLE_S = 2.5
"""Longer than the two seconds within which Holdfast ends no round for a newcomer."""
PEER_RUNS = 2
"""Of what takes most of a minute."""
GROUP = "torchrun.handlers"


class Lines(Struct, frozen=True):
    """What is found out in one run: of the loss, and of the newcomer."""

    loss: list[Figure]
    join: list[Figure]
    not_joined: Figure

    @property
    def all(self) -> list[Figure]:
        return [*self.loss, *self.join, self.not_joined]


def meet_inside_torchrun(session: Session) -> list[Figure]:
    """Both backends in turn, then c10d in the set-up that it has by default."""
    _demand_entry_point()
    runs = min(PEER_RUNS, session.repeats)
    ours = Contender(torchrun_with_holdfast, {}, session.repeats)
    beside, by_default = _lines(""), _lines("_by_default", " (c10d in its default set-up)")
    for repeat in range(session.repeats):
        _run(session, ours, beside, repeat)
        if repeat < runs:
            _run(session, Contender(torchrun, {}, runs), beside, repeat)
    for repeat in range(runs):
        _run(session, Contender(torchrun_with_shared_store, {}, runs), by_default, repeat)
    return [*beside.all, by_default.loss[0], by_default.join[0], by_default.not_joined]


def _lines(suffix: str, remark: str = "") -> Lines:
    def figure(name: str, title: str) -> Figure:
        return Figure("o", f"{name}{suffix}", f"{title}{remark}")

    never = f"… both do not within {JOIN_DEADLINE_S:g} s"
    return Lines(
        [
            figure("inside_lost", "node of 2 in torchrun killed, to the survivor's first step"),
            figure("inside_lost_begun", "… to its worker's first line"),
        ],
        [
            figure("inside_join", "node joins in torchrun, from its command to both's first step"),
            figure("inside_join_begun", "… from its command to the last first line of a worker"),
            figure("inside_join_standstill", "… nobody steps for"),
        ],
        Figure("o", f"inside_not_joined{suffix}", f"{never}{remark}", unit="", counts_runs=True),
    )


def _demand_entry_point() -> None:
    if HOLDFAST not in {offer.name for offer in entry_points(group=GROUP)}:
        raise RunFailed(
            f"the installed holdfast offers torchrun no backend (group {GROUP}); install it anew"
        )


def _run(session: Session, contender: Contender, lines: Lines, repeat: int) -> None:
    """One job that loses a node and gains one."""
    port, launcher = free_port(), contender.launcher
    with (
        node(session, contender, port, is_host=True) as first,
        node(session, contender, port, is_host=False) as second,
    ):

        def join() -> list[float]:
            try:
                values = _sample_join(session, contender, port, first)
            except RunFailed:
                lines.not_joined.add(launcher.name, 1)
                raise
            lines.not_joined.add(launcher.name, 0)
            return values

        session.take(lines.loss, launcher, partial(_sample_loss, first, second), repeat)
        session.take(lines.join, launcher, join, repeat)


def _sample_loss(first: Job, second: Job) -> list[float]:
    for each in (first, second):
        each.await_reports(lambda reports: bool(in_world(reports, 2)), FORM_DEADLINE_S)
    first.settle(SETTLE_S)
    killed_at = kill(second)
    again = _await_first(first, 1, killed_at, RECOVER_DEADLINE_S)
    return [again.reached - killed_at, again.begun - killed_at]


def _sample_join(session: Session, contender: Contender, port: int, first: Job) -> list[float]:
    alone = in_world(first.reports, 1)
    if not alone:
        raise RunFailed("nobody was there to join: the survivor had not recovered")
    first.settle(SETTLE_S)
    with node(session, contender, port, is_host=False) as newcomer:
        since = newcomer.started_at
        both = [_await_first(each, 2, since, JOIN_DEADLINE_S) for each in (newcomer, first)]
        stepped_at = max(report.reached for report in both)
        return [
            stepped_at - since,
            max(report.begun for report in both) - since,
            stepped_at - last_step(first, alone[-1].pid),
        ]


def _await_first(job: Job, size: int, since: float, deadline_s: float) -> Report:
    """The first report after that moment of a worker in a round of that many."""

    def found(reports: list[Report]) -> list[Report]:
        return [report for report in in_world(reports, size) if report.reached > since]

    job.await_reports(lambda reports: bool(found(reports)), deadline_s)
    return found(job.reports)[0]
