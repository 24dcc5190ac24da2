"""What has no newline yet, and what nobody reads: progress bars, half lines, Ctrl-S.

Real processes write into real pipes and terminals; bars are drawn as `tqdm` draws them.
"""

from __future__ import annotations

import os
import re
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core.policy.config import Output
from holdfast.processes.output import console as console_module
from holdfast.processes.output.console import CONGESTED_BYTES

from .output_stage import PLAIN, TEE, Reader, Stage, stage, terminal

pytestmark = pytest.mark.timeout(300)

OUTPUTS = pytest.mark.parametrize(
    ("output", "first", "second"),
    [(PLAIN, b"", b""), (TEE, b"[default0]:", b"[default1]:")],
    ids=["plain", "tee"],
)


@contextmanager
def pipe_stage(tmp_path: Path, slots: int = 2) -> Iterator[tuple[Stage, int]]:
    """A console on a pipe, and the pipe's other end."""
    reading, writing = os.pipe()
    try:
        with stage(tmp_path, (writing, writing), slots=slots) as scene:
            yield scene, reading
    finally:
        os.close(reading)
        os.close(writing)


# --- what has not ended ---------------------------------------------------------------------


@OUTPUTS
def test_in_a_pipe_a_bar_is_shown_while_it_is_drawn_and_others_begin_a_new_line(
    tmp_path: Path, output: Output, first: bytes, second: bytes
) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        reader = Reader(scene.loop, reading)
        one, two = scene.open(output, 0), scene.open(output, 1)
        os.write(one.child_stderr, b"\r10%")
        scene.until(lambda: reader.text.endswith(b"10%"))
        os.write(one.child_stderr, b"\r20%")
        scene.until(lambda: reader.text.endswith(b"20%"))
        scene.console.write(2, b"holdfast: an event\n")
        os.write(two.child_stdout, b"hello\nwor")
        scene.until(lambda: reader.text.endswith(b"wor"))
        os.write(one.child_stderr, b"\r30%\n")
        scene.until(lambda: reader.text.endswith(b"30%\n"))
        os.write(two.child_stdout, b"ld\n")
        scene.until(lambda: reader.text.endswith(b"ld\n"))
        one.close()
        two.close()
    assert bytes(reader.text) == (
        first + b"10%\r" + first + b"20%\nholdfast: an event\n"
        + second + b"hello\n" + second + b"wor\n"
        + first + b"30%\n"
        + second + b"ld\n"
    )  # fmt: skip


def test_in_a_file_too_the_start_of_a_line_is_shown(tmp_path: Path) -> None:
    program = "import time; print('loading ... ', end='', flush=True); time.sleep(1000)"

    with stage(tmp_path, slots=2) as scene:
        scene.start(PLAIN, program)
        scene.until(lambda: (tmp_path / "out").read_bytes() == b"loading ... ")


NEVER_ENDING = """
import os, time
number = 0
while True:
    os.write(1, b"%d," % number)
    number += 1
    time.sleep(0.01)
"""


@OUTPUTS
def test_a_writer_that_never_pauses_is_shown_all_the_same(
    tmp_path: Path, output: Output, first: bytes, second: bytes
) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        reader = Reader(scene.loop, reading)
        worker = scene.start(output, NEVER_ENDING)
        scene.until(lambda: b",150," in reader.text)
        assert not worker.has_exited()
    shown = first + b"".join(b"%d," % number for number in range(150))
    assert reader.text.startswith(shown)


DRAWING = """
import os, sys, time
for step in range(300):
    os.write(2, b"\\r<bar %d: %3d of 300>" % (int(sys.argv[1]), step))
    time.sleep(0.003)
os.write(2, b"\\n")
"""


@OUTPUTS
def test_bars_of_several_workers_are_whole_named_and_complete(
    tmp_path: Path, output: Output, first: bytes, second: bytes
) -> None:
    with stage(tmp_path, slots=3) as scene:
        for rank in range(3):
            scene.start(output, DRAWING.replace("sys.argv[1]", str(rank)), rank)
        scene.until(lambda: b"bar 2" in (tmp_path / "err").read_bytes())
        assert not any(worker.has_exited() for worker in scene.workers)
        scene.finish(*scene.workers)
    seen = dict.fromkeys(range(3), 0)
    for line in (tmp_path / "err").read_bytes().rstrip(b"\n").split(b"\n"):
        assert not line.startswith(b"\r")
        assert len(set(re.findall(rb"bar (\d)", line))) == 1, "one line, one worker"
        for redraw in line.split(b"\r"):
            found = re.fullmatch(rb"(.*)<bar (\d): +(\d+) of 300>", redraw)
            assert found is not None, redraw
            rank = int(found[2])
            assert found[1] == (b"[default%d]:" % rank if first else b"")
            assert int(found[3]) == seen[rank]
            seen[rank] += 1
    assert set(seen.values()) == {300}


@OUTPUTS
def test_a_bar_that_returns_after_each_redraw_and_windows_lines_look_as_they_should(
    tmp_path: Path, output: Output, first: bytes, second: bytes
) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        reader = Reader(scene.loop, reading)
        one = scene.open(output, 0)
        os.write(one.child_stdout, b"10%\r")
        scene.until(lambda: reader.text.endswith(b"10%"))
        os.write(one.child_stdout, b"20%\r")
        scene.until(lambda: reader.text.endswith(b"20%"))
        os.write(one.child_stdout, b"\nnext\r\n\r\nlast\r")
        scene.until(lambda: reader.text.endswith(b"last"))
        one.close()
        scene.until(lambda: reader.text.endswith(b"last\r"))
    lines = (b"10%\r" + first + b"20%\r\n", b"next\r\n", b"\r\n", b"last\r")
    assert bytes(reader.text) == b"".join(first + line for line in lines)


