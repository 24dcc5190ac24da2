"""(g), (h), (i): a job of one or two nodes loses a node, gains one, or starts with only one.

A node is an agent with one worker; both are on this machine and meet over loopback. The first
one hosts the meeting. The workers step and log every step, so that standing still is measured
where it hurts: from the last step that anybody did to the first one of everybody.

Both launchers get the same flags. `torchrun` is shown with the times that it has by default,
which is how Holdfast runs too, and in rows of its own with times that are as short as they
can sensibly be.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from benchmarks import processes
from benchmarks.figures import Figure, Target
from benchmarks.jobs import Job, Report, RunFailed
from benchmarks.launchers import (
    Launcher,
    Meeting,
    free_port,
    holdfast,
    torchrun,
    torchrun_with_shared_store,
)
from benchmarks.session import Session

PROGRAM = "step_and_log.py"
FORM_DEADLINE_S = 120.0
RECOVER_DEADLINE_S = 120.0
JOIN_DEADLINE_S = 30.0
SETTLE_S = 1.0
LAST_CALL_S = 5
"""Holdfast's own, by default."""

PROMPT = {"last_call_timeout": "1"}
SHORT = {**PROMPT, "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
"""A node of torchrun is lost after three seconds without a sign of it instead of fifteen, and
the last call lasts one second instead of thirty."""


class Contender(Struct, frozen=True):
    """A launcher with settings, and how often it is measured: what takes long, seldom."""

    launcher: Launcher
    settings: dict[str, str]
    runs: int


def lose_node(session: Session) -> list[Figure]:
    """(g) The second node is killed, all of it: until the first one steps again."""
    killed = Figure("g", "node_killed", "node of 2 killed, to the survivor's next first step")
    killed.target = Target("at most", 0.8, ratio=40)
    title = "… torchrun with heartbeats of 1 s and a last call of 1 s"
    tuned = Figure("g", "node_killed_tuned", title)
    sample = partial(_sample_loss, session)
    _measure(session, [killed], [Contender(torchrun, {}, 1)], sample)
    _measure(session, [tuned], [Contender(torchrun, SHORT, 2)], sample)
    _measure(session, [killed], [Contender(holdfast, {}, session.repeats)], sample)
    return [killed, tuned]


def gain_node(session: Session) -> list[Figure]:
    """(h) A second node joins a job that runs on one."""
    still = Figure("h", "join_standstill", "node joins a node that steps: nobody steps for")
    still.target = Target("at most", 0.3, ratio=10)
    total = Figure("h", "join_total", "… from its command to the first step of both")
    title = f"… to the first step of both within {JOIN_DEADLINE_S:g} s (default set-up)"
    shared = Figure("h", "join_by_default", title)
    sample = partial(_sample_gain, session)
    ours = Contender(holdfast, PROMPT, session.repeats)
    theirs = Contender(torchrun, PROMPT, min(2, session.repeats))
    _measure(session, [still, total], [ours, theirs], sample)
    by_default = Contender(torchrun_with_shared_store, PROMPT, 1)
    _measure(session, [Figure("h", "", "default set-up"), shared], [by_default], sample)
    return [still, total, shared]


def start_alone(session: Session) -> list[Figure]:
    """(i) One node of one or two starts, and nobody else comes."""
    alone = Figure("i", "start_alone", "start of 1 node of 1:2, to its first step")
    alone.target = Target("at most", LAST_CALL_S + 2.5)
    prompt = Figure("i", "start_alone_prompt", "… with a last call of 1 s")
    sample = partial(_sample_start, session)
    runs = min(3, session.repeats)
    ours, theirs = Contender(holdfast, {}, runs), Contender(torchrun, {}, 1)
    _measure(session, [alone], [ours, theirs], sample)
    ours, theirs = Contender(holdfast, PROMPT, runs), Contender(torchrun, PROMPT, 2)
    _measure(session, [prompt], [ours, theirs], sample)
    return [alone, prompt]


def _measure(
    session: Session,
    figures: list[Figure],
    contenders: list[Contender],
    sample: Callable[[Contender], list[float]],
) -> None:
    """Take turns, as far as their numbers of runs go."""
    for repeat in range(max(contender.runs for contender in contenders)):
        for contender in contenders:
            if repeat < contender.runs:
                session.take(figures, contender.launcher, partial(sample, contender), repeat)


def _sample_loss(session: Session, contender: Contender) -> list[float]:
    port = free_port()
    with (
        node(session, contender, port, is_host=True) as first,
        node(session, contender, port, is_host=False) as second,
    ):
        for each in (first, second):
            each.await_reports(lambda reports: bool(in_world(reports, 2)), FORM_DEADLINE_S)
        first.settle(SETTLE_S)
        killed_at = kill(second)

        def recovered(reports: list[Report]) -> list[Report]:
            return [report for report in in_world(reports, 1) if report.reached > killed_at]

        first.await_reports(lambda reports: bool(recovered(reports)), RECOVER_DEADLINE_S)
        return [recovered(first.reports)[0].reached - killed_at]


def _sample_gain(session: Session, contender: Contender) -> list[float]:
    port = free_port()
    with node(session, contender, port, is_host=True) as first:
        first.await_reports(lambda reports: bool(in_world(reports, 1)), FORM_DEADLINE_S)
        first.settle(SETTLE_S)
        with node(session, contender, port, is_host=False) as second:
            for each in (second, first):
                each.await_reports(lambda reports: bool(in_world(reports, 2)), JOIN_DEADLINE_S)
            together = [*in_world(first.reports, 2), *in_world(second.reports, 2)]
            stepped_at = max(report.reached for report in together)
            alone = [report.pid for report in in_world(first.reports, 1)]
            last_at = max(last_step(first, pid) for pid in alone)
            return [stepped_at - last_at, stepped_at - second.started_at]


def _sample_start(session: Session, contender: Contender) -> list[float]:
    with node(session, contender, free_port(), is_host=True) as alone:
        alone.await_reports(lambda reports: bool(in_world(reports, 1)), FORM_DEADLINE_S)
        return [alone.reports[0].reached - alone.started_at]


@contextmanager
def node(session: Session, contender: Contender, port: int, is_host: bool) -> Iterator[Job]:
    """One node of one or two; when this is left, all that runs is gone."""
    settings = {"is_host": "true" if is_host else "false", **contender.settings}
    command = contender.launcher.node_command(Meeting(port, "1:2", settings), PROGRAM)
    with session.job(contender.launcher, command) as job:
        yield job


def kill(victim: Job) -> float:
    """Kill all processes of a node, its agent first; returns when."""
    pids = [victim.pid, *processes.descendants(victim.pid)]
    killed_at = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # It went with one of the others.
    return killed_at


def in_world(reports: list[Report], size: int) -> list[Report]:
    """Those of workers whose round has that many."""
    return [report for report in reports if report.world == size]


def last_step(of: Job, pid: int) -> float:
    """When a worker of the node did its last step."""
    lines = (of.folder / f"steps-{pid}").read_text().split()
    if not lines:
        raise RunFailed(f"worker {pid} logged no step")
    return float(lines[-1])
