"""The pages hold together: links lead somewhere, and what is made from the code is up to date."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tools.docs import build_site as site
from tools.docs import reference_tables

from .planted import page as planted_page
from .planted.failures import PLANTED, Planted

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
LINK = re.compile(r"\[[^][]*\]\((?P<to>[^)\s]+)\)|<img [^>]*src=\"(?P<image>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:")

PAGES = [REPOSITORY / path for path in site.pages()]


def anchors(page: Path) -> set[str]:
    """What headings can be linked by: as GitHub makes it of them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(site.FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^][]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def problem(page: Path, link: str) -> str:
    """What is wrong with a link; empty where it leads somewhere."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{page.relative_to(REPOSITORY)}: there is no {link}"
    if anchor and anchor not in anchors(target):
        return f"{page.relative_to(REPOSITORY)}: {link} is no heading there"
    return ""


def links(page: Path) -> list[str]:
    text = site.FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", lambda code: "x" * len(code[0]), text)
    found = [match["to"] or match["image"] for match in LINK.finditer(text)]
    return [link for link in found if not ELSEWHERE.match(link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [wrong for link in links(page) if (wrong := problem(page, link))] == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = DOCS / "reference" / "words.md"
    assert problem(page, "nowhere.md") == "docs/reference/words.md: there is no nowhere.md"
    assert "no heading" in problem(page, "../../SECURITY.md#nowhere")
    assert problem(page, "../../SECURITY.md#limits") == ""
    assert len([link for page in PAGES for link in links(page)]) > 200


NAMED = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)`")
"""A file of ours in the text: its path, or the end of it."""


def test_every_file_that_a_page_names_is_there() -> None:
    files = [f"/{path.relative_to(REPOSITORY)}" for path in REPOSITORY.glob("[a-z]*/**/*.py")]
    wrong = [
        f"{page.relative_to(REPOSITORY)}: there is no {name}"
        for page in PAGES
        for name in NAMED.findall(site.FENCE.sub("", page.read_text(encoding="utf-8")))
        if not name.startswith("test/")  # PyTorch's own.
        and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert wrong == []


def test_every_page_is_in_the_index_and_in_the_navigation_of_the_site() -> None:
    entries = site.navigation(site.INDEX.read_text(encoding="utf-8"))
    shown = re.findall(r"'([^']+\.md)'", str(entries))
    wanted = {str(path.relative_to(REPOSITORY)) for path in DOCS.rglob("*.md")}
    assert wanted | set(site.AT_THE_TOP) <= set(shown)
    assert len(shown) == len(set(shown)), "a page is there twice"


@pytest.mark.parametrize("name", ["options.md", "python-api.md", "journal.md"])
def test_what_is_made_from_the_code_is_up_to_date(name: str) -> None:
    text = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert reference_tables.BEGIN in text
    assert text == reference_tables.page(name), "run: python tools/docs/reference_tables.py --write"


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: row.name)
def test_the_page_of_planted_failures_shows_each(row: Planted) -> None:
    sections = planted_page.sections(planted_page.PAGE.read_text(encoding="utf-8"))
    section = sections[row.name]
    if row.told:
        assert re.search(row.told, section), "run: python -m tests.planted --page"
    else:
        assert f"  Cause: {row.kind}, " in section, "run: python -m tests.planted --page"
    assert list(sections) == [row.name for row in PLANTED]


def test_a_page_for_the_site_links_to_what_is_there(tmp_path: Path) -> None:
    site.put_together(tmp_path)
    page = (tmp_path / "docs" / "guides" / "warm-start.md").read_text(encoding="utf-8")
    assert "(../../src/holdfast/processes/zygote/fork_fixups.py.md)" in page
    assert (tmp_path / "src" / "holdfast" / "processes" / "zygote" / "fork_fixups.py.md").exists()
    assert "](../../tests/integration/warm)" not in page, "a folder is no page"


def test_what_a_page_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org">x</a><script src=https://cdn.example.org/x.js></script>'
        '<link rel="stylesheet" href="//fonts.example.org/a.css"><img src="images/a.png">'
    )
    found = site.loaded_from_elsewhere(tmp_path)
    assert [line.partition(": ")[2] for line in found] == [
        "src=https://cdn.example.org/x.js",
        '<link rel="stylesheet" href="//fonts.example.org/a.css',
    ]
