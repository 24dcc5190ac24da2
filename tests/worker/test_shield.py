"""Signals that ask a node to leave, and come to a worker too: real processes that get them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.processes.monitoring.pages import RoundPages
from holdfast.worker import page
from holdfast.worker.channel import VARIABLE
from holdfast.worker.draining import KEY

from ..waiting import until
from .drain_agent import DEADLINE_S, Agent

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
TERM, USR1, USR2, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT
Start = Callable[..., subprocess.Popen[str]]

ASKS = """
import holdfast, time
from pathlib import Path
step = 0
while True:
    step += 1
    if drain := holdfast.draining(step):
        break
    Path("asks").touch()
    time.sleep(0.01)
Path("saved").write_text(str(step))
drain.saved()
"""


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent(SIGNALS)
    yield agent
    agent.close()


@pytest.fixture
def pages() -> Iterator[RoundPages]:
    pages = RoundPages(1)
    yield pages
    pages.close()


@pytest.fixture
def start(agent: Agent, pages: RoundPages, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str) -> subprocess.Popen[str]:
        known = {VARIABLE: agent.server.name, page.VARIABLE: pages.variable(0)}
        worker = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **known, "LOCAL_RANK": "0"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.kill()
        worker.communicate()


def mask(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


def asking(start: Start, folder: Path, program: str = ASKS) -> subprocess.Popen[str]:
    worker = start(program)
    until((folder / "asks").exists)
    return worker


@pytest.mark.parametrize("number", [TERM, USR1, USR2])
def test_a_worker_that_asks_saves_though_its_node_was_signalled_with_all_its_processes(
    agent: Agent, start: Start, tmp_path: Path, number: int
) -> None:
    worker = asking(start, tmp_path)
    worker.send_signal(number)
    worker.send_signal(number)
    agent.until_heard("listens")
    agent.show()
    until(lambda: "waits" in agent.answers())
    worker.send_signal(number)
    at = next(one["step"] for one in agent.heard if one[KEY] == "waits")
    agent.show(step=at)
    assert worker.wait(DEADLINE_S) == 0
    assert (tmp_path / "saved").read_text() == str(at)
    agent.until_heard("listens", "waits", "told", "saved")


def test_the_agent_knows_what_does_not_end_a_worker(
    pages: RoundPages, start: Start, tmp_path: Path
) -> None:
    worker = asking(start, tmp_path)
    assert pages.shielded(0, worker.pid) == mask(TERM, USR1, USR2)
    assert pages.shielded(0, worker.pid + 1) == 0


def test_ctrl_c_is_as_ever(start: Start, tmp_path: Path) -> None:
    worker = asking(start, tmp_path)
    worker.send_signal(INT)
    assert "KeyboardInterrupt" in worker.communicate(timeout=DEADLINE_S)[1]


def test_a_signal_to_a_worker_alone_ends_it_when_that_has_become_clear(
    start: Start, tmp_path: Path
) -> None:
    worker = asking(start, tmp_path, f"import holdfast.worker.shield as s; s.ALONE_S = 0.2\n{ASKS}")
    worker.send_signal(TERM)
    assert worker.wait(DEADLINE_S) == -TERM


OWN_BEFORE = f"""
import signal
def heard(*_):
    raise SystemExit(7)
signal.signal(signal.SIGTERM, heard)
{ASKS}
"""
OWN_LATER = ASKS.replace(
    '    Path("asks").touch()',
    """    if step == 5:
        import signal
        signal.signal(signal.SIGTERM, lambda *_: exit(7))
    if step == 300:
        Path("asks").touch()""",
)
FAULTHANDLER = f"""
import faulthandler, signal, sys
faulthandler.register(signal.SIGUSR1, chain=True)
{ASKS}
"""
IN_A_THREAD = f"""
import threading
thread = threading.Thread(target=exec, args=({ASKS!r}, {{}}))
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("program", "still"), [(OWN_BEFORE, (USR1, USR2)), (OWN_LATER, (USR1, USR2))]
)
def test_a_handler_of_the_program_is_left_in_place(
    pages: RoundPages, start: Start, tmp_path: Path, program: str, still: tuple[int, ...]
) -> None:
    worker = asking(start, tmp_path, program)
    assert pages.shielded(0, worker.pid) == mask(*still)
    worker.send_signal(TERM)
    assert worker.wait(DEADLINE_S) == 7


def test_a_handler_that_python_does_not_know_of_is_left_in_place(
    pages: RoundPages, start: Start, tmp_path: Path
) -> None:
    worker = asking(start, tmp_path, FAULTHANDLER)
    assert pages.shielded(0, worker.pid) == mask(TERM, USR2)
    worker.send_signal(USR1)
    assert "most recent call first" in worker.communicate(timeout=DEADLINE_S)[1]


def test_outside_of_the_main_thread_nothing_is_changed(
    pages: RoundPages, start: Start, tmp_path: Path
) -> None:
    worker = asking(start, tmp_path, IN_A_THREAD)
    assert pages.shielded(0, worker.pid) == 0
    worker.send_signal(TERM)
    assert worker.wait(DEADLINE_S) == -TERM


CHILDREN = f"""
import os, signal, subprocess, sys
import holdfast
holdfast.draining(0)
is_there, says = os.pipe()
child = os.fork()
if child == 0:
    os.write(says, b"1")
    signal.pause()
os.read(is_there, 1)
executed = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
for pid in (child, executed.pid):
    os.kill(pid, signal.SIGTERM)
print([os.waitpid(child, 0)[1], executed.wait()], flush=True)
{ASKS}
"""


def test_children_are_as_they_were(start: Start, tmp_path: Path) -> None:
    worker = asking(start, tmp_path, CHILDREN)
    assert worker.stdout is not None
    assert worker.stdout.readline() == f"[{int(TERM)}, {-TERM}]\n"


def test_without_an_agent_signals_are_as_ever(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASKS], cwd=tmp_path) as alone:
        until((tmp_path / "asks").exists)
        alone.send_signal(TERM)
        assert alone.wait(DEADLINE_S) == -TERM
