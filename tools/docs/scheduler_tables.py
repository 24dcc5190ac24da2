"""The table of variables in docs/guides/schedulers.md, from `placement/scheduler_variables.py`.

`python tools/docs/scheduler_tables.py` prints the page; with `--write` it is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.placement.scheduler_variables import REMOVED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "schedulers.md"
BEGIN = "<!-- made from placement/scheduler_variables.py: begin -->\n"
END = "<!-- made from placement/scheduler_variables.py: end -->\n"


def page() -> str:
    """The page, with the table as the code has it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n".join(_lines()) + "\n" + END + rest.partition(END)[2]


def _lines() -> list[str]:
    removed = [
        f"| {row.scheduler} | {', '.join(f'`{name}`' for name in row.names)} | {row.reason} |"
        for row in REMOVED
    ]
    return [
        "",
        "| of | removed | they |",
        "|---|---|---|",
        *removed,
        "",
    ]


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
