"""How a planted failure is played, and how what was said of it is judged."""

from __future__ import annotations

import re
import time
from pathlib import Path

from ..integration.nodes.hosts import Network
from .failures import ANYBODY, Planted
from .staging import PROGRAMS, Said, Stage, staged

SUMMARY = "ChildFailedError"
TORCHRUN_S = 45.0
"""After which a job under torchrun that says nothing is taken not to."""


def played(row: Planted, network: Network | None, folder: Path) -> Said:
    """Run a job in which it happens; what was said at its end."""
    program = PROGRAMS / ("torch_job.py" if row.torch else "plain_job.py")
    with staged(folder, network, program) as stage, row.around(stage):
        try:
            stage.start(row.options, row.program)
            if row.act is not None:
                row.act(stage)
            return _told(row, stage) if row.told else _judged(stage)
        finally:
            stage.end()


def _judged(stage: Stage) -> Said:
    stage.wait()
    return stage.said()


def _told(row: Planted, stage: Stage) -> Said:
    """It is told while the job runs: the agent of the culprit's host says so, or nobody does."""
    culprit = stage.agents[1] if stage.network else stage.agents[0]
    stage.until(lambda: re.search(row.told, culprit.text), row.told)
    return Said(row.kind, row.who.format(host=culprit.host), row.certainty, culprit.text)


def played_by_torchrun(row: Planted, folder: Path) -> str:
    """What torchrun prints at the end of the same failure; empty where it never ends."""
    program = PROGRAMS / ("torch_job.py" if row.torch else "plain_job.py")
    with staged(folder, None, program) as stage, row.around(stage):
        try:
            stage.start_torchrun(row.program)
            if row.act is not None:
                row.act(stage)
            deadline = time.monotonic() + TORCHRUN_S
            (agent,) = stage.agents
            while agent.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            return agent.text.rpartition(SUMMARY)[2] if SUMMARY in agent.text else ""
        finally:
            stage.end()


def torchrun_names(row: Planted, summary: str) -> tuple[bool, bool]:
    """Whether the summary names the right rank, and has a word for the kind."""
    root = summary.partition("Root Cause")[2] or summary
    rank = re.search(r"rank\s+: (\d+)", root)
    kinds = row.torchrun or ()
    # All ranks do it where anybody may be named.
    is_right = rank is not None and (row.who == ANYBODY or rank[1] == "1")
    return is_right, any(word in summary for word in kinds)


def mistakes(row: Planted, said: Said, host: str) -> list[str]:
    """What is wrong with a verdict, in words; nothing where it is right."""
    who = row.who.format(host=host)
    checks = {
        f"the kind is {said.kind!r}, and should be {row.kind!r}": said.kind == row.kind,
        f"{said.who!r} is named, and should be {who!r}": who in (ANYBODY, said.who),
        f"it is said {said.certainty!r}, and should be {row.certainty!r}": said.certainty
        in _as_certain(row),
    }
    wrong = [text for text, holds in checks.items() if not holds]
    return wrong + [f"{words!r} is not said" for words in row.words if words not in said.text]


def _as_certain(row: Planted) -> tuple[str, ...]:
    """A victim may be seen before its culprit has ended: then it is no more than likely."""
    return (row.certainty, "likely")
