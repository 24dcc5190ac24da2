"""How a planted failure is played, and how what was said of it is judged."""

from __future__ import annotations

from pathlib import Path

from ..integration.nodes.hosts import Network
from .failures import Planted
from .staging import HERE, Said, staged


def played(row: Planted, network: Network | None, folder: Path) -> Said:
    """Run a job in which it happens; what was said at its end."""
    with staged(folder, network, HERE / "plain_job.py") as stage, row.around(stage):
        try:
            stage.start(row.options, row.program)
            if row.act is not None:
                row.act(stage)
            stage.wait()
            return stage.said()
        finally:
            stage.end()


def mistakes(row: Planted, said: Said, host: str) -> list[str]:
    """What is wrong with a verdict, in words; nothing where it is right."""
    who = f"rank 1 on {host}"
    if row.whole_node:
        who = f"{host} (rank 1)" if host == "host2" else host
    checks = {
        f"the kind is {said.kind!r}, and should be {row.kind!r}": said.kind == row.kind,
        f"{said.who!r} is named, and should be {who!r}": said.who == who,
        f"it is said {said.sure!r}, and should be {row.sure!r}": said.sure == row.sure,
    }
    wrong = [text for text, holds in checks.items() if not holds]
    return wrong + [f"{words!r} is not said" for words in row.words if words not in said.text]
