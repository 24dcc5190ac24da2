"""What workers write, captured from real processes through real pipes and terminals."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
from pathlib import Path

import pytest

from holdfast.core.policy.config import Output
from holdfast.processes.output import console, lines
from holdfast.processes.output.log_files import LogFile
from holdfast.processes.output.run_folders import JobLogs
from holdfast.processes.output.stream_plans import (
    WorkerIdentity,
    layout_by_options,
    place_by_options,
    plan_stream,
)

from .output_stage import PLAIN, REDIRECT, TEE, Reader, Worker, stage, terminal

# Megabytes pass line by line through a loop that has to share the machine.
pytestmark = pytest.mark.timeout(300)


# --- redirect, tee, neither -----------------------------------------------------------------

BOTH = "import sys; print('to stdout'); print('to stderr', file=sys.stderr)"


def test_tee_writes_raw_bytes_to_the_file_and_prefixed_lines_to_the_console(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, slots=2) as scene:
        scene.run(TEE, BOTH, local_rank=1)
    assert (tmp_path / "logs/1/stdout.log").read_bytes() == b"to stdout\n"
    assert (tmp_path / "logs/1/stderr.log").read_bytes() == b"to stderr\n"
    assert (tmp_path / "out").read_bytes() == b"[default1]:to stdout\n"
    assert (tmp_path / "err").read_bytes() == b"[default1]:to stderr\n"


def test_a_redirected_worker_writes_into_its_file_itself(tmp_path: Path) -> None:
    program = "import os; print(os.path.realpath('/proc/self/fd/1'))"

    with stage(tmp_path) as scene:
        scene.run(REDIRECT, program)
    log = tmp_path / "logs/0/stdout.log"
    assert log.read_text() == f"{log}\n"
    assert (tmp_path / "out").read_bytes() == b""


def test_the_two_streams_can_be_treated_differently(tmp_path: Path) -> None:
    output = Output(redirects={0: 1}, tee={0: 2})

    with stage(tmp_path) as scene:
        scene.run(output, BOTH)
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"to stdout\n"
    assert (tmp_path / "out").read_bytes() == b""
    assert (tmp_path / "logs/0/stderr.log").read_bytes() == b"to stderr\n"
    assert (tmp_path / "err").read_bytes() == b"[default0]:to stderr\n"


def test_with_neither_the_console_gets_the_bytes_as_they_are(tmp_path: Path) -> None:
    with stage(tmp_path) as scene:
        scene.run(PLAIN, BOTH)
    assert (tmp_path / "out").read_bytes() == b"to stdout\n"
    assert (tmp_path / "err").read_bytes() == b"to stderr\n"
    assert not (tmp_path / "logs").exists()


def test_a_later_round_of_the_same_attempt_adds_to_the_files(tmp_path: Path) -> None:
    with stage(tmp_path) as scene:
        for output in (TEE, REDIRECT):
            worker = scene.run(output, BOTH)
            assert worker.streams.stderr_reader()(20) == "to stderr"
    assert (tmp_path / "logs/0/stderr.log").read_bytes() == b"to stderr\n" * 2


@pytest.mark.parametrize("output", [TEE, REDIRECT])
def test_without_a_log_directory_everything_is_shown(output: Output) -> None:
    place = place_by_options(output, None, 0, 1)
    plan = plan_stream(place, output, WorkerIdentity(0, 0, "default", 2), 1)
    assert plan.file is None
    assert not plan.direct
    assert plan.to_console
    assert plan.prefix_on_console == (output is TEE)


def test_ranks_outside_the_filter_are_not_shown_but_kept(tmp_path: Path) -> None:
    output = Output(tee_default=3, local_ranks_filter=(1,))

    with stage(tmp_path, slots=2) as scene:
        for local_rank in (0, 1):
            worker = scene.run(output, BOTH, local_rank)
            assert worker.streams.stderr_reader()(20) == "to stderr"
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"to stdout\n"
    assert (tmp_path / "out").read_bytes() == b"[default1]:to stdout\n"


# --- prefixes -------------------------------------------------------------------------------


def test_a_prefix_template_knows_role_ranks_host_and_pid(tmp_path: Path) -> None:
    template = "<${role_name} ${local_rank} ${rank} ${hostname} ${pid} ${unknown} $$> "
    output = Output(tee_default=1, prefix_template=template)
    program = "print('one'); print(); print('three')"

    with stage(tmp_path, slots=2) as scene:
        worker = scene.run(output, program, local_rank=1)
    pid = worker.process.pid
    prefix = f"<default 1 101 {socket.gethostname()} {pid} ${{unknown}} $> "
    expected = f"{prefix}one\n{prefix}\n{prefix}three\n"
    assert (tmp_path / "out").read_text() == expected


def test_what_comes_before_the_pid_is_known_waits_for_it(tmp_path: Path) -> None:
    output = Output(tee_default=1, prefix_template="${pid}:")

    with stage(tmp_path) as scene:
        streams = scene.open(output, pid=None)
        os.write(streams.child_stdout, b"early\n")
        for end in streams.hand_over():
            os.close(end)
        scene.turn(20)
        assert (tmp_path / "out").read_bytes() == b""
        streams.set_pid(4711)
        scene.until(lambda: (tmp_path / "out").read_bytes() == b"4711:early\n")
        streams.close()


def test_a_worker_that_never_got_a_pid_is_not_lost(tmp_path: Path) -> None:
    output = Output(tee_default=1, prefix_template="${pid}:")

    with stage(tmp_path) as scene:
        streams = scene.open(output, pid=None)
        os.write(streams.child_stdout, b"early\n")
        streams.close()
        streams.close()
    assert (tmp_path / "out").read_bytes() == b"?:early\n"
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"early\n"


# --- nothing is lost ------------------------------------------------------------------------

COUNTING = """
import mmap, os, sys
with open({total!r}, "r+b") as file:
    total = mmap.mmap(file.fileno(), 8)