@OUTPUTS
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_end_of_a_line_that_another_has_ended_makes_no_empty_one(
    tmp_path: Path, output: Output, first: bytes, second: bytes, end: bytes
) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        reader = Reader(scene.loop, reading)
        one, two = scene.open(output, 0), scene.open(output, 1)
        os.write(one.child_stdout, b"begun")
        scene.until(lambda: reader.text.endswith(b"begun"))
        os.write(two.child_stdout, b"between\n")
        scene.until(lambda: reader.text.endswith(b"between\n"))
        os.write(one.child_stdout, end + b"next\n")
        scene.until(lambda: reader.text.endswith(b"next\n"))
        one.close()
        two.close()
    expected = (first + b"begun", second + b"between", first + b"next", b"")
    assert bytes(reader.text) == b"\n".join(expected)


# --- what nobody reads ----------------------------------------------------------------------

FLOOD = """
import os
for start in range(0, 300_000, 1000):
    os.write(1, b''.join(b'%099d\\n' % n for n in range(start, start + 1000)))
"""
FLOODED = b"".join(b"%099d\n" % number for number in range(300_000))


def read_until(scene: Stage, reading: int, end: bytes) -> bytes:
    reader = Reader(scene.loop, reading)
    scene.until(lambda: reader.text.endswith(end))
    scene.loop.remove_reader(reading)
    return bytes(reader.text)


def expect_notice_and_the_rest(shown: bytes, tmp_path: Path) -> None:
    """Whole lines from the beginning, then what was left out, then what came after."""
    before, found, after = shown.partition(b"holdfast: the console was not read for ")
    words = re.match(rb"\d+ s: ([\d.]+) MB left out here; everything is in (.+)\n", after)
    assert found, shown[-1000:]
    assert words is not None, after
    lines = before.replace(b"[default0]:", b"")
    assert FLOODED.startswith(lines)
    assert lines.endswith(b"\n")
    assert float(words[1]) == pytest.approx((len(FLOODED) - len(lines)) / 1e6, abs=0.06)
    assert os.fsdecode(words[2]) == str(tmp_path / "logs/0/stdout.log")
    assert after[words.end() :] == b"[default1]:after\n"


def test_a_worker_with_a_file_goes_on_when_nobody_reads_the_console(tmp_path: Path) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        worker = scene.start(TEE, FLOOD)
        scene.finish(worker)
        assert worker.process.returncode == 0
        assert (tmp_path / "logs/0/stdout.log").read_bytes() == FLOODED
        assert scene.console.outlet(1).is_unread
        shown = read_until(scene, reading, b"stdout.log\n")
        assert len(shown) < 2 * CONGESTED_BYTES
        scene.run(TEE, "print('after')", local_rank=1)
        shown += read_until(scene, reading, b"after\n")
    expect_notice_and_the_rest(shown, tmp_path)


def test_a_worker_with_a_file_goes_on_after_a_ctrl_s(tmp_path: Path) -> None:
    with terminal() as (master, slave), stage(tmp_path, (slave, slave), slots=2) as scene:
        termios.tcflow(slave, termios.TCOOFF)
        scene.finish(scene.start(TEE, FLOOD))
        assert (tmp_path / "logs/0/stdout.log").read_bytes() == FLOODED
        termios.tcflow(slave, termios.TCOON)
        shown = read_until(scene, master, b"stdout.log\n")
        scene.run(TEE, "print('after')", local_rank=1)
        shown += read_until(scene, master, b"after\n")
    expect_notice_and_the_rest(shown, tmp_path)


def test_without_a_file_a_worker_waits_for_a_console_that_nobody_reads(tmp_path: Path) -> None:
    with pipe_stage(tmp_path) as (scene, reading):
        worker = scene.start(PLAIN, FLOOD)
        scene.until(lambda: scene.console.outlet(1).is_unread)
        scene.turn(100)
        assert not worker.has_exited()
        reader = Reader(scene.loop, reading)
        scene.finish(worker)
        scene.until(lambda: len(reader.text) >= len(FLOODED))
    assert reader.text == FLOODED


def test_a_console_that_is_only_slow_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_module, "UNREAD_S", 0.25)
    with pipe_stage(tmp_path) as (scene, reading):
        shown = bytearray()

        def read_slowly() -> None:
            while block := os.read(reading, 60_000):
                shown.extend(block)
                if pause.wait(0.01):
                    return

        pause = threading.Event()
        slow = threading.Thread(target=read_slowly)
        slow.start()
        try:
            scene.finish(scene.start(TEE, FLOOD))
            scene.until(lambda: not scene.console.pending())
            scene.console.write(1, b"the end\n")
            scene.until(lambda: shown.endswith(b"the end\n"))
        finally:
            pause.set()
            scene.console.write(1, b"wake up\n")
            slow.join()
    assert shown.replace(b"[default0]:", b"").startswith(FLOODED + b"the end\n")
