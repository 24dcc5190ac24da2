"""What a worker writes to stdout and stderr, and where it goes.

Rules
- Every byte that a worker wrote before its death reaches its file, and the console queue.
- The loop never waits for a worker, a terminal, a disk or the end of a pipe, and one talkative
  worker takes only a bounded part of each turn. All that may wait for a disk, or for somebody's own
  class that says where workers write, is `RoundOutput.prepare`, which runs in a lane.
- A worker that writes faster than the console can show, or a disk can take, waits at its pipe; but
  not for a console that nobody reads, where a file has all of it: what is left out there is said.
- On the console the lines of different workers are whole.
- A file that cannot be written is said so once; the console and the worker go on.

For each stream of each worker there is a `StreamPlan` (`stream_plans`):

    redirect only   the worker's descriptor is the file itself; the agent sees nothing
    tee             a pipe; raw bytes to the file, lines with a prefix to the console
    neither         a pipe to the console as it is, or a pseudo-terminal where the console is a
                    terminal, so that the worker still sees one

Without a log directory tee still gives prefixed lines, and what would have been redirected is
shown. The filtered files of an attempt get the lines that contain one of the filters, with the
prefix, from all streams that the console shows.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.model import Ranks
from holdfast.processes.output.console import Console, Outlet
from holdfast.processes.output.lines import LineFilter, LineView, last_lines
from holdfast.processes.output.log_files import (
    AT_ONCE,
    Lane,
    LogFile,
    Opened,
    close_file,
    open_to_append,
    say_cannot_write,
)
from holdfast.processes.output.recent import KEPT_BYTES, RecentOutput
from holdfast.processes.output.stream_plans import (
    PIPE_BYTES_DEFAULT,
    PIPE_BYTES_MAX,
    STDERR,
    STDOUT,
    Environments,
    LogsRefused,
    RoundLogs,
    StreamPlan,
    WorkerIdentity,
    plan_stream,
)
from holdfast.runtime.loop import Loop
from holdfast.worker.error_file import VARIABLE as ERROR_FILE

__all__ = ["StreamContext", "StreamPlan", "WorkerStreams", "open_planned"]

_READ_BYTES = 32 * 1024
"""Small enough that the copies of a block stay in the cache and in the allocator's arena: with
blocks of 256 KiB most of the time goes into mapping and clearing fresh pages."""
_READ_BYTES_PER_TURN = 1024 * 1024


class WorkerStream:
    """One stream of a worker: the end that the worker gets, and what is done with the rest.

    What goes past us needs nothing done: no line of it is shown here, and all that was written is
    where it belongs.
    """

    def __init__(self, child_end: int) -> None:
        self.child_end = child_end
        self._child_open = True

    def hand_over(self) -> int:
        """The end that the worker gets; the caller closes it from now on."""
        self._child_open = False
        return self.child_end

    def _close_descriptor(self, descriptor: int) -> None:
        os.close(descriptor)

    def set_prefix(self, pid: str) -> None:
        """Complete the prefix of its lines."""

    def drain_now(self) -> None:
        """Take all that is there, and wait for nothing."""

    def close(self) -> None:
        """Let go of what is still here. Idempotent."""
        if self._child_open:
            self._child_open = False
            self._close_descriptor(self.child_end)

    def tail(self) -> Callable[[], bytes]:
        """How to read the end of what this worker wrote."""
        return bytes


def inherited(number: int) -> WorkerStream:
    """A stream of the worker that is the very one of this process."""
    try:
        return WorkerStream(os.dup(number))
    except OSError:  # Our parent closed it.
        return WorkerStream(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))


class DirectStream(WorkerStream):
    """A stream that the worker writes into its file itself."""

    def __init__(self, path: Path, opened: Opened, lane: Lane) -> None:
        super().__init__(opened.descriptor)
        self._path, self._size_at_open = path, opened.size
        self._lane = lane

    def _close_descriptor(self, descriptor: int) -> None:
        self._lane.do(partial(close_file, descriptor))

    def tail(self) -> Callable[[], bytes]:
        """An earlier round may have begun the file."""
        return partial(_end_of_file, self._path, self._size_at_open)


def _end_of_file(path: Path, begins_at: int) -> bytes:
    try:
        with open(path, "rb") as file:
            start = file.seek(0, os.SEEK_END) - KEPT_BYTES
            file.seek(max(start, begins_at))
            return file.read(KEPT_BYTES)
    except OSError:
        return b""


class PipedStream(WorkerStream):
    """A stream that comes to the agent through a pipe or a pseudo-terminal."""

    def __init__(self, plan: StreamPlan, context: StreamContext) -> None:
        self._plan = plan
        self._outlet = context.console.outlet(plan.number)
        self._loop = context.loop
        self._lane = context.lane
        self._waits_for_disk = False
        self._filtered_file = context.filter_files.get(plan.number)
        self._recent = context.recent
        self._begins_behind = context.recent.last if context.recent else 0
        self._view: LineView | None = None
        self._filter: LineFilter | None = None
        self._prefix_known = False
        self._finished = False
        self._end, child_end = _open_ends(plan, self._outlet)
        super().__init__(child_end)
        console, file = context.console, plan.file
        self._file = LogFile(file, console, self._lane) if file else None

    def set_prefix(self, pid: str) -> None:
        """Complete the prefix; from here on the stream is read. Only the first call counts."""
        if self._prefix_known:
            return
        self._prefix_known = True
        plan = self._plan
        prefix = plan.prefix(pid)
        if plan.to_console and not plan.pass_through:
            shown = prefix if plan.prefix_on_console else b""
            self._view = LineView(self._outlet, shown, self._loop, self._kept_in())
        if plan.filters and self._filtered_file is not None:
            self._filter = LineFilter(plan.filters, prefix, self._filtered_file)
        self._loop.add_reader(self._end, self._on_readable)

    def drain_now(self) -> None:
        """Take all that is there, congested or not, and wait for nothing.

        What was in the pipe when we came is at most what the largest pipe holds. No more is
        read, or a descendant that goes on writing could keep us here.
        """
        self.set_prefix("?")
        self._take_up_to(PIPE_BYTES_MAX)

    def close(self) -> None:
        super().close()
        self.drain_now()
        self._finish()

    def tail(self) -> Callable[[], bytes]:
        if self._recent is None:
            return bytes
        rank, number = self._plan.identity.rank, self._plan.number
        return partial(bytes, self._recent.tail(rank, number, self._begins_behind))

    def _on_readable(self) -> None:
        self._take_up_to(_READ_BYTES_PER_TURN, may_wait=True)

    def _take_up_to(self, left: int, *, may_wait: bool = False) -> None:
        """Take so many bytes, or a little more, as far as they are there."""
        while not self._finished and left > 0:
            if may_wait and self._must_wait():
                self._loop.remove_reader(self._end)
                self._outlet.when_clear(self._resume)
                return
            block = self._read()
            if block is None:
                return
            left -= len(block)
            self._take(block)

    def _must_wait(self) -> bool:
        """Whether the console has to take some first; not if nobody reads it and a file has all."""
        if not self._plan.to_console or not self._outlet.congested:
            return False
        return self._kept_in() is None or not self._outlet.is_unread

    def _kept_in(self) -> Path | None:
        """The file that has everything, if there is one."""
        return self._plan.file if self._file is not None and self._file.is_whole else None

    def _resume(self) -> None:
        if not self._finished and not self._waits_for_disk:
            self._loop.add_reader(self._end, self._on_readable)

    def _wait_for_disk(self) -> None:
        """Read no more until the disk has taken enough of what waits for it."""
        if not self._waits_for_disk:
            self._waits_for_disk = True
            self._loop.remove_reader(self._end)
            self._lane.when_clear(self._on_disk_clear)

    def _on_disk_clear(self) -> None:
        self._waits_for_disk = False
        self._resume()

    def _read(self) -> bytes | None:
        """One block; empty at the end of the stream; None when there is nothing now."""
        try:
            return os.read(self._end, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # EIO: all holders of the pseudo-terminal have closed it

    def _take(self, block: bytes) -> None:
        if not block:
            self._finish()
            return
        if self._file:
            self._file.write(block)
        if self._recent:
            self._recent.take(self._plan.identity.rank, self._plan.number, block)
        if self._filter:
            self._filter.feed(block)
        if self._view:
            self._view.feed(block)
        elif self._plan.to_console:
            # One source: stdout and stderr of a worker mix as they would without us.
            self._outlet.write(block, self._plan.identity)
        if (self._file or self._filter) and self._lane.congested:
            self._wait_for_disk()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._loop.remove_reader(self._end)
        os.close(self._end)
        for lines in (self._filter, self._view):
            if lines:
                lines.flush()
        if self._file:
            self._file.close()


class StreamContext(Struct, frozen=True):
    """What all streams of a worker share."""

    console: Console
    loop: Loop
    filter_files: Mapping[int, LogFile]
    """By the number of a stream, where its lines go that match a filter."""
    lane: Lane = AT_ONCE
    """Where files are written."""
    recent: RecentOutput | None = None
    """The recent output of all workers, which keeps the last lines; None where nothing is kept."""


class WorkerStreams:
    """stdout and stderr of one worker of one round."""

    def __init__(self, stdout: WorkerStream, stderr: WorkerStream) -> None:
        self._streams = (stdout, stderr)
        self.child_stdout = stdout.child_end
        self.child_stderr = stderr.child_end
        self.are_files = tuple(isinstance(stream, DirectStream) for stream in self._streams)
        """Whether each of them is a file, which is not closed on a loop."""

    def hand_over(self) -> list[int]:
        """The descriptors that the worker gets; the caller closes them."""
        return [stream.hand_over() for stream in self._streams]

    def set_pid(self, pid: int) -> None:
        """Complete the prefix; nothing is read before this."""
        for stream in self._streams:
            stream.set_prefix(str(pid))

    def drain_now(self) -> None:
        """Take in all that the worker has written, without waiting for anything."""
        for stream in self._streams:
            stream.drain_now()

    def stderr_reader(self) -> Callable[[int], str]:
        """How to read the last lines of stderr, as a terminal would have left them; also after
        `close`. As of now, and in any thread: it may have to wait for a disk."""
        tail = self._streams[1].tail()
        return lambda max_lines: last_lines(tail(), max_lines)

    def close(self) -> None:
        """Take in the rest, show a last line without newline, close all. Idempotent."""
        for stream in self._streams:
            stream.close()


def open_planned(
    stdout_plan: StreamPlan | None,
    stderr_plan: StreamPlan | None,
    context: StreamContext,
    opened: Mapping[int, Opened] | None = None,
) -> WorkerStreams:
    """Open the streams of a worker that is about to start; one without a plan is ours.

    `opened` has the files that the worker writes to itself, by the number of the stream, where
    they are open already; they are the streams' from now on. Others are opened here, which may
    have to wait for a disk. Raises OSError only when the process has no descriptors left; a file
    that cannot be opened is reported on the console, which then gets the output instead.
    """
    known = dict(opened or {})
    try:
        stdout = _open_stream(STDOUT, stdout_plan, context, known)
        try:
            stderr = _open_stream(STDERR, stderr_plan, context, known)
        except OSError:
            stdout.close()
            raise
    finally:
        for left in known.values():
            context.lane.do(partial(close_file, left.descriptor))
    return WorkerStreams(stdout, stderr)


def _open_stream(
    number: int, plan: StreamPlan | None, context: StreamContext, known: dict[int, Opened]
) -> WorkerStream:
    if plan is None:
        return inherited(number)
    if plan.direct and plan.file:
        opened = known.pop(number, None) or open_to_append(plan.file)
        if not opened.problem:
            return DirectStream(plan.file, opened, context.lane)
        say_cannot_write(context.console, plan.file, opened.problem)
        plan = replace(plan, file=None, prefix_on_console=True, pass_through=False)
    return PipedStream(plan, context)


def _open_ends(plan: StreamPlan, outlet: Outlet) -> tuple[int, int]:
    """Our end, which does not block, and the worker's."""
    if outlet.is_terminal and plan.to_console and plan.file is None:
        try:
            return _open_terminal_pair(outlet.descriptor)
        except OSError:
            pass  # no pseudo-terminals here, or none left: a pipe shows the same text
    return _open_pipe(plan.pipe_bytes)


