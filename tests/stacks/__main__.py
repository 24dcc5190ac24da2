"""`python -m tests.stacks`: launch every stack and write the table of what is left to import.

python -m tests.stacks                 # print it; makes the environments if need be
python -m tests.stacks --write         # put it into docs/reference/real-stacks.md
python -m tests.stacks plain --output table.md
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from . import launches, table
from .environments import BY_NAME, CHECKOUT, Stack, make
from .launches import COLD, WARM

PAGE = CHECKOUT / "docs" / "reference" / "real-stacks.md"
BEGIN = "<!-- made by python -m tests.stacks --write: begin -->"
END = "<!-- made by python -m tests.stacks --write: end -->"


def measure(stack: Stack, base: Path, settle_s: float) -> table.Entry:
    """Every launch that the table needs. One before the first fills the machine's memory."""
    launches.run(stack, COLD, base / "uncounted", base / "unused")
    cold = launches.run(stack, COLD, base / "cold", base / "unused")
    killed = launches.run_and_kill(stack, base / "killed", base / "memory", settle_s)
    later = launches.run(stack, WARM, base / "later", base / "memory")
    return table.Entry(stack.name, cold, killed, later, killed)


def write(text: str) -> None:
    """Put the table in its place on the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stacks", description=__doc__)
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=f"of: {', '.join(BY_NAME)}")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before the kill")
    parser.add_argument("--output", type=Path, help="a file for the table")
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.name}")
    options = parser.parse_args()
    names = options.stacks or list(BY_NAME)
    if unknown := set(names) - set(BY_NAME):
        parser.error(f"{unknown.pop()!r} is no stack; there are: {', '.join(BY_NAME)}")
    if options.write and set(names) != set(BY_NAME):
        parser.error("--write wants all stacks, since it replaces the whole table")
    entries = []
    for name in names:
        make(BY_NAME[name])
        with tempfile.TemporaryDirectory(prefix="holdfast-stacks-") as base:
            entries.append(measure(BY_NAME[name], Path(base), options.settle))
        print(table.as_text(entries[-1]), flush=True)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    made_under = f"One launch each, {date}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}."
    text = f"{made_under}\n\n{table.as_markdown(entries)}"
    if options.output:
        options.output.write_text(text + "\n")
    if options.write:
        write(text)


if __name__ == "__main__":
    try:
        main()
    except launches.LaunchFailed as failure:
        sys.exit(f"a launch failed: {failure}")
