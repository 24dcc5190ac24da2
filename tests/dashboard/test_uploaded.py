"""Journals that are dropped onto the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import Asked, Served
from tools.simulator import make_plan, simulate

from holdfast.core.protocol.errors import UsageError
from holdfast.dashboard.page_state import PageState
from holdfast.dashboard.serving import journal_site
from holdfast.dashboard.site import STORIES_KEPT
from holdfast.dashboard.uploaded import UploadedFile, journals_of
from holdfast.observe.journal import read


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of two nodes of one job."""
    folder = tmp_path_factory.mktemp("journals")
    simulate(make_plan(2, "deaths"), journals=folder)
    return sorted(folder.glob("*.jsonl"))


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served(MadeUpJob(), site_of=lambda loop, guard: journal_site(loop, PageState(), guard))
    yield one
    one.close()


def send(served: Served, drop: str, *files: bytes, piece: int = 100_000) -> Asked:
    for number, data in enumerate(files):
        for at in range(0, max(1, len(data)), piece):
            part = data[at : at + piece]
            target = f"/api/journals?drop={drop}&file={number}&name={quote('a b.jsonl')}"
            assert served.ask(target, "POST", part, X_Holdfast="1").until_whole().status == 200
    return served.ask(f"/api/journals?drop={drop}", "POST", X_Holdfast="1").until_whole()


def test_the_journals_of_two_nodes_become_one_story(served: Served, paths: list[Path]) -> None:
    told = send(served, "abcd", *(path.read_bytes() for path in paths))
    assert told.json() == {"story": "abcd"}
    page = served.ask("/api/stream?story=abcd")
    job = page.until_told("job")
    assert job["state"] == "failed"
    assert job["is_journal"]
    assert page.messages()["nodes"][-1]["count"] == len(paths)
    assert page.messages()["hello"][0]["opens"] == "journals"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "a b.jsonl is not a journal"),
        (b"hello\n", "a b.jsonl is not a journal"),
        (b"\xff\xfe\n", "a b.jsonl is not a journal"),
        (b"[" * 100_000, "a b.jsonl is not a journal"),
        (b'{"schema": 99}\n', "has schema 99"),
    ],
)
def test_what_is_no_journal_is_named_in_a_sentence(
    served: Served, data: bytes, complaint: str
) -> None:
    told = send(served, "abcd", data)
    assert told.status == 422
    assert complaint in told.body.decode()
    assert served.ask("/api/stream?story=abcd").until_whole().status == 404


def test_a_damaged_line_is_named(paths: list[Path]) -> None:
    lines = paths[0].read_bytes().split(b"\n")
    lines[4] = lines[4][:-9]
    with pytest.raises(UsageError, match="line 5 of x is damaged"):
        journals_of([UploadedFile("x", bytearray(b"\n".join(lines)))])


def test_parts_are_put_together_whatever_their_names_and_order(paths: list[Path]) -> None:
    first, *steps = paths[0].read_bytes().splitlines(keepends=True)
    parts = [b"".join([first, *steps[:9]]), b"".join([first, *steps[9:]])]
    files = [
        UploadedFile(str(k), bytearray(data)) for k, data in enumerate([*reversed(parts), *parts])
    ]
    (whole,) = journals_of(files)
    assert list(whole[1]) == read(paths[0])[1]


def test_journals_of_several_jobs_are_refused(paths: list[Path]) -> None:
    name = read(paths[0])[0].job.encode()
    other = paths[1].read_bytes().replace(b'"job":"' + name, b'"job":"other', 1)
    files = [
        UploadedFile("a", bytearray(paths[0].read_bytes())),
        UploadedFile("b", bytearray(other)),
    ]
    with pytest.raises(UsageError, match="journals of several jobs"):
        journals_of(files)


@pytest.mark.parametrize("target", ["?drop=A", "?drop=abcd&file=x", "", "?drop=../../x"])
def test_a_request_that_the_page_never_sends_is_refused(served: Served, target: str) -> None:
    asked = served.ask(f"/api/journals{target}", "POST", X_Holdfast="1")
    assert asked.until_whole().status == 400


def test_who_has_no_key_can_send_nothing(served: Served) -> None:
    target = "/api/journals?drop=abcd&file=0"
    assert served.ask(target, "POST", b"x", Authorization="").until_whole().status == 401
    assert served.ask(target, "POST", b"x").until_whole().status == 403


def test_only_the_last_stories_are_kept(served: Served, paths: list[Path]) -> None:
    data = paths[0].read_bytes()
    for number in range(STORIES_KEPT + 1):
        assert send(served, f"drop{number}", data).status == 200
    assert served.ask("/api/stream?story=drop0").until_whole().status == 404
    served.ask("/api/stream?story=drop1").until_told("job")


def test_a_live_job_takes_no_journals() -> None:
    live = Served(MadeUpJob())
    try:
        assert (
            live.ask("/api/journals?drop=abcd", "POST", X_Holdfast="1").until_whole().status == 404
        )
    finally:
        live.close()
