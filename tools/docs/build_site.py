"""`make docs`: the pages of this repository as a site, in `.site/html`.

    python tools/docs/build_site.py            build it
    python tools/docs/build_site.py --serve    and show it at http://127.0.0.1:8000/, until Ctrl-C

Rules
1. Pages are read where they are: README.md, docs/ and the other pages at the top. A copy of them,
   in the same places, is what mkdocs builds, so that links between them hold there as they do here.
2. A file that is no page, and that a page links to, becomes a page with its text. A link to a
   folder becomes plain words.
3. The navigation is the lists of docs/README.md, under their headings.
4. mkdocs is strict: a link or an anchor that leads nowhere ends the build. So does a built page
   that would load anything from another host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / ".site"
INDEX = ROOT / "docs" / "README.md"
AT_THE_TOP = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
BELOW = ("docs", "benchmarks")
SHOWN_AS = {".py": "python", ".json": "json"}
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<words>[^][]*)\]\((?P<to>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
HOST = r"""=["']?(?:https?:)?//[^"'> ]+"""
LOADED = re.compile(rf"(?:src|srcset){HOST}|<link [^>]*href{HOST}")
NOT_LOADED = re.compile(r"""rel=["']?(?:canonical|next|prev)""")


def pages() -> list[Path]:
    """All pages, as paths from the top."""
    found = [ROOT / name for name in AT_THE_TOP]
    for folder in BELOW:
        found += sorted((ROOT / folder).rglob("*.md"))
    return [path.relative_to(ROOT) for path in found]


def outside_of_fences(text: str, change: Any) -> str:
    """Change what is not code."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def with_links_for_the_site(page: Path, text: str, linked: set[Path]) -> str:
    """Links to other files lead to pages with their text; those are added to `linked`."""

    def other(link: re.Match[str]) -> str:
        target = (ROOT / page.parent / link["to"]).resolve()
        if target.is_dir():
            return link["words"]
        if target.suffix in SHOWN_AS and target.is_file():
            linked.add(target.relative_to(ROOT))
            return f"[{link['words']}]({link['to']}.md)"
        return link[0]

    return outside_of_fences(text, lambda part: LINK.sub(other, part))


def navigation(index: str) -> list[dict[str, Any]]:
    """Headings of the index, each with its list: `- [words](page): what is there`."""
    made: list[dict[str, Any]] = [{"Holdfast": "README.md"}]
    for heading, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", index, re.MULTILINE):
        found = re.findall(r"^- \[([^]]*)\]\(([^)#]*)\)", body, re.MULTILINE)
        entries = [{words: (INDEX.parent / to).resolve()} for words, to in found]
        made.append(
            {heading: [{k: str(v.relative_to(ROOT)) for k, v in each.items()} for each in entries]}
        )
    made[1:1] = [{"All pages": "docs/README.md"}]
    return made


def put_together(place: Path) -> None:
    """Copy the pages, with what they show and link to."""
    linked: set[Path] = set()
    for page in pages():
        text = with_links_for_the_site(page, (ROOT / page).read_text(encoding="utf-8"), linked)
        _write(place / page, text)
    for source in linked:
        text = (ROOT / source).read_text(encoding="utf-8").rstrip()
        _write(
            place / f"{source}.md",
            f"# `{source}`\n\n````{SHOWN_AS[source.suffix]}\n{text}\n````\n",
        )
    shutil.copytree(ROOT / "docs" / "images", place / "docs" / "images")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def loaded_from_elsewhere(html: Path) -> list[str]:
    """What built pages would load from another host."""
    return [
        f"{page.relative_to(html)}: {found[0]}"
        for page in sorted(html.rglob("*.html"))
        for found in LOADED.finditer(page.read_text(encoding="utf-8"))
        if not NOT_LOADED.search(found[0])
    ]


def build() -> int:
    shutil.rmtree(MADE, ignore_errors=True)
    put_together(MADE / "pages")
    entries = navigation(INDEX.read_text(encoding="utf-8"))
    settings = {"INHERIT": "../tools/docs/mkdocs.yml", "nav": entries}
    _write(MADE / "mkdocs.yml", json.dumps(settings))
    # Not `--quiet`: with it, what is not as it should be is not counted either.
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(MADE / "mkdocs.yml")]
    calm = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # We are bound to mkdocs 1.
    status = subprocess.run(command, env=calm, check=False).returncode
    if status:
        return status
    elsewhere = loaded_from_elsewhere(MADE / "html")
    for line in elsewhere:
        print(f"loaded from another host: {line}", file=sys.stderr)
    print(f"built: {(MADE / 'html' / 'index.html').relative_to(ROOT)}")
    return min(len(elsewhere), 1)


def serve() -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    handler = partial(SimpleHTTPRequestHandler, directory=str(MADE / "html"))
    with ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
        print("http://127.0.0.1:8000/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    status = build()
    if status == 0 and "--serve" in sys.argv[1:]:
        serve()
    sys.exit(status)
