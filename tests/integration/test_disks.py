"""Jobs whose disks stall, are full or fail: training goes on, and what can be kept is kept."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.policy import sentences
from holdfast.engine.sentences import LEADS
from holdfast.runtime.disk import PATIENCE_S
from holdfast.runtime.sentences import disk_answers, disk_stalls, waiting_for_disk

from ..free_ports import free_port
from .conftest import Job, StartJob
from .disks import StallingDisk, small_disk, stalling_disk

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

LEASE_S = 5
STALL_S = 2.5 * LEASE_S
# Prints and reports a step every 20 ms until it is told to stop. What it did is also in the job's
# folder, on another disk: the number of each step, the time, and the round.
STEPS = """
import os, sys, time
import holdfast
rank, place = os.environ["RANK"], os.environ["PLACE"]
padding = "." * int(os.environ.get("PADDING", "0"))
step = 0
with open(f"{place}/steps{rank}", "a", buffering=1) as trace:
    while not os.path.exists(f"{place}/stop"):
        step += 1
        if "QUIET" not in os.environ:
            print("step", step, padding, flush=True)
        holdfast.progress(step)
        print(step, time.monotonic(), os.environ["HOLDFAST_ROUND"], file=trace)
        if os.path.exists(f"{place}/fail{rank}"):
            os.remove(f"{place}/fail{rank}")
            os._exit(3)  # Without a word: it would wait for its own disk.
        time.sleep(0.02)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[StallingDisk]:
    with stalling_disk(tmp_path) as made:
        yield made


class Pair:
    """Two nodes of one job, each with one worker that steps until it is told to stop."""

    def __init__(self, start: StartJob, place: Path, *words: str, record: Path, **env: str) -> None:
        self.place = place
        meet = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--lease={LEASE_S}")
        more = (f"--snapshot-dir={record}", "--rdzv-id=job", "--no-warm", "--max-restarts=3")
        self.nodes = [
            start(
                *(*meet, *more, *words),
                script=STEPS,
                log_dir=False,
                env={"PLACE": str(place), **env},
            )
            for _ in range(2)
        ]

    def last(self, rank: int) -> tuple[int, float, int]:
        """The last step of a rank, when it was, and the round."""
        try:
            lines = (self.place / f"steps{rank}").read_text().splitlines()
            step, at, number = lines[-1].split()
            return int(step), float(at), int(number)
        except (FileNotFoundError, IndexError, ValueError):
            return 0, 0.0, 0

    def until_stepping(self, since: float, number: int = 1) -> None:
        """Wait until both ranks have made a step of this round after that time."""
        for rank in (0, 1):
            self.nodes[0].until(
                lambda rank=rank: self.last(rank)[1] > since and self.last(rank)[2] == number,
                f"steps of rank {rank} in round {number}, not {self.last(rank)}",
            )

    def finish(self) -> None:
        (self.place / "stop").touch()
        for node in self.nodes:
            assert node.wait() == 0, node.stderr
            node.expect_nothing_left()

    def rounds(self) -> set[str]:
        files = [self.place / f"steps{rank}" for rank in (0, 1)]
        return {line.split()[2] for file in files for line in file.read_text().splitlines()}


def logged_steps(folder: Path) -> list[list[int]]:
    """The numbers of all steps in each worker's file."""
    files = sorted(folder.glob("*/attempt_0/0/stdout.log"))
    return [[int(line.split()[1]) for line in file.read_text().splitlines()] for file in files]


def said(job: Job, pattern: str) -> int:
    """The number of lines with it."""
    return sum(bool(re.search(pattern, line)) for line in job.stderr.splitlines())


def on_disk(sentence: str, folder: Path) -> str:
    """A pattern of a sentence about `PLACE`, whatever follows its amounts."""
    before, _, _ = sentence.partition("12345")
    return re.escape(before).replace("PLACE", re.escape(str(folder)) + r"\S*")