number = written = 0
while written < 100_000_000:
    block = b"".join(b"%015d\\n" % n for n in range(number, number + 700))
    number += 700
    written += os.write(1, block)
    total[:8] = written.to_bytes(8, "little")
sys.exit("it was to be killed before")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("death_after_bytes", [1, 8_000_000])
def test_all_that_a_killed_worker_wrote_is_in_its_file(
    tmp_path: Path, death_after_bytes: int
) -> None:
    counter = tmp_path / "total"
    counter.write_bytes(bytes(8))

    with (
        stage(tmp_path, slots=2) as scene,
        counter.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as total,
    ):
        worker = scene.start(TEE, COUNTING.format(total=str(counter)))
        scene.until(lambda: int.from_bytes(total[:8], "little") >= death_after_bytes)
        os.kill(worker.process.pid, signal.SIGKILL)
        scene.until(worker.has_exited)
        worker.streams.drain_now()
        claimed = int.from_bytes(total[:8], "little")
        # The file is complete here, before anything waits for the end of the pipe.
        assert (tmp_path / "logs/0/stdout.log").stat().st_size >= claimed
        worker.streams.close()
        assert worker.process.returncode == -signal.SIGKILL
    log = (tmp_path / "logs/0/stdout.log").read_bytes()
    assert len(log) >= claimed >= death_after_bytes
    expected = b"".join(b"%015d\n" % number for number in range(len(log) // 16 + 1))
    assert log == expected[: len(log)]
    shown = (tmp_path / "out").read_bytes()
    assert shown.replace(b"[default0]:", b"") == log
    assert shown.count(b"[default0]:") == log.count(b"\n") + (not log.endswith(b"\n"))


def test_a_congested_console_holds_the_worker_back_and_not_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "UNREAD_S", 1000.0)  # Nobody concludes that nobody reads.
    reading, writing = os.pipe()
    program = (
        "import os\n"
        "for start in range(0, 300_000, 1000):\n"
        "    os.write(1, b''.join(b'%099d\\n' % n for n in range(start, start + 1000)))\n"
    )
    expected = b"".join(b"%099d\n" % number for number in range(300_000))

    with stage(tmp_path, (writing, writing), slots=2) as scene:
        worker = scene.start(TEE, program)
        scene.until(lambda: scene.console.outlet(1).congested)
        # The loop turns (we are here), and the worker waits.
        assert worker.process.poll() is None
        log = tmp_path / "logs/0/stdout.log"
        held_at = log.stat().st_size
        assert held_at < len(expected)
        scene.turn(100)
        assert log.stat().st_size == held_at
        reader = Reader(scene.loop, reading)
        scene.finish(worker)
        scene.until(lambda: reader.text.endswith(b"%099d\n" % 299_999))
    os.close(reading)
    os.close(writing)
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == expected
    assert reader.text == b"[default0]:" + expected[:-1].replace(b"\n", b"\n[default0]:") + b"\n"


def test_a_worker_that_dies_under_a_congested_console_is_saved_at_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    counter = tmp_path / "total"
    counter.write_bytes(bytes(8))

    with stage(tmp_path, (writing, writing), slots=2) as scene:
        worker = scene.start(TEE, COUNTING.format(total=str(counter)))
        scene.until(lambda: scene.console.outlet(1).congested)
        worker.process.kill()
        scene.finish(worker)
        claimed = int.from_bytes(counter.read_bytes(), "little")
        assert (tmp_path / "logs/0/stdout.log").stat().st_size >= claimed
    os.close(reading)
    os.close(writing)


def test_a_grandchild_that_holds_the_pipe_and_writes_for_ever_holds_nobody_up(
    tmp_path: Path,
) -> None:
    program = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['yes'], start_new_session=True)\n"
        "sys.stderr.write(f'{child.pid}\\n')\n"
        "os._exit(3)\n"
    )

    with stage(tmp_path, slots=2) as scene:
        worker = scene.start(TEE, program)
        scene.until(worker.has_exited)
        worker.streams.drain_now()
        pid = int(worker.streams.stderr_reader()(20))
        os.kill(pid, 0)
        worker.streams.close()
        os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "logs/0/stderr.log").read_bytes().strip().isdigit()


