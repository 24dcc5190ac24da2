"""Play the planted failures and print who names their causes.

    python -m tests.planted [--table] [--torchrun] [WORDS ...]
    python -m tests.planted --page [WORDS ...]

With words, only failures whose names have one of them. With `--torchrun`, the same on one machine
under torchrun, where that makes sense: does its summary name the right rank, and has it a word for
the kind? (Without `--table`, only that.) With `--page`, what was said goes into
docs/reference/planted-failures.md. Needs root, for hosts and disks. The programs do not use
torchrun's `@record`.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path

from ..integration.nodes.hosts import Network
from . import page
from .failures import ONE, PLANTED, THREE, Planted
from .playing import mistakes, played, played_by_torchrun, torchrun_names
from .surroundings import NotHere

NOT_RUN = "–"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--torchrun", action="store_true", help="with a column for torchrun")
    parser.add_argument(
        "--page", action="store_true", help="write docs/reference/planted-failures.md"
    )
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    rows = [row for row in PLANTED if not asked.words or any(w in row.name for w in asked.words)]
    if not (asked.table or asked.page or asked.torchrun):
        print("\n".join(f"{row.name}: {row.kind}" for row in rows))
        return 0
    if asked.torchrun and not asked.table:
        return _torchrun(rows)
    network = Network(THREE)
    try:
        return _page(rows, network) if asked.page else _table(rows, network, asked.torchrun)
    finally:
        network.close()


def _table(rows: list[Planted], network: Network, with_torchrun: bool) -> int:
    wrong, right = 0, [0, 0, 0]
    print(f"{time.strftime('%Y-%m-%d')}, {sys.version.split()[0]}\n")
    print("| failure | the cause that is named | one machine | three hosts | torchrun |")
    print("|---|---|---|---|---|")
    for row in rows:
        scores = [_score(row, nodes, network) for nodes in (ONE, THREE)]
        wrong += sum("no" in score for score in scores)
        theirs = _torchrun_score(row, right) if with_torchrun else NOT_RUN
        print(f"| {row.name} | {row.kind} | {scores[0]} | {scores[1]} | {theirs} |", flush=True)
    if with_torchrun:
        print(f"\ntorchrun: of {right[0]}, the right rank in {right[1]}, the kind in {right[2]}")
    print(f"\nwrong: {wrong}")
    return min(wrong, 1)


def _torchrun(rows: list[Planted]) -> int:
    right = [0, 0, 0]
    for row in rows:
        print(f"{row.name}: {_torchrun_score(row, right)}", flush=True)
    print(f"\ntorchrun: of {right[0]}, the right rank in {right[1]}, the kind in {right[2]}")
    return 0


def _page(rows: list[Planted], network: Network) -> int:
    """Each section is written as soon as it is there: some take long, and one may be wrong."""
    wrong = 0
    for row in rows:
        try:
            made = page.section(row, network)
        except (AssertionError, NotHere) as reason:
            print(f"{row.name}: left as it was: {reason}", flush=True)
            wrong += 1
            continue
        text = page.PAGE.read_text(encoding="utf-8")
        now = {**page.sections(text), row.name: made}
        in_order = {each.name: now[each.name] for each in PLANTED if each.name in now}
        page.PAGE.write_text(page.page_with(text, in_order), encoding="utf-8")
        print(f"{row.name}: written", flush=True)
    return min(wrong, 1)


def _score(row: Planted, nodes: int, network: Network) -> str:
    if nodes not in row.nodes:
        return NOT_RUN
    with tempfile.TemporaryDirectory(prefix="planted") as folder:
        try:
            said = played(row, network if nodes == THREE else None, Path(folder))
        except NotHere as reason:
            return f"not here ({reason})"
        except AssertionError as error:
            return f"no ({str(error).splitlines()[0]})"
    found = mistakes(row, said, "host2" if nodes == THREE else socket.gethostname())
    return f"no ({found[0]})" if found else "yes"


def _torchrun_score(row: Planted, right: list[int]) -> str:
    """`rank`, `kind`, both or neither; counts them in `right`, after how many were played."""
    if row.torchrun is None:
        return NOT_RUN
    with tempfile.TemporaryDirectory(prefix="planted") as folder:
        summary = played_by_torchrun(row, Path(folder))
    rank, kind = torchrun_names(row, summary)
    right[0], right[1], right[2] = right[0] + 1, right[1] + rank, right[2] + kind
    if not summary:
        return "says nothing"
    return (
        " and ".join(word for word, holds in (("rank", rank), ("kind", kind)) if holds) or "neither"
    )


if __name__ == "__main__":
    sys.exit(main())