def stalls(folder: Path) -> str:
    return on_disk(disk_stalls("PLACE", ""), folder)


def answers(folder: Path) -> str:
    return on_disk(disk_answers("PLACE", 12345.0), folder)


def unwritten(folder: Path) -> str:
    return on_disk(waiting_for_disk("PLACE", 12345 * 1024, PATIENCE_S), folder)


def has_ended(job: Job) -> bool:
    """Whether the node has told of the end of round 1, as the coordinator or as another node."""
    ends = sentences.round_ends(1, "", 0, has_failed=True).removesuffix(" ")
    words = (ends, sentences.stopping("", 1), sentences.restarting(0.0, 1, 3))
    return any(said(job, re.escape(each)) for each in words)


def test_a_log_disk_that_stalls_costs_nobody_a_step(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    pair = Pair(start_job, tmp_path, "--tee=3", f"--log-dir={disk.folder}", record=tmp_path)
    pair.until_stepping(0.0)
    disk.stall()
    pair.until_stepping(time.monotonic() + STALL_S)
    disk.answer()
    pair.until_stepping(time.monotonic())
    for node in pair.nodes:
        node.until(lambda node=node: said(node, answers(disk.folder)), "a word that it is back")
    pair.finish()
    assert pair.rounds() == {"1"}
    steps = sorted(logged_steps(disk.folder))
    assert steps == sorted(list(range(1, pair.last(rank)[0] + 1)) for rank in (0, 1))
    for node in pair.nodes:
        assert said(node, stalls(disk.folder)) == 1, node.stderr
        assert said(node, answers(disk.folder)) == 1, node.stderr


def test_a_worker_that_fails_while_the_log_disk_stalls_is_replaced_when_it_answers(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    """Its files have to be opened for the next round, and that waits; nobody loses its lease."""
    words = ("--redirects=3", f"--log-dir={disk.folder}")
    pair = Pair(start_job, tmp_path, *words, record=tmp_path, QUIET="1")
    pair.until_stepping(0.0)
    disk.stall()
    (tmp_path / "fail1").touch()
    pair.nodes[0].until(lambda: has_ended(pair.nodes[0]), "the end of round 1")
    again = time.monotonic() + STALL_S
    pair.nodes[0].until(lambda: time.monotonic() > again, "a stall that is longer than the lease")
    disk.answer()
    pair.until_stepping(time.monotonic(), number=2)
    pair.finish()
    assert pair.rounds() == {"1", "2"}


def test_a_round_that_waits_for_a_log_disk_can_be_ended(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    """Its workers were never made, and are not made when the disk answers."""
    words = ("--redirects=3", f"--log-dir={disk.folder}", "--no-warm", "--max-restarts=3")
    env = {"PLACE": str(tmp_path), "QUIET": "1"}
    job = start_job(*words, script=STEPS, log_dir=False, env=env)
    trace = tmp_path / "steps0"
    job.until(lambda: trace.exists() and trace.read_text(), "the first step")
    disk.stall()
    (tmp_path / "fail0").touch()
    job.until(lambda: said(job, stalls(disk.folder)), "a word on the disk")
    job.send(signal.SIGTERM)
    job.until(
        lambda: said(job, unwritten(disk.folder)), "an end that waits for nothing but the disk"
    )
    disk.answer()
    assert job.wait() == 128 + signal.SIGTERM, job.stderr
    job.expect_nothing_left()
    assert {line.split()[2] for line in trace.read_text().splitlines()} == {"1"}


def test_with_a_record_that_cannot_be_written_now_the_round_goes_on_and_the_next_one_waits(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    pair = Pair(start_job, tmp_path, f"--log-dir={tmp_path}/logs", record=disk.folder)
    pair.until_stepping(0.0)
    disk.stall()
    pair.until_stepping(time.monotonic() + STALL_S)
    (tmp_path / "fail0").touch()
    for node in pair.nodes:
        node.until(lambda node=node: has_ended(node), "the end of round 1")
    host = next(node for node in pair.nodes if said(node, LEADS))
    host.until(lambda: said(host, stalls(disk.folder)), "a word on the record's disk")
    assert pair.rounds() == {"1"}
    disk.answer()
    pair.until_stepping(time.monotonic(), number=2)
    pair.finish()
    assert pair.rounds() == {"1", "2"}


def test_more_than_fits_into_memory_makes_the_workers_wait_and_nothing_is_lost(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    """Four MB a second or so: the disk is back long after the limit of 64 MiB was reached."""
    env = {"PLACE": str(tmp_path), "PADDING": "2000000"}
    script = STEPS.replace("0.02", "0.001")
    words = ("--tee=3", f"--log-dir={disk.folder}", "--local-ranks-filter=7")
    job = start_job(*words, script=script, log_dir=False, env=env)
    trace = tmp_path / "steps0"
    job.until(lambda: trace.exists() and trace.read_text(), "the first step")
    disk.stall()
    stalled = time.monotonic()

    def waits() -> bool:
        lines = trace.read_text().splitlines()
        return time.monotonic() - max(float(lines[-1].split()[1]), stalled) > 3.0

    job.until(waits, "a worker that waits")
    disk.answer()
    (tmp_path / "stop").touch()
    assert job.wait() == 0, job.stderr
    (steps,) = logged_steps(disk.folder)
    assert steps == list(range(1, len(trace.read_text().splitlines()) + 1))


@pytest.mark.parametrize("way", ["--tee=3", "--redirects=3"])
def test_a_disk_that_stalls_at_the_end_is_waited_for(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path, way: str
) -> None:
    job = start_job(
        *(way, f"--log-dir={disk.folder}"),
        script=STEPS,
        log_dir=False,
        env={"PLACE": str(tmp_path)},
    )
    trace = tmp_path / "steps0"
    job.until(lambda: trace.exists() and trace.read_text(), "the first step")
    if way == "--tee=3":
        disk.stall()
    (tmp_path / "stop").touch()
    if way == "--tee=3":
        job.until(lambda: said(job, unwritten(disk.folder)), "a word on what is waited for")
        assert job.process.poll() is None
        disk.answer()
    assert job.wait() == 0, job.stderr
    (steps,) = logged_steps(disk.folder)
    assert steps == list(range(1, len(trace.read_text().splitlines()) + 1))


def test_a_full_log_disk_is_said_once_and_training_goes_on(
    start_job: StartJob, tmp_path: Path
) -> None:
    with small_disk(tmp_path, kibibytes=128) as folder:
        words = ("--tee=3", f"--log-dir={folder}")
        pair = Pair(start_job, tmp_path, *words, record=tmp_path, PADDING="2000")
        full = f"stdout.log: {os.strerror(errno.ENOSPC)}"
        for node in pair.nodes:
            node.until(lambda node=node: said(node, full), "a word on the full disk")
        pair.until_stepping(time.monotonic() + LEASE_S)
        pair.finish()
        assert pair.rounds() == {"1"}
        for node in pair.nodes:
            assert said(node, full) == 1, node.stderr


def test_a_failing_log_disk_is_said_once_and_training_goes_on(
    start_job: StartJob, disk: StallingDisk, tmp_path: Path
) -> None:
    pair = Pair(start_job, tmp_path, "--tee=3", f"--log-dir={disk.folder}", record=disk.folder)
    pair.until_stepping(0.0)
    disk.fail()
    for node in pair.nodes:
        node.until(lambda node=node: said(node, "stdout.log: Input/output"), "a word on it")
    pair.until_stepping(time.monotonic() + LEASE_S)
    pair.finish()
    assert pair.rounds() == {"1"}
    for node in pair.nodes:
        assert said(node, "stdout.log: Input/output") == 1, node.stderr
