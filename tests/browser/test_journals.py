"""Journals that are chosen, or dropped onto the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.looking import Browser
from tests.browser.made_up_site import MadeUpSite
from tests.dashboard.made_up import MadeUpJob
from tools.simulator import make_plan, simulate

from holdfast.dashboard.page_state import PageState
from holdfast.dashboard.serving import journal_site

DROP = """
const dropped = new DataTransfer();
for (const [name, text] of arguments[0]) dropped.items.add(new File([text], name));
for (const kind of ['dragenter', 'drop']) document.body.dispatchEvent(
  new DragEvent(kind, {dataTransfer: dropped, bubbles: true, cancelable: true}));
"""


@pytest.fixture
def site() -> Iterator[MadeUpSite]:
    """What `holdfast dashboard` serves where no job has left a journal."""
    one = MadeUpSite(MadeUpJob(), lambda loop, guard: journal_site(loop, PageState(), guard))
    yield one
    one.close()


def test_journals_are_chosen_or_dropped_and_bad_files_are_named(
    browser: Browser, site: MadeUpSite, tmp_path: Path
) -> None:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    journals = sorted(tmp_path.glob("*.jsonl"))
    notes = tmp_path / "notes.txt"
    notes.write_text("not a line of a journal\n")
    browser.open(site.link)
    browser.until_text("[data-test=none]", "Drop the journals of a job here")
    browser.choose("[data-test=none] [data-test=files]", notes)
    browser.until_text(".notes", "notes.txt is not a journal")
    browser.choose("[data-test=none] [data-test=files]", *journals)
    browser.until_text("[data-test=state]", "Failed")
    browser.until_text("[data-test=incidents]", "something is wrong")
    # From here, another one: of one node alone, which says what is missing.
    browser.run(DROP, [["journal.jsonl", journals[0].read_text()]])
    browser.until_text(".now", "1 of 2 nodes' journals are here")
    browser.driver.refresh()
    browser.until_text(".now", "1 of 2 nodes' journals are here")
    browser.run(DROP, [["journal.jsonl", journals[0].read_text()[:-30] + "x\n"]])
    browser.until_text(".notes", "of journal.jsonl is damaged")
    assert browser.complaints() == []


def test_a_page_of_a_job_that_runs_says_who_opens_journals(browser: Browser) -> None:
    site = MadeUpSite(MadeUpJob())
    try:
        browser.open(site.link)
        browser.until_text("[data-test=line]", "live")
        browser.run(DROP, [["journal.jsonl", "x"]])
        browser.until_text(".notes", "holdfast dashboard")
    finally:
        site.close()
