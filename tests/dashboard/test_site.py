"""A dashboard's paths, over a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import Asked, Served

from holdfast.core.protocol.model import StackFrame
from holdfast.core.protocol.requests import (
    DrainWanted,
    LogBlock,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StacksTold,
    StackTold,
    StopWanted,
)

Serve = Callable[[MadeUpJob], Served]
LAST_CHUNK = b"\r\n0\r\n\r\n"


def test_the_page_is_given_to_all_and_what_it_shows_is_not(serve: Serve) -> None:
    served = serve(MadeUpJob())
    page = served.ask("/", Authorization="").until_whole()
    assert page.status == 200
    assert b"page.js" in page.body
    for target in ("/api/stream", "/api/stacks"):
        assert served.ask(target, Authorization="").until_whole().status == 401
        assert served.ask(target, Authorization="Bearer wrong").until_whole().status == 401
    assert not served.job.asked


@pytest.mark.parametrize("target", ["/../pyproject.toml", "/page/index.html", "/api/", "/x"])
def test_nothing_else_is_there(serve: Serve, target: str) -> None:
    assert serve(MadeUpJob()).ask(target).until_whole().status == 404


def test_stacks_of_equal_workers_stand_together_the_odd_one_first(serve: Serve) -> None:
    job = MadeUpJob(nodes=2, slots=2)
    waits = (StackFrame("dist.py", 7, "all_reduce"), StackFrame("train.py", 40, "step"))
    reads = (StackFrame("data.py", 88, "load_batch"),)
    job.stacks = {
        "n0": StacksTold((StackTold(0, waits), StackTold(1, waits))),
        "n1": StacksTold((StackTold(2, waits), StackTold(3, reads))),
    }
    served = serve(job)
    odd, rest = served.ask("/api/stacks?ranks=").until_whole().json()["groups"]
    assert (odd["ranks"], rest["ranks"]) == ([3], [0, 1, 2])
    assert "load_batch" in odd["title"]
    assert rest["text"].splitlines() == [
        "rank 0 on n0:",
        '  File "train.py", line 40, in step',
        '  File "dist.py", line 7, in all_reduce',
    ]
    (only,) = served.ask("/api/stacks?ranks=1,2").until_whole().json()["groups"]
    assert only["ranks"] == [1, 2]


def test_lines_are_sent_as_they_are_written_without_those_that_are_not_wanted(
    serve: Serve,
) -> None:
    job = MadeUpJob()
    job.written = [LogBlock(1.0, 0, 1, b"a line\nother\nthe rest of a "), LogBlock(0.5, 1, 2, b"")]
    stream = serve(job).ask("/api/logs?follow=1&grep=LINE")
    assert [one["text"] for one in stream.until_told("lines")] == ["a line"]
    job.written.append(LogBlock(2.0, 0, 1, b"line\nanother line\n"))
    found = stream.until_told("lines", lambda told: len(told) == 2)
    assert [one["text"] for one in found] == ["the rest of a line", "another line"]
    assert not stream.body.endswith(LAST_CHUNK)


def test_without_following_the_stream_ends_with_what_was_written(serve: Serve) -> None:
    job = MadeUpJob()
    job.written = [LogBlock(1.0, 0, 2, b"a line\n")]
    served = serve(job)
    stream = served.ask("/api/logs?ranks=0-3")
    (line,) = stream.until_told("lines")
    assert (line["at"], line["rank"], line["stream"]) == (1.0, 0, "err")
    served.until(lambda: stream.body.endswith(LAST_CHUNK))


def test_logs_that_nobody_can_give_are_refused_with_the_reason(serve: Serve) -> None:
    job = MadeUpJob()
    job.refusal = "this node has no coordinator right now"
    assert serve(job).ask("/api/logs?follow=1").until_told("refused") == job.refusal


@pytest.mark.parametrize("ranks", ["x", "3-1", "-1", "1,,x", "0-99999999"])
def test_ranks_that_are_none_are_refused(serve: Serve, ranks: str) -> None:
    asked = serve(MadeUpJob()).ask(f"/api/stacks?ranks={ranks}").until_whole()
    assert asked.status == 400
    assert b"write ranks as numbers" in asked.body


def test_stacks_that_nobody_gives_are_said_to_be_missing(serve: Serve) -> None:
    asked = serve(MadeUpJob()).ask("/api/stacks").until_whole()
    assert (asked.status, asked.body) == (503, b"no worker runs on this node now\n")


def command(served: Served, body: bytes, **headers: str) -> Asked:
    return served.ask("/api/actions", "POST", body, **headers).until_whole()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"action":"drain","node":"n1"}', DrainWanted),
        (b'{"action":"restart"}', RestartWanted),
        (b'{"action":"stop"}', StopWanted),
        (b'{"action":"save"}', SaveWanted),
        (b'{"action":"scale","least":1,"most":4}', ScaleWanted),
    ],
)
def test_a_command_reaches_the_job(serve: Serve, body: bytes, kind: type) -> None:
    served = serve(MadeUpJob())
    asked = command(served, body)
    assert (asked.status, bool(asked.json()["words"])) == (200, True)
    assert [type(request) for request in served.job.asked] == [kind]


def test_a_command_that_the_job_refuses_comes_back_with_its_reason(serve: Serve) -> None:
    job = MadeUpJob()
    job.unwilling = "no round runs now"
    asked = command(serve(job), b'{"action":"restart"}')
    assert (asked.status, asked.body) == (409, b"no round runs now\n")


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"action":"drain"}', b'{"action":"drain","node":""}', b"\xff",
     b'{"action":"format"}', b'{"action":"scale"}', b'{"action":"scale","least":-1,"most":2}',
     b'{"action":"scale","least":1,"most":"2"}',
     b'{"action":"drain","node":["n1"]}', b"[" * 3000, b" " * 5000],
)  # fmt: skip
def test_an_unknown_command_is_refused(serve: Serve, body: bytes) -> None:
    served = serve(MadeUpJob())
    assert command(served, body).status in (400, 413)
    assert not served.job.asked


def test_a_command_without_the_key_is_refused(serve: Serve) -> None:
    served = serve(MadeUpJob())
    assert command(served, b'{"action":"stop"}', Authorization="").status == 401
    assert not served.job.asked
