"""Signals to the agent: the workers hear them, have their grace, and the status tells."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.core.coordinator_io import Explain
from holdfast.core.node_io import WorkerExited
from holdfast.core.policy import sentences
from holdfast.core.protocol.model import ExitStatus

# A worker that writes down what it hears, and then does as it is told: `obey` ends at once,
# `save` goes on until it is allowed to end, and `ignore` never does.
LISTENER = """
import os, signal, sys, time

rank, manner = os.environ["RANK"], sys.argv[1]
heard = []

def hear(number, frame):
    with open(f"heard.{rank}", "a") as file:
        print(signal.Signals(number).name, file=file)
    heard.append(number)

for number in (1, 2, 3, 10, 15):
    signal.signal(number, hear)
open(f"ready.{rank}", "w").close()
while not heard or manner == "ignore":
    time.sleep(0.01)  # Not `pause`, which sleeps through a signal that comes just before it.
while manner == "save" and not os.path.exists("allowed"):
    time.sleep(0.002)
open(f"ended.{rank}", "w").close()
"""
LONG = "--shutdown-timeout=600"
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


@pytest.fixture
def start_listeners(start_job):
    """Start two listeners; returns once both listen."""

    def start(manner, *words, **more):
        job = start_job("--nproc-per-node=2", *words, script=LISTENER, args=(manner,), **more)
        job.until_files("ready.0", "ready.1")
        return job

    return start


def heard(job) -> list[list[str]]:
    return [job.read(f"heard.{rank}").split() for rank in range(2)]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_reaches_every_worker_and_is_the_exit_status(start_listeners, number) -> None:
    job = start_listeners("obey", LONG)
    job.send(number)
    assert job.wait() == 128 + number
    assert heard(job) == [[number.name], [number.name]]
    assert number.name in job.stderr
    job.expect_nothing_left()


@pytest.mark.parametrize("start", ["--no-warm", "--preload=json"])
def test_a_signal_can_be_added_to_those_that_are_passed_on(start_listeners, start) -> None:
    job = start_listeners("obey", "--signals-to-handle=SIGUSR1,SIGTERM", LONG, start)
    job.send(signal.SIGUSR1)
    assert job.wait() == 128 + signal.SIGUSR1
    assert heard(job) == [["SIGUSR1"], ["SIGUSR1"]]
    job.expect_nothing_left()


def test_the_grace_lasts_until_the_workers_are_done(start_listeners) -> None:
    job = start_listeners("save", LONG)
    job.send(signal.SIGTERM)
    job.until_files("heard.0", "heard.1")
    assert job.process.poll() is None
    assert not (job.folder / "ended.0").exists()
    (job.folder / "allowed").touch()
    assert job.wait() == 128 + signal.SIGTERM
    assert (job.folder / "ended.0").exists()
    assert (job.folder / "ended.1").exists()


@pytest.mark.thorough
def test_a_second_sigterm_does_not_shorten_the_grace(start_listeners) -> None:
    job = start_listeners("save", LONG)
    job.send(signal.SIGTERM)
    job.until_files("heard.0", "heard.1")
    lines = job.journal_lines()
    job.send(signal.SIGTERM)
    job.until(lambda: job.journal_lines() > lines, "the agent to take the second signal")
    (job.folder / "allowed").touch()
    assert job.wait() == 128 + signal.SIGTERM
    assert sentences.INTERRUPTED_AGAIN not in job.stderr
    exits = [one.status for one in job.events(WorkerExited)]
    assert exits == [ExitStatus(code=0), ExitStatus(code=0)]
    assert (job.folder / "ended.0").exists()
    assert (job.folder / "ended.1").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_sigint_kills_at_once(start_listeners, first) -> None:
    job = start_listeners("ignore", LONG)
    job.send(first)
    job.until_files("heard.0", "heard.1")
    job.send(signal.SIGINT)
    assert job.wait() == 128 + first
    assert sentences.INTERRUPTED_AGAIN in job.stderr
    assert not (job.folder / "ended.0").exists()
    job.expect_nothing_left()


@pytest.mark.parametrize("setting", ["option", "variable"])
def test_who_ignores_the_signal_is_killed_when_the_grace_is_over(start_listeners, setting) -> None:
    words = ("--shutdown-timeout=3",) if setting == "option" else ()
    env = {} if words else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
    job = start_listeners("ignore", *words, env=env)
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    assert sentences.not_stopped([0, 1], 3.0) in job.stderr
    assert heard(job) == [["SIGTERM"], ["SIGTERM"]]
    job.expect_nothing_left()


@pytest.mark.thorough
def test_no_grace_is_given_where_none_is_wanted(start_listeners) -> None:
    job = start_listeners("ignore", "--shutdown-timeout=0")
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    job.expect_nothing_left()


def test_a_signal_while_modules_are_preloaded_ends_the_job(start_job) -> None:
    endless = """
        import signal
        open("importing", "w").close()
        while True:
            signal.pause()
    """
    job = start_job(
        "--preload=endless",
        script="open('reached', 'w')",
        files={"modules/endless.py": endless},
        env={"PYTHONPATH": "modules"},
    )
    job.until_files("importing")
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    assert not (job.folder / "reached").exists()
    job.expect_nothing_left()


@pytest.mark.thorough
def test_a_signal_during_the_pause_before_a_restart_ends_the_job(start_job) -> None:
    words = ("--max-restarts=9", "--restart-backoff=600", "--restart-backoff-max=600")
    job = start_job(*words, "--same-cause-limit=0", script="raise SystemExit(3)")
    pauses = lambda: [told.pause_s for told in job.effects(Explain)]  # noqa: E731
    job.until(lambda: any(pauses()), "the pause")
    job.send(signal.SIGHUP)
    assert job.wait() == 128 + signal.SIGHUP
    job.expect_nothing_left()


@pytest.mark.thorough
def test_a_signal_while_a_round_is_stopped_ends_the_job(start_job) -> None:
    """The other rank has failed; this one is slow to stop, and then has to stop for good."""
    script = """
        import os, signal, sys, time
        def hear(number, frame):
            with open("heard", "a") as file:
                print(signal.Signals(number).name, file=file)
        signal.signal(signal.SIGTERM, hear)
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        if os.environ["RANK"] == "1":
            while not os.path.exists("ready"):
                time.sleep(0.002)
            sys.exit(3)
        open("ready", "w").close()
        while True:
            time.sleep(0.01)
    """
    job = start_job("--nproc-per-node=2", "--max-restarts=1", LONG, script=script)
    job.until_files("heard")
    job.send(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    assert [told for told in job.effects(Explain) if told.topic == "restart"] == []
    job.expect_nothing_left()


def test_the_terminals_interrupt_reaches_each_worker_once(start_job) -> None:
    """The terminal interrupts its foreground group, in which there is nobody but the agent."""
    terminal, line = os.openpty()
    try:
        job = start_job(
            "--nproc-per-node=2",
            LONG,
            script=LISTENER,
            args=("save",),
            stdin=line,
            terminal=True,
        )
        job.until_files("ready.0", "ready.1")
        os.write(terminal, b"\x03")
        job.until_files("heard.0", "heard.1")
        (job.folder / "allowed").touch()
        assert job.wait() == 128 + signal.SIGINT
        assert heard(job) == [["SIGINT"], ["SIGINT"]]
    finally:
        os.close(terminal)
        os.close(line)


def test_a_signal_before_the_job_has_begun_leaves_nothing_and_no_traceback(start_job) -> None:
    """The spawner is there, and the command is still importing."""
    job = start_job("--nproc-per-node=2", script=LISTENER, args=("ignore",))
    job.until(lambda: len(job.running()) > 1, "the spawner")
    job.send(signal.SIGINT)
    assert job.wait() in (-signal.SIGINT, 128 + signal.SIGINT)
    assert "Traceback" not in job.stderr
    job.expect_nothing_left()


@pytest.mark.parametrize("how", [("--preload", "json"), ("--no-warm",)], ids=["warm", "cold"])
def test_workers_ignore_nothing_that_a_shell_in_the_background_ignores(
    holdfast: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal; print([signal.getsignal(n) for n in (1, 3, 13)])")
    words = [str(holdfast), "run", *how, str(script)]
    started = subprocess.run(
        ["sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    assert started.stdout == f"[{signal.SIG_DFL!r}, {signal.SIG_DFL!r}, {signal.SIG_IGN!r}]\n"
