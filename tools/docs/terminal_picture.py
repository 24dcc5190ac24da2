"""Draw what a command printed, as it was, as an SVG of a terminal.

python examples/demo.py | python tools/docs/terminal_picture.py > docs/images/demo.svg
"""

from __future__ import annotations

import sys
from html import escape

COLUMN, LINE, EDGE = 7.25, 17, 18
COLOURS = (
    ("$", "#7ee787"),
    (">>>", "#ff7b72"),
    ("holdfast:", "#79c0ff"),
    ("What", "#ffffff"),
)
PLAIN = "#c9d1d9"


def picture(text: str) -> str:
    """The SVG: one text element for each line."""
    # Viewers put spaces together, but for those that do not break.
    lines = text.rstrip("\n").replace(" ", "\N{NO-BREAK SPACE}").split("\n")
    width = max(map(len, lines)) * COLUMN + 2 * EDGE
    height = len(lines) * LINE + 2 * EDGE
    drawn = "\n".join(
        f'<text x="{EDGE}" y="{EDGE + LINE * y + 12}" fill="{_colour(line)}">{escape(line)}</text>'
        for y, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}"\n'
        '  font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="12">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n{drawn}\n</svg>\n'
    )


def _colour(line: str) -> str:
    return next((colour for start, colour in COLOURS if line.startswith(start)), PLAIN)


if __name__ == "__main__":
    print(picture(sys.stdin.read()), end="")