def _open_pipe(size: int) -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    if size > PIPE_BYTES_DEFAULT:
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            pass  # this user's allowance is used up; the default size will do
    return reading, writing


def _open_terminal_pair(terminal: int) -> tuple[int, int]:
    """A pseudo-terminal of the size of `terminal` that changes no byte on the way."""
    import termios
    import tty

    master, slave = os.openpty()
    os.set_blocking(master, False)
    tty.setraw(slave)
    termios.tcsetwinsize(slave, termios.tcgetwinsize(terminal))
    return master, slave


class RoundContext(Struct, frozen=True):
    """What the output of every round needs."""

    config: JobConfig
    console: Console
    loop: Loop
    lane: Lane
    """Where files are written."""
    recent: RecentOutput


class PreparedStreams(Struct, frozen=True):
    """What was made ready for one worker."""

    ranks: Ranks
    plans: dict[int, StreamPlan]
    opened: dict[int, Opened]
    """The files that it writes to itself, by the number of the stream."""
    variables: dict[str, str]
    error_file: Path | None
    problem: str = ""


class RoundOutput:
    """The places of a round, and what is open of them."""

    def __init__(
        self,
        number: int,
        begin: Callable[[], RoundLogs],
        environments: Environments,
        shared: RoundContext,
    ) -> None:
        """`begin` says where the round's workers write; it may change their environments."""
        self.round = number
        self._begin = begin
        self._environments = environments
        self._shared = shared
        self._logs: RoundLogs | None = None
        self._filters: dict[int, LogFile] | None = None
        """By stream, for lines that match; None until the first worker starts."""

    # In a lane.

    def prepare(self, workers: list[Ranks]) -> list[PreparedStreams] | LogsRefused:
        """Make ready what workers write to."""
        if self._logs is None:
            try:
                self._logs = self._begin()
            except LogsRefused as refusal:
                return refusal
        return [self._prepared(ranks, self._logs) for ranks in workers]

    def _prepared(self, ranks: Ranks, logs: RoundLogs) -> PreparedStreams:
        error_file = logs.error_files[ranks.local_rank]
        problem = _clear_error_file(error_file) if error_file is not None else ""
        variables = self._environments[ranks.local_rank]
        if error_file is not None:
            variables.setdefault(ERROR_FILE, str(error_file))
        config = self._shared.config
        identity = WorkerIdentity(ranks.local_rank, ranks.rank, config.role, config.slots)
        plans = {
            number: plan_stream(place, config.output, identity, number)
            for number, place in logs.places[ranks.local_rank].items()
        }
        for plan in plans.values():
            plan.prefix("")  # Whatever that has to import is imported here, not on the loop.
        opened = {
            number: open_to_append(plan.file)
            for number, plan in plans.items()
            if plan.direct and plan.file
        }
        return PreparedStreams(ranks, plans, opened, variables, error_file, problem)

    # On the loop.

    def open(self, ready: PreparedStreams) -> WorkerStreams:
        """Open the rest. Raises OSError when there are no descriptors left."""
        shared = self._shared
        if ready.problem:
            shared.console.write(2, os.fsencode(f"holdfast: {ready.problem}\n"))
        context = StreamContext(
            shared.console, shared.loop, self._shared_filters(), shared.lane,
            shared.recent,
        )  # fmt: skip
        _note_files(shared.recent, ready)
        return open_planned(ready.plans[STDOUT], ready.plans[STDERR], context, ready.opened)

    def discard(self, ready: PreparedStreams) -> None:
        """It is not needed after all."""
        for opened in ready.opened.values():
            self._shared.lane.do(partial(close_file, opened.descriptor))

    def _shared_filters(self) -> dict[int, LogFile]:
        """Opened with the first worker."""
        assert self._logs is not None, "a worker is opened that was not made ready"
        if self._filters is None:
            console, lane = self._shared.console, self._shared.lane
            wanted = self._logs.filtered.items()
            self._filters = {number: LogFile(path, console, lane) for number, path in wanted}
        return self._filters

    def close(self) -> None:
        for file in (self._filters or {}).values():
            file.close()


def _note_files(recent: RecentOutput, ready: PreparedStreams) -> None:
    """Which of its streams a worker writes into a file itself."""
    for number, plan in ready.plans.items():
        at = (ready.ranks.rank, number)
        if plan.direct and plan.file:
            recent.files[at] = str(plan.file)
        else:
            recent.files.pop(at, None)


def _clear_error_file(path: Path) -> str:
    """Have nothing at its path: what an earlier round left is not its own. Or what is wrong."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.unlink()
    except OSError as error:
        return f"cannot make {path}: {error.strerror}; errors are missing there"
    return ""


def standard_input(local_rank: int) -> int:
    """Local rank 0 reads what the agent would; the others find nothing there."""
    if local_rank == 0:
        try:
            return os.dup(0)
        except OSError:
            pass  # The agent was started with its standard input closed.
    return null_device(os.O_RDONLY)


def null_device(mode: int) -> int:
    return os.open(os.devnull, mode | os.O_CLOEXEC)
