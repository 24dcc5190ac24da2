"""Files that are followed: every line, whole, as it is written, and nothing lost at the end."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic.multiprocessing import tail_log
from holdfast.elastic.multiprocessing.tail_log import TailLog

from ...waiting import DEADLINE_S, until

OFTEN_S = 0.001


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def api(request: pytest.FixtureRequest) -> Any:
    return import_module(f"{request.param}.multiprocessing.tail_log")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def write(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


# --- as PyTorch's -------------------------------------------------------------------------


def test_all_lines_of_all_files_are_shown(api: Any, tmp_path: Path) -> None:
    files = {rank: str(tmp_path / f"{rank}.log") for rank in range(16)}
    dst = io.StringIO()
    tail = api.TailLog("writer", files, dst, interval_sec=0.001).start()

    def writer(rank: int) -> None:
        with open(files[rank], "w", encoding="utf-8") as file:
            for number in range(500):
                print(number, file=file, flush=number % 7 == 0)

    with ThreadPoolExecutor() as pool:
        list(pool.map(writer, files))
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    expected = [f"[writer{rank}]:{number}" for rank in files for number in range(500)]
    assert sorted(dst.getvalue().splitlines()) == sorted(expected)


def test_prefixes_and_a_filter_are_heeded(api: Any, tmp_path: Path) -> None:
    files = {rank: str(tmp_path / f"{rank}.log") for rank in range(3)}
    dst = io.StringIO()
    tail = api.TailLog(
        "writer",
        files,
        dst,
        log_line_prefixes={0: "<zero> ", 2: ""},
        interval_sec=0.001,
        log_line_filter=lambda line: "no" not in line,
    ).start()
    for path in files.values():
        write(path, "yes\nno\nlast")
    until = time.monotonic() + 30
    while dst.getvalue().count("yes") < 3 and time.monotonic() < until:
        time.sleep(0.001)  # PyTorch's shows nothing of a file that it has not opened before the end
    tail.stop()
    shown = ["<zero> yes", "[writer1]:yes", "yes", "<zero> last", "[writer1]:last", "last"]
    assert sorted(dst.getvalue().replace("last", "last\n").splitlines()) == sorted(shown)


def test_nothing_to_show_is_no_error(api: Any, tmp_path: Path) -> None:
    for files, dst in (({}, io.StringIO()), ({0: str(tmp_path / "x")}, None)):
        tail = api.TailLog("writer", files, dst).start()
        assert not tail.stopped()
        tail.stop()
        assert tail.stopped()


def test_a_file_that_never_comes_keeps_nobody(api: Any, tmp_path: Path) -> None:
    dst = io.StringIO()
    files = {0: str(tmp_path / "never"), 1: str(tmp_path / "no" / "such" / "folder")}
    tail = api.TailLog("writer", files, dst).start()
    tail.stop()
    assert tail.stopped()
    assert dst.getvalue() == ""


def test_a_file_that_cannot_be_followed_is_told_of_at_the_end(
    api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dst = io.StringIO()
    good = tmp_path / "good"
    good.write_text("line\n")
    logger = logging.getLogger(api.__name__)
    logger.addHandler(caplog.handler)
    try:
        tail = api.TailLog("writer", {0: str(tmp_path), 1: str(good)}, dst).start()
        until(lambda: "line" in dst.getvalue())
        tail.stop()
    finally:
        logger.removeHandler(caplog.handler)
    (told,) = {record.getMessage() for record in caplog.records if record.name == api.__name__}
    assert "writer0" in told
    assert dst.getvalue() == "[writer1]:line\n"


def test_a_function_follows_one_file(api: Any, tmp_path: Path) -> None:
    path, dst, finished = str(tmp_path / "log"), io.StringIO(), threading.Event()
    with ThreadPoolExecutor() as pool:
        following = pool.submit(
            api.tail_logfile, "> ", path, dst, finished, 0.001, lambda line: line != "b\n"
        )
        write(path, "a\nb\n")
        until(lambda: dst.getvalue() == "> a\n")
        write(path, "c\n")
        finished.set()
        following.result(DEADLINE_S)
    assert dst.getvalue() == "> a\n> c\n"


# --- ours ---------------------------------------------------------------------------------


def test_what_is_written_is_shown_while_it_is_written(tmp_path: Path) -> None:
    path, dst = str(tmp_path / "log"), io.StringIO()
    tail = TailLog("", {0: path}, dst, {0: ""}, interval_sec=OFTEN_S).start()
    for number in range(1, 50):
        write(path, "line\n")
        until(partial(lambda shown: dst.getvalue().count("line\n") == shown, number))
    tail.stop()


def test_folders_and_files_that_come_later_are_found(tmp_path: Path) -> None:
    folder, dst = tmp_path / "a" / "b" / "c", io.StringIO()
    files = {0: str(folder / "log"), 1: str(tmp_path / "moved")}
    tail = TailLog("", files, dst, {0: "", 1: ""}, interval_sec=OFTEN_S).start()
    for step in (tmp_path / "a", tmp_path / "a" / "b", folder):
        step.mkdir()
    write(files[0], "one\n")
    until(lambda: dst.getvalue() == "one\n")
    write(str(tmp_path / "elsewhere"), "two\n")
    os.rename(tmp_path / "elsewhere", files[1])
    until(lambda: dst.getvalue() == "one\ntwo\n")
    write(files[1], "three\n")
    until(lambda: dst.getvalue() == "one\ntwo\nthree\n")
    tail.stop()


def test_lines_are_whole_whatever_the_pieces_in_which_they_come(tmp_path: Path) -> None:
    path, dst = str(tmp_path / "log"), io.StringIO()
    tail = TailLog("w", {0: path}, dst, interval_sec=OFTEN_S).start()
    for piece in ("be", "gun and ", "end", "ed\nlas"):
        write(path, piece)
    until(dst.getvalue)
    assert dst.getvalue() == "[w0]:begun and ended\n"
    tail.stop()
    assert dst.getvalue() == "[w0]:begun and ended\n[w0]:las"


def test_characters_and_ends_of_lines_may_be_anything(tmp_path: Path) -> None:
    path, dst = tmp_path / "log", io.StringIO()
    tail = TailLog("w", {0: str(path)}, dst, {0: "> "}, interval_sec=OFTEN_S).start()
    with path.open("ab", buffering=0) as file:
        for block in (b"1\r", b"\n2\r3", b"\xe2\x82", b"\xac\n\xff\xfe\n"):
            file.write(block)
    tail.stop()
    assert dst.getvalue() == "> 1\n> 2\n> 3€\n> ��\n"


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path) -> None:
    path, dst = tmp_path / "log", io.StringIO()
    path.write_text("x" * (3 * tail_log.LONGEST_LINE))
    tail = TailLog("w", {0: str(path)}, dst, {0: ""}, interval_sec=OFTEN_S).start()
    until(lambda: len(dst.getvalue()) == 3 * tail_log.LONGEST_LINE)
    tail.stop()


def test_a_file_that_grows_whenever_it_is_read_keeps_nobody(tmp_path: Path) -> None:
    path, is_read = str(tmp_path / "log"), threading.Event()

    def answer(line: str) -> bool:
        is_read.set()
        write(path, "another\n")
        return True

    write(path, "first\n")
    tail = TailLog("w", {0: path}, io.StringIO(), interval_sec=OFTEN_S, log_line_filter=answer)
    tail.start()
    assert is_read.wait(DEADLINE_S)
    tail.stop()


def test_a_destination_or_a_filter_that_raises_ends_only_its_own_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def choose(line: str) -> bool:
        if "bad" in line:
            raise ValueError(line)
        return True

    dst = io.StringIO()
    files = {0: str(tmp_path / "0"), 1: str(tmp_path / "1")}
    tail = TailLog("w", files, dst, interval_sec=OFTEN_S, log_line_filter=choose).start()
    write(files[0], "bad\n")
    write(files[1], "good\n")
    until(dst.getvalue)
    tail.stop()
    assert dst.getvalue() == "[w1]:good\n"
    assert "w0" in caplog.text
    assert "ValueError: bad" in caplog.text


NEVER_STOPPED = """
import os, sys
from holdfast.elastic.multiprocessing.tail_log import TailLog
tail = TailLog("w", {0: sys.argv[1]}, sys.stdout, interval_sec=3600).start()
if os.fork() == 0:
    sys.exit()
os.wait()
with open(sys.argv[1], "a") as file:
    file.write("last words\\n")
"""


def test_a_tail_that_nobody_stops_ends_with_its_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NEVER_STOPPED, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert ended.stdout == "[w0]:last words\n"


def test_a_tail_can_be_stopped_twice_and_is_not_started_again(tmp_path: Path) -> None:
    tail = TailLog("w", {0: str(tmp_path / "log")}, io.StringIO())
    tail.start().start()
    tail.stop()
    tail.stop()
    with pytest.raises(RuntimeError):
        tail.start()
