"""`python -m benchmarks.stacks_page`: the stored figures of (p) in docs/reference/real-stacks.md.

With `--check` nothing is written; the status is 1 if the page says something else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from benchmarks import results

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "real-stacks.md"
BEGIN = "<!-- made by python -m benchmarks.stacks_page: begin -->"
END = "<!-- made by python -m benchmarks.stacks_page: end -->"
MEASURE = "p"


def render(folder: Path = results.FOLDER) -> str:
    """The rows of (p) as they were last stored, and under which conditions."""
    stored = (folder / "latest.json").read_bytes()
    for run in msgspec.json.decode(stored, type=list[results.Run]):
        figures = [figure for figure in run.figures if figure.measure == MEASURE]
        if figures:
            rows = results.comparison_rows(figures)
            made = msgspec.structs.asdict(run.conditions)
            words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in made.items())
            return f"Medians; {words}.\n\n{results.as_markdown(rows)}"
    return f"Not measured yet: `python -m benchmarks --only {MEASURE} --store` does."


def page_with(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def main(words: list[str]) -> int:
    page = page_with(render())
    if words == ["--check"]:
        return int(page != PAGE.read_text())
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
