"""What the page says of real jobs is so: stalled, stopped, finished, out of contact, lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.browser.jobs import RunningJobs
from tests.browser.looking import Browser
from tests.free_ports import free_port
from tests.waiting import until

INCIDENTS = "return document.querySelectorAll('[data-test=incidents] > li').length"


def reported(jobs: RunningJobs) -> dict[str, Any]:
    """What `holdfast report` says of the same job."""
    told: dict[str, Any] = json.loads(jobs.call("report", "--json", *jobs.journals()))
    return told


def incidents(report: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = ("failure", "loss", "hang")
    return [one for one in report["ledger"]["interruptions"] if one["ended_by"] in kinds]


def test_a_job_in_which_nobody_steps_is_amber_and_moves_again(
    browser: Browser, jobs: RunningJobs
) -> None:
    jobs.start("--nproc-per-node", "2")
    browser.open(jobs.link())
    browser.until_text("[data-test=last-step]", "/s, last")
    stall = jobs.say("stall")
    browser.until_text("[data-test=state]", "No progress")
    browser.until_text("[data-test=sentence]", "no worker makes a step")
    browser.until_text("[data-test=legend]", "2 no step")
    browser.until_text(".figure.late", "ago")
    browser.run("document.querySelector('[data-test=grid]').focus()")
    browser.press("n")
    browser.until_text("[data-test=worker]", "last step")
    stall.unlink()
    browser.until_text("[data-test=state]", "Running")
    browser.until_text("[data-test=legend]", "2 running")


def test_a_worker_that_has_ended_is_finished_while_others_run(
    browser: Browser, jobs: RunningJobs
) -> None:
    jobs.start("--nproc-per-node", "3")
    browser.open(jobs.link())
    browser.until_text("[data-test=legend]", "3 running")
    jobs.say("finish.1")
    browser.until_text("[data-test=legend]", "1 finished")
    browser.until_text("[data-test=legend]", "2 running")
    jobs.say("finish")
    browser.until_text("[data-test=state]", "Succeeded")
    browser.until_text("[data-test=legend]", "3 finished")
    assert "starting" not in browser.text("[data-test=legend]")


def test_a_job_that_was_stopped_is_not_failed_and_its_last_lines_can_be_read(
    browser: Browser, jobs: RunningJobs
) -> None:
    agent = jobs.start("--nproc-per-node", "2", "--tee", "3")
    browser.open(jobs.link())
    browser.until_text("[data-test=last-step]", "/s, last")
    jobs.call("stop", jobs.name)
    browser.until_text("[data-test=state]", "Stopped")
    browser.until_text("[data-test=sentence]", "Stopped by ")
    assert not browser.find(".job-failed, .reason")
    assert "Nothing has gone wrong" in browser.text(".happened")
    until(lambda: agent.poll() is not None, "the agent has ended")
    browser.run("location.hash = 'logs'")
    browser.until_text("[data-test=lines]", "step 10 of rank 1")
    browser.write("[data-filter]", "rank 0 has begun")
    until(lambda: "rank 1" not in browser.text("[data-test=lines]"), "only what fits")
    browser.until_text("[data-test=lines]", "rank 0 has begun")
    # And from its journal, by whoever comes later.
    page = jobs.serve(*jobs.journals())
    browser.open(page)
    browser.until_text("[data-test=state]", "Stopped")
    browser.until_text("[data-test=sentence]", "Stopped by ")
    browser.run("location.hash = 'logs'")
    browser.until_text("[data-test=lines]", "step 10 of rank 1")
    assert browser.complaints() == []


def test_without_contact_the_page_is_grey_and_nothing_goes_on(
    browser: Browser, jobs: RunningJobs
) -> None:
    agent = jobs.start("--nproc-per-node", "2")
    browser.open(jobs.link())
    browser.until_text("[data-test=last-step]", "/s, last")
    agent.send_signal(signal.SIGSTOP)
    browser.until_text("[data-test=lost]", "No contact with the agent that serves this page")
    browser.until_text("[data-test=lost]", "since")
    browser.until_text("[data-test=state]", "Last seen running")
    assert browser.run("return getComputedStyle(document.querySelector('.now')).filter") != "none"
    shown = browser.text("main")
    until(lambda: " for 10 s" in browser.text("[data-test=lost]"), "some time has passed")
    assert browser.text("main") == shown, "nothing is extrapolated"
    agent.send_signal(signal.SIGCONT)
    until(lambda: not browser.find("[data-test=lost]"), "the line is found again")
    browser.until_text("[data-test=state]", "Running")
    until(lambda: not browser.find("main.stale"), "it is fresh again")


def test_a_lost_coordinator_is_an_incident_and_all_are_those_of_the_report(
    browser: Browser, jobs: RunningJobs, tmp_path: Path
) -> None:
    place = tmp_path / "meeting"
    place.mkdir()
    options = (
        *("--nnodes", "2:3", "--rdzv-backend", "file", "--rdzv-endpoint", str(place)),
        *("--last-call", "2", "--max-restarts", "9"),
    )
    agents = [jobs.start(*options)]
    browser.open(jobs.link(0), tab="nodes")
    agents += [jobs.start(*options), jobs.start(*options)]
    until(lambda: len(browser.find("[data-test=nodes] tbody tr")) == 3, "three nodes")
    jobs.worker(2)
    browser.open(jobs.link(1))
    browser.until_text("[data-test=state]", "Running")
    agents[0].kill()
    browser.until_text("[data-test=incidents]", "the node that was the coordinator")
    browser.until_text("[data-test=incidents]", "recovered in")
    assert "Nothing has gone wrong" not in browser.text("body")
    jobs.fail(0)
    browser.until_text("[data-test=incidents]", "the gradients are not numbers")
    until(lambda: browser.text("[data-test=incidents]").count("recovered in") == 2, "recovered")
    shown, told = browser.run(INCIDENTS), incidents(reported(jobs))
    assert shown == len(told) == 2


def test_a_node_is_asked_for_less_and_workers_are_asked_to_save(
    browser: Browser, jobs: RunningJobs
) -> None:
    meeting = f"127.0.0.1:{free_port()}"
    jobs.start("--nnodes", "1:2", "--rdzv-endpoint", meeting, "--last-call", "1")
    browser.open(jobs.link(0), tab="nodes")
    browser.until_text("[data-test=state]", "Running")
    browser.click("main .choices button:nth-child(2)")
    browser.until_text("dialog[open]", "Scale")
    browser.write("[data-test=most]", "3")
    browser.click("dialog[open] [data-test=confirm]")
    browser.until_text(".notes", "1 to 3 nodes from now on")
    browser.click("main .choices button:nth-child(1)")
    browser.until_text("dialog[open]", "Save now")
    browser.click("dialog[open] [data-test=confirm]")
    browser.until_text(".notes", "all workers are asked to save")
    events = jobs.call("events", jobs.name)
    assert "the dashboard asked for 1 to 3 nodes" in events


def test_a_report_is_a_file_that_opens_by_itself(
    browser: Browser, jobs: RunningJobs, tmp_path: Path
) -> None:
    agent = jobs.start("--nproc-per-node", "2", "--max-restarts", "3")
    jobs.worker(1)
    jobs.fail(1)
    jobs.worker(1, 2)
    jobs.say("finish")
    until(lambda: agent.poll() is not None, "the job has ended")
    file = tmp_path / "report.html"
    jobs.call("report", *jobs.journals(), "--html", str(file))
    browser.open(file.as_uri())
    browser.until_text("[data-test=state]", "Succeeded")
    browser.until_text("[data-test=incidents]", "the gradients are not numbers")
    assert browser.hosts() == set(), "nothing was fetched"
    assert browser.complaints() == []
    told = reported(jobs)
    assert browser.run(INCIDENTS) == len(incidents(told)) == 1
    useful = told["ledger"]["parts_s"]["useful"] / (told["end"] - told["start"])
    browser.until_text(".figures", f"{100 * useful:.1f} %")


def test_the_jobs_of_a_machine_are_listed_and_opened(browser: Browser, jobs: RunningJobs) -> None:
    jobs.start("--nproc-per-node", "2")
    link = jobs.link()
    jobs.worker(1)
    browser.open(jobs.serve())
    browser.until_text("[data-test=jobs]", jobs.name)
    row = (
        f"[...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('{jobs.name}'))"
    )
    assert browser.run(f"return {row}.querySelector('a').href") == link
    jobs.say("finish")
    until(lambda: "succeeded" in str(browser.run(f"return {row}.innerText")), "it has ended")
    browser.run(f"{row}.querySelector('button').click()")
    browser.until_text("h1", jobs.name)
    browser.until_text("[data-test=state]", "Succeeded")
    browser.driver.find_element("link text", "All jobs").click()
    browser.until_text("[data-test=jobs]", jobs.name)
    assert browser.complaints() == []