# --- lines ----------------------------------------------------------------------------------

INTERLEAVING = """
import fcntl, os, random
with open({gate!r}) as gate:
    fcntl.flock(gate, fcntl.LOCK_SH)
for number in range(400):
    line = b"<rank {rank} line %d %s>" % (number, b"x" * random.randrange(3000))
    while line:
        cut = random.randrange(1, 800)
        os.write(1, line[:cut])
        os.sched_yield()
        line = line[cut:]
    os.write(1, b"\\n")
"""


@pytest.mark.parametrize("output", [TEE, PLAIN])
def test_lines_of_eight_writers_are_whole_and_in_order(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A writer that a busy machine keeps waiting in the midst of a line has not paused here.
    monkeypatch.setattr(lines, "HELD_S", 1000.0)
    gate = tmp_path / "gate"
    with stage(tmp_path, slots=8) as scene:
        with gate.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for rank in range(8):
                scene.start(output, INTERLEAVING.format(rank=rank, gate=str(gate)), rank)
        scene.finish(*scene.workers)
    seen: dict[int, int] = dict.fromkeys(range(8), 0)
    for line in (tmp_path / "out").read_bytes().splitlines():
        prefix, bracket, text = line.partition(b"<")
        words = text.split()
        rank = int(words[1])
        assert prefix == (b"[default%d]:" % rank if output is TEE else b"")
        assert (bracket, line.count(b"<"), line.count(b">")) == (b"<", 1, 1)
        assert line.endswith(b">")
        assert int(words[3]) == seen[rank]
        seen[rank] += 1
    assert set(seen.values()) == {400}


def test_a_last_line_without_newline_ends_where_another_begins(tmp_path: Path) -> None:
    with stage(tmp_path, slots=2) as scene:
        scene.run(TEE, "print('no newline', end='')", 0)
        scene.run(TEE, "print('and none here', end='')", 1)
    expected = b"[default0]:no newline\n[default1]:and none here"
    assert (tmp_path / "out").read_bytes() == expected
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"no newline"


def test_the_start_of_a_line_of_the_only_worker_is_shown_at_once(tmp_path: Path) -> None:
    program = "import sys, time; print('? ', end='', flush=True); time.sleep(1000)"

    with stage(tmp_path, slots=1) as scene:
        scene.start(PLAIN, program)
        scene.until(lambda: (tmp_path / "out").read_bytes() == b"? ")


def test_a_line_of_ten_megabytes_stays_one_line(tmp_path: Path) -> None:
    program = "import os\nfor _ in range(10): os.write(1, b'x' * 1_000_000)\nos.write(1, b'\\n')"

    with stage(tmp_path, slots=2) as scene:
        scene.run(TEE, program)
    line = b"x" * 10_000_000 + b"\n"
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == line
    assert (tmp_path / "out").read_bytes() == b"[default0]:" + line


def test_a_line_beyond_the_limit_is_shown_in_pieces_and_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HELD_S", 1000.0)
    size = lines.LINE_BYTES_MAX + 1_000_000
    program = f"import os\nfor _ in range(64): os.write(1, b'x' * {size // 64})"

    with stage(tmp_path, slots=2) as scene:
        scene.run(TEE, program)
    written = size // 64 * 64
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"x" * written
    assert (tmp_path / "out").read_bytes() == b"[default0]:" + b"x" * written


def test_binary_junk_does_no_harm(tmp_path: Path) -> None:
    byte_values = bytes(range(256)) * 4096
    noise = os.urandom(100_000).replace(b"\r", b"")  # what is made of returns has its own tests
    junk = byte_values.replace(b"\r", b"") + b"\xff\xfe\n\0\r\n\n\n" + noise + b"."
    source = tmp_path / "junk"
    source.write_bytes(junk)
    program = f"import os; d = open({str(source)!r}, 'rb').read()\nwhile d: d = d[os.write(2, d):]"

    with stage(tmp_path, slots=2) as scene:
        worker = scene.run(TEE, program)
    assert worker.streams.stderr_reader()(20)
    assert (tmp_path / "logs/0/stderr.log").read_bytes() == junk
    prefix = b"[default0]:"
    assert (tmp_path / "err").read_bytes() == prefix + junk.replace(b"\n", b"\n" + prefix)


# --- filters --------------------------------------------------------------------------------

FILTERED = """
import sys
for number in range(5000):
    print("step", number)
    print("warn" if number % 50 == 0 else "note", number, file=sys.stderr)
print("loss, at the end", end="")
"""


def test_lines_that_match_a_filter_also_go_to_the_filtered_file(tmp_path: Path) -> None:
    output = Output(tee_default=3, stdout_filters=("step 77", "loss,"), stderr_filters=("warn",))

    with stage(tmp_path, slots=2) as scene:
        paths = layout_by_options(output, JobLogs(tmp_path), 0, {}).filtered
        filters = {number: LogFile(path, scene.console) for number, path in paths.items()}
        for local_rank in (0, 1):
            streams = scene.open(output, local_rank, filters)
            scene.finish(Worker(streams, FILTERED))
        for file in filters.values():
            file.close()
    matching = [b"step 77", *(b"step %d" % n for n in range(770, 780)), b"loss, at the end"]
    expected = [b"[default%d]:%s" % (rank, line) for rank in (0, 1) for line in matching]
    filtered = (tmp_path / "attempt_0/filtered_stdout.log").read_bytes()
    assert filtered == b"\n".join(expected) + b"\n"
    warnings = (tmp_path / "attempt_0/filtered_stderr.log").read_bytes().splitlines()
    assert warnings == [b"[default%d]:warn %d" % (r, n) for r in (0, 1) for n in range(0, 5000, 50)]


def test_without_filters_or_directory_there_are_no_filtered_files(tmp_path: Path) -> None:
    wanted, logs = Output(stdout_filters=("x",)), JobLogs(tmp_path)
    assert layout_by_options(PLAIN, logs, 2, {}).filtered == {}
    assert layout_by_options(wanted, JobLogs(None), 2, {}).filtered == {}
    assert layout_by_options(wanted, logs, 2, {}).filtered == {
        1: tmp_path / "attempt_2/filtered_stdout.log"
    }


# --- the tail of stderr ---------------------------------------------------------------------


@pytest.mark.parametrize("output", [PLAIN, TEE, REDIRECT])
def test_the_tail_has_the_last_lines_of_stderr(tmp_path: Path, output: Output) -> None:
    program = (
        "import sys\n"
        "for number in range(100_000): print('line', number, file=sys.stderr)\n"
        "sys.stderr.flush()\n"
        "sys.stderr.buffer.write(b'\\r10%\\r90%\\xff\\n' + b'y' * 50_000 + b'end')\n"
    )

    with stage(tmp_path) as scene:
        worker = scene.run(output, program)
        assert worker.streams.stderr_reader()(1).count("\n") == 0
    tail = worker.streams.stderr_reader()(20).split("\n")
    assert tail[:18] == [f"line {number}" for number in range(99_982, 100_000)]
    assert tail[18] == "90%�"
    assert tail[19].startswith("…yyy")
    assert tail[19].endswith("end")
    assert len(tail[19]) < 10_000
    assert len(tail) == 20


def test_the_tail_of_a_silent_worker_is_empty(tmp_path: Path) -> None:
    with stage(tmp_path) as scene:
        for output in (PLAIN, REDIRECT):
            worker = scene.run(output, "pass")
            assert worker.streams.stderr_reader()(20) == ""


# --- terminals ------------------------------------------------------------------------------


def test_a_worker_under_a_terminal_sees_a_terminal_of_that_size(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "print(os.isatty(1), os.isatty(2), *os.get_terminal_size(1))\n"
        "print('x' * 200_000)\n"
    )

    with terminal() as (master, slave), stage(tmp_path, (slave, slave)) as scene:
        reader = Reader(scene.loop, master)
        scene.run(PLAIN, program)
        scene.until(lambda: not scene.console.pending())
        scene.until(lambda: reader.text.endswith(b"x\n"))
    expected = b"True True 99 33\n" + b"x" * 200_000 + b"\n"
    assert reader.text == expected


def test_a_teed_worker_sees_no_terminal(tmp_path: Path) -> None:
    with terminal() as (_, slave), stage(tmp_path, (slave, slave)) as scene:
        scene.run(TEE, "import os; print(os.isatty(1), os.isatty(2))")
    assert (tmp_path / "logs/0/stdout.log").read_bytes() == b"False False\n"


@pytest.mark.parametrize(
    ("output", "first", "second"),
    [(PLAIN, b"", b""), (TEE, b"[default0]:", b"[default1]:")],
)
def test_on_a_terminal_a_pause_shows_the_start_of_a_line_and_others_begin_a_new_one(
    tmp_path: Path, output: Output, first: bytes, second: bytes
) -> None:
    with terminal() as (master, slave), stage(tmp_path, (slave, slave), slots=2) as scene:
        reader = Reader(scene.loop, master)
        one, two = scene.open(output, 0), scene.open(output, 1)
        os.write(one.child_stdout, b"\r10%")
        scene.until(lambda: reader.text.endswith(b"10%"))
        os.write(one.child_stdout, b"\r20%")
        scene.until(lambda: reader.text.endswith(b"20%"))
        os.write(two.child_stdout, b"hello\nwor")
        scene.until(lambda: reader.text.endswith(b"wor"))
        os.write(one.child_stdout, b"\r30%\n")
        scene.until(lambda: reader.text.endswith(b"30%\n"))
        os.write(two.child_stdout, b"\nld\n")
        scene.until(lambda: reader.text.endswith(b"ld\n"))
        one.close()
        two.close()
    expected = (
        first + b"10%\r" + first + b"20%\n"
        + second + b"hello\n" + second + b"wor\n"
        + first + b"30%\n"
        + second + b"ld\n"
    )  # fmt: skip
    assert reader.text == expected


# --- files that cannot be written -----------------------------------------------------------


def test_a_full_disk_is_said_once_and_the_console_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "logs/0"
    directory.mkdir(parents=True)
    (directory / "stdout.log").symlink_to("/dev/full")
    program = "import os\nfor n in range(1000): os.write(1, b'%d\\n' % n)"

    with stage(tmp_path) as scene:
        scene.run(TEE, program)
    shown = b"".join(b"[default0]:%d\n" % number for number in range(1000))
    assert (tmp_path / "out").read_bytes() == shown
    said = (tmp_path / "err").read_text()
    assert said.count("\n") == 1
    assert str(directory / "stdout.log") in said
    assert "No space left on device" in said


def test_output_whose_file_cannot_be_opened_goes_to_the_console(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a directory should be")

    with stage(tmp_path) as scene:
        scene.run(REDIRECT, BOTH)
    assert (tmp_path / "out").read_bytes() == b"[default0]:to stdout\n"
    said = (tmp_path / "err").read_text().splitlines()
    assert said[-1] == "[default0]:to stderr"
    assert all("cannot write" in line for line in said[:-1])
    assert len(said) == 3
