"""What a register answers when nothing goes wrong (rules 1 and 2 of `register.py`)."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from holdfast.registers.register import RegisterUnreachable, Token

from ..waiting import DEADLINE_S, begin
from .stages import Stage

ETCD = pytest.mark.parametrize("stage", ["etcd", "etcd-v2"], indirect=True)
"""Both APIs of etcd, whose servers tell of changes and count them."""


def test_where_nothing_was_written_nothing_is(stage: Stage, run_id: str) -> None:
    assert stage.open(run_id).get_state() is None


def test_what_was_set_is_there_for_everybody(stage: Stage, run_id: str) -> None:
    writer, reader = stage.open(run_id), stage.open(run_id)
    content, token, has_set = writer.set_state(b"first")
    assert (content, has_set) == (b"first", True)
    assert writer.get_state() == reader.get_state() == (b"first", token)


def test_a_token_of_another_object_is_as_good(stage: Stage, run_id: str) -> None:
    first, second = stage.open(run_id), stage.open(run_id)
    _, token, _ = first.set_state(b"first")
    content, newer, has_set = second.set_state(b"second", token)
    assert (content, has_set) == (b"second", True)
    assert newer != token
    assert first.get_state() == (b"second", newer)


def test_a_stale_token_changes_nothing_and_shows_what_is_there(stage: Stage, run_id: str) -> None:
    first, second = stage.open(run_id), stage.open(run_id)
    _, stale, _ = first.set_state(b"first")
    _, token, _ = second.set_state(b"second", stale)
    assert first.set_state(b"third", stale) == (b"second", token, False)
    assert first.get_state() == second.get_state() == (b"second", token)


def test_without_a_token_it_is_set_only_where_nothing_is(stage: Stage, run_id: str) -> None:
    first, second = stage.open(run_id), stage.open(run_id)
    _, token, _ = first.set_state(b"first")
    assert second.set_state(b"second") == (b"first", token, False)
    assert first.set_state(b"third") == (b"first", token, False)
    assert second.get_state() == (b"first", token)


def test_a_token_where_nothing_is_sets_nothing(stage: Stage, run_id: str) -> None:
    _, token, _ = stage.open(run_id).set_state(b"first")
    elsewhere = stage.open(f"{run_id}, another")
    assert elsewhere.set_state(b"second", token) == (b"", None, False)
    assert elsewhere.get_state() is None


@ETCD
@pytest.mark.parametrize("token", [0, -1, "1", b"x", 2.0])
def test_what_is_no_token_matches_nothing(stage: Stage, run_id: str, token: object) -> None:
    register = stage.open(run_id)
    assert register.set_state(b"new", token) == (b"", None, False)
    assert register.set_state(b"old")[2]
    assert register.set_state(b"new", token)[::2] == (b"old", False)


def test_a_token_stays_stale_however_long_ago_it_was(stage: Stage, run_id: str) -> None:
    register, sleeper = stage.open(run_id), stage.open(run_id)
    _, stale, _ = register.set_state(b"first")
    token = stale
    for number in range(200):
        _, token, has_set = register.set_state(b"version %d" % number, token)
        assert has_set
    assert not sleeper.set_state(b"of a sleeper", stale)[2]
    assert sleeper.get_state() == register.get_state() == (b"version 199", token)


def test_runs_do_not_see_each_other_whatever_they_are_called(stage: Stage, run_id: str) -> None:
    paths = [run_id, f"{run_id}/", f"{run_id}/document", f"{run_id}%2Fdocument", f"../{run_id}"]
    names = [*paths, f"{run_id} ü\n?&+", run_id * 30, ".", "..", "%2E", "_hidden"]
    for name in names:
        register = stage.open(name)
        assert register.get_state() is None, name
        register.set_state(name.encode())
    for name in names:
        found = stage.open(name).get_state()
        assert found is not None
        assert found[0] == name.encode()


def test_a_document_of_4_kb_of_any_bytes_is_kept_as_it_is(stage: Stage, run_id: str) -> None:
    content = bytes(range(256)) * 16
    writer, reader = stage.open(run_id), stage.open(run_id)
    token = writer.set_state(content)[1]
    assert reader.get_state() == (content, token)
    assert reader.set_state(content[::-1], token)[2]


def test_of_many_that_write_first_one_wins_and_all_learn_which(stage: Stage, run_id: str) -> None:
    answers: list[tuple[bytes, Token, bool]] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        register = stage.open(run_id)
        barrier.wait()
        answers.append(register.set_state(b"of %d" % number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert [has_set for _, _, has_set in answers].count(True) == 1
    assert len({(content, token) for content, token, _ in answers}) == 1
    assert stage.open(run_id).get_state() == answers[0][:2]


@ETCD
def test_a_change_is_pushed_to_who_waits(stage: Stage, run_id: str) -> None:
    writer, waiting = stage.open(run_id), stage.open(run_id)
    token = None
    for number in range(20):
        content = b"%d" % number
        news = begin(partial(waiting.wait_for_change, token, DEADLINE_S))
        _, newer, has_set = writer.set_state(content, token)
        assert has_set
        assert news.result(DEADLINE_S) == (content, newer)
        token = newer


@ETCD
def test_changes_between_two_waits_are_not_missed(stage: Stage, run_id: str) -> None:
    writer, waiting = stage.open(run_id), stage.open(run_id)
    _, token, _ = writer.set_state(b"0")
    assert waiting.wait_for_change(token, 0.01) is None
    _, first, _ = writer.set_state(b"1", token)
    assert waiting.wait_for_change(token, DEADLINE_S) == (b"1", first)
    _, second, _ = writer.set_state(b"2", first)
    assert waiting.wait_for_change(first, DEADLINE_S) == (b"2", second)


@ETCD
def test_close_wakes_who_waits(stage: Stage, run_id: str) -> None:
    register = stage.open(run_id)
    _, token, _ = register.set_state(b"here")
    assert register.wait_for_change(token, 0.01) is None
    waiting = begin(lambda: register.wait_for_change(token, 600))
    register.close()
    with pytest.raises(RegisterUnreachable):
        waiting.result(DEADLINE_S)
    with pytest.raises(RegisterUnreachable):
        register.get_state()
