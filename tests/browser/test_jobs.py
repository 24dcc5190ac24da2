"""The page on real jobs: failures, logs, a node that leaves, a takeover."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.browser.jobs import RunningJobs
from tests.browser.looking import Browser
from tests.free_ports import free_port
from tests.waiting import until


def test_a_killed_worker_and_its_recovery_are_seen_and_the_cause_is_read(
    browser: Browser, jobs: RunningJobs
) -> None:
    jobs.start("--nproc-per-node", "3", "--max-restarts", "5")
    browser.open(jobs.link())
    browser.until_text("[data-test=state]", "Running")
    os.kill(jobs.worker(1), signal.SIGKILL)
    browser.until_text("[data-test=incidents]", "rank 1")
    browser.until_text("[data-test=incidents]", "SIGKILL")
    browser.until_text("[data-test=incidents]", "recovered in")
    browser.until_text("[data-test=sentence]", "Round 2 runs")
    jobs.worker(2, 2)
    jobs.fail(2)
    browser.until_text("[data-test=incidents]", "the gradients are not numbers")
    assert browser.complaints() == []


def test_logs_come_as_they_are_written_and_where_workers_are_is_told(
    browser: Browser, jobs: RunningJobs
) -> None:
    jobs.start("--nproc-per-node", "2")
    browser.open(jobs.link(), tab="logs")
    browser.until_text("[data-test=lines]", "step 30 of rank 0")
    browser.until_text("[data-test=lines]", "step 30 of rank 1")
    browser.write("[data-filter]", "WARNING of rank 1")
    browser.until_text("[data-test=lines]", "a warning of rank 1")
    until(lambda: "step" not in browser.text("[data-test=lines]"), "only what fits")
    assert "rank 0" not in browser.text("[data-test=lines]")
    browser.run("location.hash = 'stacks'")
    browser.click(".stacks button")
    browser.until_text("[data-test=stack]", "train.py")


def test_a_node_is_drained(browser: Browser, jobs: RunningJobs) -> None:
    meeting = f"127.0.0.1:{free_port()}"
    options = ("--nnodes", "1:2", "--rdzv-endpoint", meeting, "--last-call", "60")
    jobs.start(*options)
    browser.open(jobs.link(0), tab="nodes")
    # Who is first at the meeting is the coordinator: the one that stays, whose page this is.
    browser.until_text("[data-test=nodes] tbody tr", "coordinator")
    leaving = jobs.start(*options)
    other = "[data-test=nodes] tbody tr:not(:has(.tag)) button"
    browser.click(other)
    browser.until_text("dialog[open]", "Drain")
    browser.click("dialog[open] [data-test=confirm]")
    browser.until_text(".notes", "was asked to leave")
    until(lambda: leaving.poll() is not None, "the node has left")
    until(lambda: len(browser.find("[data-test=nodes] tbody tr")) == 1, "one node")
    browser.run("location.hash = 'overview'")
    browser.until_text("[data-test=state]", "Running")


def test_a_page_outlives_the_coordinator_and_its_own_agent(
    browser: Browser, jobs: RunningJobs, tmp_path: Path
) -> None:
    place = tmp_path / "meeting"
    place.mkdir()
    options = (
        *("--nnodes", "1:3", "--rdzv-backend", "file", "--rdzv-endpoint", str(place)),
        *("--last-call", "2", "--max-restarts", "9"),
    )
    agents = [jobs.start(*options)]
    first = jobs.link(0)
    browser.open(first)
    browser.until_text("[data-test=state]", "Running")
    agents += [jobs.start(*options), jobs.start(*options)]
    browser.run("location.hash = 'nodes'")
    until(lambda: len(browser.find("[data-test=nodes] tbody tr")) == 3, "three nodes")
    browser.until_text("[data-test=nodes]", "coordinator")
    # The page knows where else it can go, and the job goes on without its first agent.
    others = "return document.querySelector('[data-test=line]').title.split(',').length"
    until(lambda: browser.run(others) == 2, "it has heard of the two others")
    agents[0].kill()
    until(lambda: len(browser.find("[data-test=lost] a")) == 2, "it offers the two others")
    browser.click("[data-test=lost] a")
    until(
        lambda: not browser.driver.current_url.startswith(first.split("#")[0]),
        "the page has moved to another agent",
    )
    browser.until_text("[data-test=line]", "live")
    browser.until_text("[data-test=state]", "Running")
    browser.run("location.hash = 'overview'")
    browser.click(".happened .switch button:last-child")
    browser.until_text("[data-test=events]", "is the coordinator now")
