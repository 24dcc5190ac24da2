"""The page itself, with a job that exists only in what it answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace
from tests.browser.looking import Browser
from tests.browser.made_up_site import MadeUpSite
from tests.dashboard.made_up import MadeUpJob
from tests.waiting import until

from holdfast.core.protocol.requests import DashboardTold
from holdfast.observe.goodput import Interruption
from holdfast.observe.story import StoryEvent

Serve = Callable[[MadeUpJob], MadeUpSite]
WIDTHS = (390, 900, 1440)
TABS = ("overview", "speed", "logs", "stacks", "nodes")


def is_at(browser: Browser, tab: str) -> bool:
    return browser.text("nav [aria-current]").lower() == tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_out_at_any_width_and_nothing_complains(
    browser: Browser, made_up: Serve, scheme: str
) -> None:
    site = made_up(MadeUpJob(nodes=6, slots=8))
    browser.prefer(scheme)
    browser.open(site.link)
    for width in WIDTHS:
        for tab in TABS:
            browser.size(width)
            browser.run(f"location.hash = {tab!r}")
            until(partial(is_at, browser, tab), tab)
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= width, f"{tab} at {width} px is {wide} px wide"
    assert browser.complaints() == []


def test_no_request_leaves_the_pages_own_host(browser: Browser, made_up: Serve) -> None:
    site = made_up(MadeUpJob())
    browser.open(site.link)
    browser.until_text("[data-test=line]", "live")
    assert browser.hosts() == {site.url.split("/")[2]}
    refused = browser.run(
        "return fetch('http://127.0.0.1:9/').then(() => 'sent', error => String(error))"
    )
    assert "Failed to fetch" in refused
    assert any("Content Security Policy" in one for one in browser.complaints())


def test_the_key_does_not_stay_in_the_address_and_a_reload_needs_none(
    browser: Browser, made_up: Serve
) -> None:
    browser.open(made_up(MadeUpJob()).link)
    assert "key=" not in browser.driver.current_url
    browser.driver.refresh()
    browser.until_text("[data-test=line]", "live")


def test_without_the_key_nothing_is_shown_until_somebody_pastes_the_link(
    browser: Browser, made_up: Serve
) -> None:
    site = made_up(MadeUpJob())
    browser.open(f"{site.url}#key=wrong")
    browser.until_text("main.lock", "The key does not fit")
    assert "made-up" not in browser.text("body")
    browser.write("main.lock input", site.link)
    browser.click("main.lock button")
    browser.until_text("h1", "made-up")


def test_a_slow_worker_is_found_with_the_keyboard_alone(browser: Browser, made_up: Serve) -> None:
    job = MadeUpJob(nodes=4, slots=8)
    job.slow = {19}
    browser.open(made_up(job).link)
    browser.until_text("[data-test=legend]", "1 slow")
    browser.press("?")
    until(lambda: browser.find("dialog[open]"), "the help")
    assert "from worker to worker" in browser.text("dialog[open]")
    browser.press("\ue00c")  # Escape
    until(lambda: not browser.find("dialog[open]"), "the help is closed")
    for _ in range(30):
        browser.press("\ue004")  # Tab
        if browser.run("return document.activeElement.matches('[data-test=grid]')"):
            break
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus can be seen"
    browser.press("n")
    browser.until_text("[data-test=worker]", "Rank 19")
    browser.press("\ue012", "\ue013")  # left, up
    browser.until_text("[data-test=worker]", "Rank")
    assert "Rank 19" not in browser.text("[data-test=worker]")
    browser.press("3")
    until(lambda: "logs" in browser.driver.current_url, "the third tab")


def test_the_theme_is_the_systems_or_the_readers(browser: Browser, made_up: Serve) -> None:
    browser.prefer("dark")
    browser.open(made_up(MadeUpJob()).link)
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    dark = browser.run(colour)
    browser.press("t")
    light = browser.run(colour)
    assert dark != light
    browser.press("t")
    assert browser.run(colour) == dark
    browser.press("t")
    assert browser.run(colour) == dark, "as the system is"


def test_what_is_waited_for_and_trouble_are_said(browser: Browser, made_up: Serve) -> None:
    job = MadeUpJob()
    browser.open(made_up(job).link)
    job.refusal = "this node has no coordinator right now"
    browser.until_text("[data-test=trouble]", "no coordinator right now")
    job.refusal = ""
    until(lambda: not browser.find("[data-test=trouble]"), "it is over")


def test_a_line_that_is_lost_is_said_and_found_again(browser: Browser, made_up: Serve) -> None:
    site = made_up(MadeUpJob())
    browser.open(site.link)
    browser.until_text("[data-test=line]", "live")
    found = threading.Event()
    site.call(found.wait)  # Its connections stand, and it says nothing: as a host that hangs.
    try:
        browser.until_text("[data-test=lost]", "No contact with the agent")
    finally:
        found.set()
    browser.until_text("[data-test=line]", "live")
    until(lambda: not browser.find("[data-test=lost]"), "the line is found again")


def test_a_page_whose_agent_is_gone_offers_others_and_goes_nowhere_by_itself(
    browser: Browser, made_up: Serve
) -> None:
    """Where another dashboard is, an admitted node says, and it may lie."""
    job = MadeUpJob()
    job.coordinator, job.dashboards["n1"] = "n1", DashboardTold("http://127.0.0.1:9/", "k")
    site = made_up(job)
    browser.open(site.link)
    browser.until_text("[data-test=line]", "live")
    until(lambda: browser.find("[data-test=line][title='Also served by n1']"), "it is told all")
    found = threading.Event()
    site.call(found.wait)
    try:
        browser.until_text("[data-test=lost] a", "Go to n1 at 127.0.0.1:9")
        until(lambda: seconds_of(browser.text("[data-test=lost]")) > 6, "it is gone for a while")
        assert browser.run("return location.href").startswith(site.url)
        (link,) = browser.find("[data-test=lost] a")
        assert link.get_attribute("href") == "http://127.0.0.1:9/#key=k"
    finally:
        found.set()
    browser.until_text("[data-test=line]", "live")


def seconds_of(words: str) -> float:
    found = re.search(r"for ([0-9.]+) s", words)
    return float(found[1]) if found is not None else 0.0


def test_an_incident_is_told_with_its_cause_and_how_it_ended(
    browser: Browser, made_up: Serve
) -> None:
    job = MadeUpJob()
    site = made_up(job)
    browser.open(site.link)

    def tell(kind: str, words: str, **fields: object) -> None:
        event = StoryEvent(1000.0, kind, words, "n0-id", **fields)  # type: ignore[arg-type]
        site.call(lambda: job.tell(event))

    failed = "rank 2 on n0 raised RuntimeError: no numbers"
    one = Interruption(
        1000.0, 1, 2, "failure", failed, f"{failed}; restarting (1 of 10)", (2,), {}, 3, False
    )
    job.interruptions = [one]
    tell("worker_failed", failed, round=1, rank=2, reason="RuntimeError: no numbers")
    browser.until_text("[data-test=incidents]", failed)
    browser.until_text("[data-test=incidents]", "not over yet")
    browser.until_text("[data-test=incidents]", "Logs of rank 2")
    job.interruptions = [replace(one, parts_s={"stop": 0.1, "spawn": 0.15}, is_over=True)]
    tell("round_formed", "round 2 begins", round=2)
    browser.until_text("[data-test=incidents]", "recovered in 0.25 s")
    assert browser.text("[data-test=incidents]").count(failed) == 1
    assert "restarting (1 of 10)" in browser.text("[data-test=incidents]")


def test_ten_thousand_workers_are_drawn_and_each_can_be_found(
    browser: Browser, made_up: Serve
) -> None:
    job = MadeUpJob(nodes=1250, slots=8)
    job.slow = {7777}
    browser.open(made_up(job).link)
    browser.until_text("[data-test=legend]", "9,999 running")
    browser.run("document.querySelector('[data-test=grid]').focus()")
    browser.press("n")
    browser.until_text("[data-test=worker]", "Rank 7777")
