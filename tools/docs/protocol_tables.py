"""The tables and the diagram of docs/design/protocol.md that are made from the code's own tables.

    python tools/docs/protocol_tables.py            print them
    python tools/docs/protocol_tables.py --write    put them into docs/design/protocol.md

`tests/test_protocol_tables.py` fails when the page and the code say different things.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from holdfast.core.node import MOVES, Phase
from holdfast.core.protocol.messages import (
    FeaturesFromNode,
    FeaturesToNode,
    ProtocolFromNode,
    ProtocolToNode,
)
from holdfast.core.rounds import ENDINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "protocol.md"
BEGIN = "<!-- made by tools/docs/protocol_tables.py: begin -->"
END = "<!-- made by tools/docs/protocol_tables.py: end -->"


def render() -> str:
    parts = [
        "The life of a node (`core/node.py`: MOVES):",
        _phases(),
        "What a node tells the coordinator (`core/protocol/messages.py`):",
        _messages(get_args(ProtocolFromNode)),
        "What the coordinator tells a node:",
        _messages(get_args(ProtocolToNode)),
        "What features (`core/features/`) add, from a node:",
        _messages(get_args(FeaturesFromNode)),
        "and to a node:",
        _messages(get_args(FeaturesToNode)),
        "What ends a round (`core/rounds.py`: ENDINGS):",
        _endings(),
    ]
    return "\n\n".join(parts)


def _phases() -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.PREPARING}"]
    for (before, after), on in MOVES.items():
        lines.append(f"    {before} --> {after}: {on}")
    return "\n".join([*lines, f"    {Phase.FINISHED} --> [*]", "```"])


def _messages(types: tuple[type, ...]) -> str:
    rows = ["| message | what it says |", "|---|---|"]
    for each in types:
        first = (each.__doc__ or "").split("\n\n")[0]
        rows.append(f"| `{each.__name__}` | {' '.join(first.split())} |")
    return "\n".join(rows)


def _endings() -> str:
    rows = ["| kind | what happened | what it costs |", "|---|---|---|"]
    rows += [f"| {kind} | {what} | {cost} |" for kind, (what, cost) in ENDINGS.items()]
    return "\n".join(rows)


def page_with(tables: str, page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(render(), PAGE.read_text()))
    else:
        print(render())
