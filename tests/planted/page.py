"""docs/reference/planted-failures.md: what Holdfast really said of each planted failure.

The page has a section for each row of the table. A section is written anew when its failure is
played; the others stay as they are.
"""

from __future__ import annotations

import re
import socket
import tempfile
import time
from pathlib import Path

from ..integration.nodes.hosts import Network
from .failures import ONE, THREE, Planted
from .playing import mistakes, played
from .staging import PROGRAMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "planted-failures.md"
BEGIN = "<!-- made by python -m tests.planted --page: begin -->\n"
END = "<!-- made by python -m tests.planted --page: end -->\n"
HEADING = "### "
OWN = ("holdfast: ", "hint: ")
AT_EVERY_START = (
    "OMP_NUM_THREADS",
    "holdfast: worst-case recovery",
    "holdfast: if 10.77.",
    "holdfast: this job has no token",
)
"""Parts of lines that say nothing of a failure."""


def sections(page: str) -> dict[str, str]:
    """The part of the page that is made here: what is below each heading, by its words."""
    made = page.partition(BEGIN)[2].partition(END)[0]
    parts = re.split(f"^{HEADING}(.*)$", made, flags=re.MULTILINE)[1:]
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def page_with(page: str, made: dict[str, str]) -> str:
    before, _, rest = page.partition(BEGIN)
    parts = "".join(f"\n{HEADING}{name}\n\n{text}\n" for name, text in made.items())
    return before + BEGIN + parts + "\n" + END + rest.partition(END)[2]


def section(row: Planted, network: Network) -> str:
    """Play a failure, and what was said; refused where that was not what should be said."""
    nodes = ONE if ONE in row.nodes else THREE
    with tempfile.TemporaryDirectory(prefix="planted") as folder:
        said = played(row, network if nodes == THREE else None, Path(folder))
        host = "host2" if nodes == THREE else socket.gethostname()
        wrong = mistakes(row, said, host)
        if wrong:
            raise AssertionError("\n".join([row.name, *wrong, said.text]))
        text = shortened(said.text, Path(folder))
    speaker = "host2" if row.told else "host1"
    where = "One machine" if nodes == ONE else f"Three hosts; this is what {speaker} says"
    options = "".join(f" `{option}`" for option in row.options)
    given = f", with{options}" if options else ""
    day = time.strftime("%Y-%m-%d")
    return f"{where}{given} ({day}):\n\n```\n" + "\n".join(shown(text)) + "\n```"


def shortened(text: str, folder: Path) -> str:
    """Without the parts of paths that are only of this machine."""
    text = re.sub(rf"{re.escape(str(folder))}/[\w.-]+", "/job", text)
    return text.replace(str(PROGRAMS), "/job")


def shown(text: str) -> list[str]:
    """Lines of Holdfast's own, and what it says of the cause; the evidence below is left out."""
    kept: list[str] = []
    is_cause = False
    for line in text.splitlines():
        if line.startswith("  Cause: "):
            kept.append("")
            is_cause = True
        is_cause = is_cause and bool(line)
        is_told = line.startswith(OWN) and not any(part in line for part in AT_EVERY_START)
        if is_cause or is_told:
            kept.append(line)
    return kept
