"""A dashboard's paths, over a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import Asked, Served

from holdfast.core.protocol.model import StackFrame
from holdfast.core.protocol.requests import (
    DrainWanted,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StacksTold,
    StackTold,
    StopWanted,
)

Serve = Callable[[MadeUpJob], Served]


def test_the_page_is_given_to_all_and_what_it_shows_is_not(serve: Serve) -> None:
    served = serve(MadeUpJob())
    page = served.ask("/", Authorization="").until_whole()
    assert page.status == 200
    assert b"page.js" in page.body
    for target in ("/api/stream", "/api/stacks"):
        assert served.ask(target, Authorization="").until_whole().status == 401
        assert served.ask(target, Authorization="Bearer wrong").until_whole().status == 401
    assert not served.job.asked


def test_nothing_is_answered_under_a_foreign_name(serve: Serve) -> None:
    served = serve(MadeUpJob())
    for target in ("/", "/page.js", "/api/stream", "/api/stacks"):
        assert served.ask(target, Host="evil.example").until_whole().status == 421
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


@pytest.mark.parametrize("ranks", ["x", "3-1", "-1", "1,,x", "0-99999999"])
def test_ranks_that_are_none_are_refused(serve: Serve, ranks: str) -> None:
    asked = serve(MadeUpJob()).ask(f"/api/stacks?ranks={ranks}").until_whole()
    assert asked.status == 400
    assert b"write ranks as numbers" in asked.body


def test_stacks_that_nobody_gives_are_said_to_be_missing(serve: Serve) -> None:
    asked = serve(MadeUpJob()).ask("/api/stacks").until_whole()
    assert (asked.status, asked.body) == (503, b"no worker runs on this node now\n")


def command(served: Served, body: bytes, **headers: str) -> Asked:
    return served.ask("/api/actions", "POST", body, **{"X_Holdfast": "1", **headers}).until_whole()


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


def test_a_form_of_another_page_moves_nothing(serve: Serve) -> None:
    served = serve(MadeUpJob())
    assert command(served, b'{"action":"stop"}', X_Holdfast="").status == 403
    assert command(served, b'{"action":"stop"}', Authorization="").status == 401
    assert not served.job.asked
