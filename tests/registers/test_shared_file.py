"""The register on a shared disk: sleepers, lost replies, old listings, and forgetting.

What a slow machine or an NFS client does at the wrong moment is done here by calling something
in the middle of a system call: the files are real, and so is the order of what happens to them.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.registers import shared_file
from holdfast.registers.opening import open_register
from holdfast.registers.register import (
    Register,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)
from holdfast.registers.shared_file import KEPT_VERSIONS, SharedFileRegister

Interrupt = Callable[[str, Callable[..., Any]], None]


def opened(folder: Path, run_id: str = "run", keep_s: float = 660.0) -> SharedFileRegister:
    return SharedFileRegister(RegisterSettings("file", str(folder), run_id, keep_s=keep_s))


def write(register: SharedFileRegister, times: int, what: str = "version") -> str:
    """So many versions; the token of the last."""
    found = register.get_state()
    token = None if found is None else found[1]
    for number in range(times):
        _, token, has_set = register.set_state(f"{what} {number}".encode(), token)
        assert has_set
    assert token is not None
    return token


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Put something in the place of the next call of a function of `os`, for that call only."""

    def interrupt(name: str, instead: Callable[..., Any]) -> None:
        real = getattr(os, name)

        def first(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(os, name, real)
            return instead(real, *arguments, **options)

        monkeypatch.setattr(os, name, first)

    return interrupt


def test_a_file_of_c10d_names_the_folder_that_it_would_be_in(tmp_path: Path) -> None:
    """Two files are two documents, also of jobs with the same name."""

    def opened_by(file: str) -> Register:
        settings = RegisterSettings("c10d", str(tmp_path / file), "run", {"store_type": "file"})
        return open_register(settings)

    first, same, other = opened_by("store"), opened_by("store"), opened_by("another")
    written = first.set_state(b"content")
    assert written is not None
    assert same.get_state() == written[:2]
    assert other.get_state() is None
    assert not (tmp_path / "store").exists()


# --- sleepers -----------------------------------------------------------------------------


def test_a_writer_that_slept_before_its_link_sets_nothing(tmp_path: Path, once: Interrupt) -> None:
    """Its version was made, and removed as old, while it slept: its link succeeds, and is void."""
    register, sleeper = opened(tmp_path), opened(tmp_path)
    stale = write(register, 1)

    def sleep(link: Any, source: str, target: str) -> None:
        write(register, KEPT_VERSIONS * 2)
        assert not os.path.exists(target)
        link(source, target)

    once("link", sleep)
    with pytest.raises(RegisterUnreachable, match="without this writer"):
        sleeper.set_state(b"of a sleeper", stale)
    found = register.get_state()
    assert found is not None
    assert found[0] == b"version %d" % (KEPT_VERSIONS * 2 - 1)
    assert sleeper.set_state(b"of a sleeper", stale) == (*found, False)
    assert sleeper.get_state() == found


def test_a_void_link_is_not_taken_for_ones_own_later(
    tmp_path: Path,
) -> None:
    """A sleeper that died before it could remove its void file is asked to write it again."""
    register, sleeper = opened(tmp_path), opened(tmp_path)
    stale = write(register, 1)
    write(register, KEPT_VERSIONS * 2)
    void = tmp_path / "run.run" / stale.replace("001", "002")
    void.write_bytes(b"of a sleeper")
    with pytest.raises(RegisterUnreachable):
        sleeper.set_state(b"of a sleeper", stale)
    assert not void.exists()
    assert sleeper.set_state(b"of a sleeper", stale) == (*(register.get_state() or ()), False)


def test_a_writer_that_slept_after_its_link_has_set_if_little_happened(
    tmp_path: Path, once: Interrupt
) -> None:
    register, sleeper = opened(tmp_path), opened(tmp_path)
    token = write(register, 1)

    def sleep(rename: Any, source: str, target: str) -> None:
        rename(source, target)
        write(register, KEPT_VERSIONS - 1)

    once("rename", sleep)
    assert sleeper.set_state(b"of a sleeper", token)[2]


def test_a_writer_that_slept_after_its_link_claims_nothing_if_much_happened(
    tmp_path: Path, once: Interrupt
) -> None:
    register, sleeper = opened(tmp_path), opened(tmp_path)
    token = write(register, 1)

    def sleep(rename: Any, source: str, target: str) -> None:
        rename(source, target)
        write(register, KEPT_VERSIONS)

    once("rename", sleep)
    with pytest.raises(RegisterUnreachable):
        sleeper.set_state(b"of a sleeper", token)


def test_a_writer_that_slept_over_the_end_of_the_document_sets_nothing(
    tmp_path: Path, once: Interrupt
) -> None:
    """The run id is in use again, and its versions have come as far as they were."""
    sleeper = opened(tmp_path)
    stale = write(sleeper, 3, "old")

    def sleep(link: Any, source: str, target: str) -> None:
        _forget(tmp_path)
        write(opened(tmp_path), 3, "new")
        os.makedirs(os.path.dirname(source), exist_ok=True)
        Path(source).write_bytes(b"of a sleeper")  # Had it been made a moment later.
        link(source, target)

    once("link", sleep)
    with pytest.raises(RegisterUnreachable):
        sleeper.set_state(b"of a sleeper", stale)
    found = opened(tmp_path).get_state()
    assert found is not None
    assert found[0] == b"new 2"
    assert sleeper.set_state(b"of a sleeper", stale) == (*found, False)


def _forget(folder: Path) -> None:
    for path in folder.rglob("*.0*"):
        age(path, 700)
    assert opened(folder).get_state() is None
    assert names(folder) == []


# --- lost replies and old listings --------------------------------------------------------


def test_a_link_whose_reply_was_lost_is_ones_own(tmp_path: Path, once: Interrupt) -> None:
    """The client asks again, and the server says that the name is taken: by that client."""
    register = opened(tmp_path)
    token = write(register, 1)

    def lose(link: Any, source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    once("link", lose)
    content, newer, has_set = register.set_state(b"content", token)
    assert (content, has_set) == (b"content", True)
    assert opened(tmp_path).get_state() == (b"content", newer)


def test_a_first_write_whose_reply_was_lost_is_ones_own(tmp_path: Path, once: Interrupt) -> None:
    register = opened(tmp_path)

    def lose(rename: Any, source: str, target: str) -> None:
        rename(source, target)
        rename(source, target)

    once("rename", lose)
    assert register.set_state(b"content")[2]
    assert names(tmp_path)[-1].startswith("run.")


def test_two_that_begin_at_once_do_not_both_begin(tmp_path: Path, once: Interrupt) -> None:
    first, second = opened(tmp_path), opened(tmp_path)

    def overtaken(rename: Any, source: str, target: str) -> None:
        assert second.set_state(b"of the second")[2]
        rename(source, target)

    once("rename", overtaken)
    found = first.set_state(b"of the first")
    assert found == (*(second.get_state() or ()), False)
    assert not [name for name in names(tmp_path) if name.startswith("new.")]


def test_a_set_is_not_judged_by_a_listing_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client that shows the folder as it was cannot make a sleeper believe in itself."""
    register, sleeper = opened(tmp_path), opened(tmp_path)
    stale = write(register, 1)
    before = os.listdir(tmp_path / "run.run")
    write(register, KEPT_VERSIONS * 2)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: before if "run.run" in path else real(path))
    real_open = open

    def open_cached(path: Any, *arguments: Any) -> Any:
        """The client has the old version in its cache as well."""
        if isinstance(path, str) and path.endswith(stale):
            path = tmp_path / "cached"
        return real_open(path, *arguments)

    (tmp_path / "cached").write_bytes(b"version 0")
    monkeypatch.setattr(shared_file, "open", open_cached, raising=False)
    assert sleeper.get_state() == (b"version 0", stale)
    with pytest.raises(RegisterUnreachable, match="listed as it was"):
        sleeper.set_state(b"of a sleeper", stale)
    monkeypatch.undo()
    found = register.get_state()
    assert found is not None
    assert found[0] == b"version %d" % (KEPT_VERSIONS * 2 - 1)


def test_an_old_listing_of_a_moment_does_not_matter(tmp_path: Path, once: Interrupt) -> None:
    register = opened(tmp_path)
    token = write(register, 1)

    def old_listing(rename: Any, source: str, target: str) -> None:
        rename(source, target)
        once("listdir", lambda real, path: [])

    once("rename", old_listing)
    assert register.set_state(b"content", token)[2]


def test_a_reader_that_is_outrun_reads_again(tmp_path: Path, once: Interrupt) -> None:
    register, reader = opened(tmp_path), opened(tmp_path)
    write(register, 1)
    reader.get_state()

    def outrun(listdir: Any, path: str) -> list[str]:
        listed: list[str] = listdir(path)
        write(register, KEPT_VERSIONS * 2)
        return listed

    once("listdir", outrun)
    assert reader.get_state() == register.get_state()


# --- what is left -------------------------------------------------------------------------


def test_old_versions_do_not_pile_up(tmp_path: Path) -> None:
    write(opened(tmp_path), KEPT_VERSIONS * 3)
    assert len(list((tmp_path / "run.run").iterdir())) <= KEPT_VERSIONS + 1


def test_what_dead_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    register = opened(tmp_path)
    write(register, 1)
    folder = tmp_path / "run.run"
    for name in ("new.dead", "linked.dead", "now.dead", "new.alive"):
        (folder / name).touch()
    for path in folder.glob("*.dead"):
        age(path, shared_file.LEFTOVER_AGE_S + 10)
    write(register, KEPT_VERSIONS)
    assert not list(folder.glob("*.dead"))
    assert (folder / "new.alive").exists()


def test_a_folder_prepared_by_a_dead_writer_is_swept_when_it_is_old(tmp_path: Path) -> None:
    for name in ("new.dead", "new.alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "life.x").touch()
    age(tmp_path / "new.dead", shared_file.LEFTOVER_AGE_S + 10)
    write(opened(tmp_path), 1)
    assert not (tmp_path / "new.dead").exists()
    assert (tmp_path / "new.alive").exists()


def test_a_writer_whose_file_was_swept_sets_nothing(tmp_path: Path, once: Interrupt) -> None:
    register = opened(tmp_path)
    token = write(register, 1)

    def swept(link: Any, source: str, target: str) -> None:
        os.unlink(source)
        link(source, target)

    once("link", swept)
    assert register.set_state(b"content", token) == (b"version 0", token, False)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    write(opened(tmp_path), 2)
    folder = tmp_path / "run.run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


# --- forgetting ---------------------------------------------------------------------------


def test_what_nobody_wrote_for_long_is_forgotten_with_all_that_was_there(tmp_path: Path) -> None:
    token = write(opened(tmp_path), 3)
    age(tmp_path / "run.run" / token, 650)
    assert opened(tmp_path).get_state() == (b"version 2", token)
    age(tmp_path / "run.run" / token, 670)
    assert opened(tmp_path).get_state() is None
    assert names(tmp_path) == []


def test_a_document_is_forgotten_so_long_after_it_was_said(tmp_path: Path) -> None:
    register = opened(tmp_path)
    token = write(register, 3)
    register.forget_after(300)
    (mark,) = (tmp_path / "run.run").glob("forget.*")
    age(mark, 290)
    assert opened(tmp_path).get_state() == (b"version 2", token)
    age(mark, 310)
    assert opened(tmp_path).get_state() is None
    assert names(tmp_path) == []


def test_to_forget_is_for_the_document_of_then(tmp_path: Path) -> None:
    register = opened(tmp_path)
    write(register, 1)
    register.forget_after(300)
    age(next((tmp_path / "run.run").glob("forget.*")), 310)
    _, token, _ = register.set_state(b"of another job", (register._read() or (b"", None))[1])
    assert opened(tmp_path).get_state() == (b"of another job", token)


def test_where_nothing_is_nothing_is_forgotten(tmp_path: Path) -> None:
    opened(tmp_path).forget_after(300)
    assert names(tmp_path) == []


def test_what_is_written_at_the_last_moment_is_not_forgotten(
    tmp_path: Path, once: Interrupt
) -> None:
    """Somebody writes between the judgement of who reads, and the end that follows from it."""
    register, reader = opened(tmp_path), opened(tmp_path)
    token = write(register, 1)
    age(tmp_path / "run.run" / token, 700)

    def rewritten(link: Any, source: str, target: str) -> None:
        assert register.set_state(b"alive", token)[2]
        link(source, target)

    once("link", rewritten)
    found = reader.get_state()
    assert found is not None
    assert found[0] == b"alive"
    assert register.get_state() == found


def test_the_token_of_a_forgotten_document_sets_nothing(tmp_path: Path) -> None:
    register = opened(tmp_path)
    token = write(register, 1)
    _forget(tmp_path)
    assert register.set_state(b"content", token) == (b"", None, False)
    newer = write(opened(tmp_path), 1, "new")
    assert newer != token
    assert register.set_state(b"content", token) == (b"new 0", newer, False)


class Died(BaseException):
    """The process ends here."""


def test_a_life_that_ended_halfway_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was ending it died in between, at any point of it."""
    real = os.unlink
    for removals in range(10):
        run_id, left = f"run {removals}", [removals]
        token = write(opened(tmp_path, run_id), 3)
        age(tmp_path / f"run.run%20{removals}" / token, 700)

        def unlink(path: str, left: list[int] = left) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            real(path)

        monkeypatch.setattr(os, "unlink", unlink)
        with suppress(Died):
            opened(tmp_path, run_id).get_state()
        monkeypatch.setattr(os, "unlink", real)
        assert opened(tmp_path, run_id).get_state() is None
        assert opened(tmp_path, run_id).set_state(b"of a new life")[2]
        found = opened(tmp_path, run_id).get_state()
        assert found is not None
        assert found[0] == b"of a new life"
    assert left[0], "the last one lived to the end"


def test_many_that_forget_and_begin_at_once_agree(tmp_path: Path) -> None:
    from threading import Barrier, Thread

    for turn in range(10):
        run_id = f"run {turn}"
        token = write(opened(tmp_path, run_id), 2)
        age(tmp_path / f"run.run%20{turn}" / token, 700)
        barrier, answers = Barrier(6), list[Any]()

        def begin(number: int, run_id: str = run_id) -> None:
            register = opened(tmp_path, run_id)
            barrier.wait()  # noqa: B023
            for _ in range(50):
                try:
                    answers.append(register.set_state(b"of %d" % number))  # noqa: B023
                    return
                except RegisterUnreachable:
                    continue

        threads = [Thread(target=begin, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer[2] for answer in answers].count(True) == 1
        assert {answer[:2] for answer in answers} == {opened(tmp_path, run_id).get_state()}


def test_its_age_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = opened(tmp_path), opened(tmp_path)
    token = write(writer, 1)
    reader.get_state()

    def complain(_: object) -> float:
        raise AssertionError("it asked")

    monkeypatch.setattr(SharedFileRegister, "_server_time", complain)
    for _ in range(5):
        token = writer.set_state(os.urandom(8), token)[1] or ""
        reader.get_state()
        reader.get_state()
    with pytest.raises(AssertionError, match="it asked"):
        opened(tmp_path).get_state()


# --- folders that will not do -------------------------------------------------------------


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    register = opened(tmp_path / "not mounted")
    with pytest.raises(RegisterRefused, match="not mounted cannot be used: No such file"):
        register.get_state()
    with pytest.raises(RegisterRefused):
        register.set_state(b"content")
    assert names(tmp_path) == []


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegisterRefused, match="Not a directory"):
        opened(tmp_path / "file").get_state()


@pytest.fixture
def not_root() -> Iterator[None]:
    is_root = os.getuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_refused_at_once(not_root: None) -> None:
    with pytest.raises(RegisterRefused, match="/usr cannot be used: Permission denied"):
        opened(Path("/usr")).get_state()


def test_a_disk_that_was_there_may_come_back(tmp_path: Path) -> None:
    """Unlike one that never was: it is being remounted, perhaps."""
    folder = tmp_path / "disk"
    folder.mkdir()
    register = opened(folder)
    token = write(register, 1)
    folder.rename(tmp_path / "away")
    with pytest.raises(RegisterUnreachable):
        register.get_state()
    with pytest.raises(RegisterUnreachable):
        register.set_state(b"content", token)
    (tmp_path / "away").rename(folder)
    assert register.set_state(b"content", token)[2]


def test_an_empty_document_is_not_accepted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        opened(tmp_path).set_state(b"")
