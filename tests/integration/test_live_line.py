"""The live line of real jobs on a real pseudo-terminal, as a terminal shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ..free_ports import free_port
from ..waiting import until

pyte = pytest.importorskip("pyte", reason="a terminal to look at")

ROWS, COLUMNS = 30, 100
SIGN = "holdfast | "

STEPS_UNTIL_TOLD = """
import os, time, holdfast
step = 0
while not os.path.exists("enough"):
    time.sleep(0.02)
    step += 1
    holdfast.progress(step)
    {more}
print("the last line", flush=True)
"""
BAR = r'print(f"\r bar {step:06d}", end="", flush=True)'
BARS_BELOW = r'print(f"\r outer {step:06d}\n\r inner {step:06d}\x1b[A", end="", flush=True)'


class OnTerminal:
    """A job whose terminal is this one."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.folder = folder
        self.seen = b""
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.resize(ROWS, COLUMNS)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def has_ended(self) -> bool:
        self.read()
        return self.process.poll() is not None

    def read(self) -> bytes:
        """Take what is there now; all that has come so far."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # The last one has closed it.
                break
            self.seen += data
            self._stream.feed(data)
        return self.seen

    @property
    def lines(self) -> list[str]:
        self.read()
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def await_line(self, *words: str) -> None:
        def is_there() -> bool:
            lines = self.lines
            return bool(lines) and SIGN in lines[-1] and all(word in lines[-1] for word in words)

        until(is_there, lambda: "\n".join(self.lines), lambda: self.process.poll() is not None)

    def finish(self) -> int:
        (self.folder / "enough").touch()
        until(self.has_ended, lambda: str(self.lines))
        self.read()
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)


Start = Callable[..., OnTerminal]


@pytest.fixture
def start(tmp_path: Path, holdfast: Path) -> Iterator[Start]:
    jobs: list[OnTerminal] = []

    def begin(*options: str, more: str = "pass", env: dict[str, str] | None = None) -> OnTerminal:
        (tmp_path / "train.py").write_text(STEPS_UNTIL_TOLD.format(more=more))
        common = ["--no-warm", "--log-dir", str(tmp_path / "logs")]
        command = [str(holdfast), "run", *common, *options, "train.py"]
        jobs.append(OnTerminal(command, tmp_path, env or {}))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def test_it_says_what_the_job_is_doing_and_is_gone_at_the_end(start: Start) -> None:
    job = start()
    job.await_line("round 1", "1 rank", "step ", "/s")
    assert job.finish() == 0
    assert "the last line" in job.lines
    assert not any(SIGN in line for line in job.lines)
    assert job.screen.cursor.x == 0


def has_moved(job: OnTerminal, bar: str) -> bool:
    return job.lines[-2] != bar


def has_changed(job: OnTerminal, lines: list[str]) -> bool:
    return job.lines != lines


def test_a_worker_s_bar_moves_above_it_and_is_never_broken(start: Start) -> None:
    job = start(more=BAR)
    job.await_line("step ")
    for _ in range(3):
        before = job.lines[-2]
        until(partial(has_moved, job, before), lambda: str(job.lines))
        bars = [line for line in job.lines if "bar" in line]
        assert len(bars) == 1
        assert bars[0].startswith(" bar "), bars
    assert job.finish() == 0
    assert not any(SIGN in line for line in job.lines)


def test_bars_below_each_other_have_the_rows_to_themselves(start: Start) -> None:
    job = start(more=BARS_BELOW)
    until(lambda: any("outer" in line for line in job.lines), lambda: str(job.lines))
    for _ in range(3):
        before = job.lines
        until(partial(has_changed, job, before), lambda: str(job.lines))
    shown = [line.split()[0] for line in job.lines if "outer" in line or "inner" in line]
    assert shown == ["outer", "inner"]
    assert job.finish() == 0


def test_it_fits_a_terminal_that_was_made_narrower(start: Start) -> None:
    job = start()
    job.await_line("step ")
    job.resize(ROWS, 40)
    until(lambda: job.lines[-1].endswith("..."), lambda: str(job.lines))
    assert len(job.lines[-1]) < 40
    job.resize(ROWS, COLUMNS)
    job.await_line("step ", "/s")
    assert job.finish() == 0
    assert not any(SIGN in line for line in job.lines)


def test_an_interrupt_takes_it_away(start: Start) -> None:
    job = start()
    job.await_line("step ")
    job.process.send_signal(signal.SIGINT)
    until(job.has_ended, lambda: str(job.lines))
    assert job.process.returncode == 128 + signal.SIGINT
    assert not any(SIGN in line for line in job.lines)
    assert any("the job was interrupted" in line for line in job.lines)


def test_what_is_waited_for_has_a_bar(start: Start) -> None:
    job = start("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--join-timeout=90")
    job.await_line("waiting for 1 more", "[", "of 1:30")
    job.process.send_signal(signal.SIGINT)
    until(job.has_ended, lambda: str(job.lines))


@pytest.mark.parametrize(
    ("options", "env"),
    [((), {"TERM": "dumb"}), (("--quiet",), {}), (("--json",), {})],
    ids=["dumb", "quiet", "json"],
)
def test_there_is_none_where_nobody_wants_it(
    start: Start, options: tuple[str, ...], env: dict[str, str]
) -> None:
    job = start(*options, more=BAR, env=env)
    until(lambda: b"bar 000150" in job.read(), lambda: str(job.lines))
    assert job.finish() == 0
    assert SIGN.encode() not in job.seen


def test_there_is_none_where_another_program_writes_to_the_terminal(
    tmp_path: Path, holdfast: Path, start: Start
) -> None:
    """As with `holdfast run … | tee log`: it would run into the line."""
    job = start()
    job.finish()
    (tmp_path / "enough").unlink()
    (tmp_path / "train.py").write_text(STEPS_UNTIL_TOLD.format(more=BAR))
    piped = f"{holdfast} run --no-warm --log-dir logs train.py | cat"
    beside = OnTerminal(["/bin/sh", "-c", piped], tmp_path, {})
    try:
        until(lambda: b"bar 000150" in beside.read(), lambda: str(beside.lines))
        assert beside.finish() == 0
        assert SIGN.encode() not in beside.seen
    finally:
        beside.close()
