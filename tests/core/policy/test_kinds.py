"""Which kind of cause a failure is read as, from real words of real systems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.kinds import ADVICE, advice_for, kind_of, telling_line
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure

RAISED = ExitStatus(code=1)
LOADER = (
    "ValueError: Caught ValueError in DataLoader worker process 1.\n"
    "Original Traceback (most recent call last):\n"
    '  File "train.py", line 3, in __getitem__\n'
    "ValueError: sample 17 is empty"
)


def failure(
    message: str = "", status: ExitStatus = RAISED, tail: str = "", **more: object
) -> Failure:
    details = {"traceback": "", **more}
    error = ErrorDetail(message, traceback=str(details.pop("traceback")))
    known = {"pid": 100, **details}
    return Failure(
        node="n",
        host="here",
        local_rank=0,
        rank=0,
        role="default",
        status=status,
        observed_at=0.0,
        error=error,
        stderr_tail=tail,
        **known,  # type: ignore[arg-type]
    )


WORDS = """
exception: ValueError: the batch is empty
accelerator out of memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
out of memory: MemoryError
full disk: OSError: [Errno 28] No space left on device: '/data/ckpt'
too many open files: OSError: [Errno 24] Too many open files: 'a'
too many processes: RuntimeError: can't start new thread
too many processes: BlockingIOError: [Errno 11] Resource temporarily unavailable
port taken: OSError: [Errno 98] Address already in use
port taken: DistNetworkError: The server socket has failed. port: 29500, name: EADDRINUSE
missing module: ModuleNotFoundError: No module named 'einops'
missing module: ImportError: libcudart.so.12: cannot open shared object file: No such file
exception: ImportError: cannot import name 'a' from 'b' (/b.py)
relative import: ImportError: attempted relative import with no known parent package
module not on the path: ModuleNotFoundError: No module named 'lib' (it is in the working directory)
module beside the program: ModuleNotFoundError: No module named 'lib' (it is beside the program)
missing module of the program: ModuleNotFoundError: No module named 'a.b' (a is the program's own)
missing file: FileNotFoundError: [Errno 2] No such file or directory: 'x'
no permission: PermissionError: [Errno 13] Permission denied: '/data'
read-only file system: OSError: [Errno 30] Read-only file system: '/data/x'
full disk: RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 640 vs 534
full disk: RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed
damaged file: RuntimeError: unexpected EOF, expected 1024 more bytes. The file might be corrupted.
damaged file: safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeader
data loader killed: RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.
name not resolved: socket.gaierror: [Errno -2] Name or service not known
name not resolved: URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
certificate not accepted: SSLError: certificate verify failed: certificate is not yet valid
damaged file: UnpicklingError: pickle data was truncated
damaged file: EOFError: Ran out of input
damaged file: RuntimeError: PytorchStreamReader failed reading zip archive
collectives that differ: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is
collective timed out: RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv
collective timed out: RuntimeError: [pair.cc:534] Application timeout caused pair closure
collective timed out: DistStoreError: Timed out in store based barrier on rank 0, for key: b:1
stack overflow: RecursionError: maximum recursion depth exceeded
accelerator error: RuntimeError: CUDA error: device-side assert triggered
full shared memory: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.
exception in a data loader: RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly
"""


@pytest.mark.parametrize(
    "row", [*WORDS.strip().splitlines(), f"exception in a data loader: {LOADER}"]
)
def test_an_exception_is_of_the_kind_that_its_words_say(row: str) -> None:
    kind, _, message = row.partition(": ")
    assert kind_of(failure(message)) == kind


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (4, "illegal instruction"),
        (8, "arithmetic error"),
        (11, "crash"),
        (6, "abort"),
        (7, "bus error"),
        (9, "killed from outside"),
        (15, "killed from outside"),
        (31, "forbidden system call"),
        (10, "signal"),
    ],
)
def test_a_signal_without_words_is_the_kind(number: int, kind: str) -> None:
    assert kind_of(failure(status=ExitStatus(signal=number))) == kind


def test_each_signal_has_its_own_advice() -> None:
    told = [advice_for(kind_of(failure(status=ExitStatus(signal=one)))) for one in (4, 8, 11)]
    assert "another processor" in told[0]
    assert "divided by zero" in told[1]
    assert "native code went wrong" in told[2]


def test_a_shells_word_for_a_signal_is_understood() -> None:
    assert kind_of(failure(status=ExitStatus(code=139))) == "crash"
    assert kind_of(failure(status=ExitStatus(code=3))) == "exit code"


def test_the_last_lines_say_what_an_abort_was_about() -> None:
    said = "terminate called after throwing an instance of 'std::bad_alloc'"
    assert kind_of(failure(status=ExitStatus(signal=6), tail=said)) == "out of memory"


def test_what_the_kernel_did_comes_before_what_the_program_says() -> None:
    killed = failure(status=ExitStatus(signal=9), tail="[Errno 28]", out_of_memory="the kernel")
    assert kind_of(killed) == "out of memory"


def test_what_we_ended_it_for_comes_before_everything() -> None:
    assert kind_of(failure("OSError: [Errno 28]", ended_for="deadline")) == "deadline"


def test_an_exception_of_a_thread_is_told_apart() -> None:
    trace = "Exception in thread loader:\nTraceback (most recent call last):\nValueError: x\n"
    assert kind_of(failure("ValueError: x", traceback=trace)) == "exception in a thread"


def test_a_crash_in_a_very_deep_stack_is_an_overflow() -> None:
    crash = ExitStatus(signal=11)
    again = '  File "train.py", line 7 in descend\n'
    assert kind_of(failure(status=crash, traceback=again * 50)) == "stack overflow"
    deep = "".join(f'  File "train.py", line {n} in f{n}\n' for n in range(100))
    assert kind_of(failure(status=crash, traceback=deep + again * 2)) == "crash"


def test_a_crash_is_told_with_its_place() -> None:
    stack = (
        "Fatal Python error: Segmentation fault\n"
        "Current thread 0x00007f (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/job/train.py", line 66 in segfault\n'
    )
    crash = failure(status=ExitStatus(signal=11), traceback=stack)
    assert telling_line(crash) == "in ctypes.string_at at train.py:66 (segfault)"


def test_a_worker_that_never_was_is_told_apart() -> None:
    never = failure("the process could not be made: [Errno 2]", ExitStatus(code=126), pid=0)
    assert kind_of(never) == "missing file"
    other = failure("the process could not be made: odd", ExitStatus(code=126), pid=0)
    assert kind_of(other) == "could not be started"


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (failure("ValueError: a\nb"), "ValueError: a"),
        (failure(LOADER), "ValueError: sample 17 is empty, in data loader 1"),
        (failure(tail="step 1\nloss is NaN\n\n"), "last line: loss is NaN"),
        (failure(), ""),
    ],
)
def test_the_line_that_says_most_is_told(one: Failure, line: str) -> None:
    assert telling_line(one) == line


@given(st.text(), st.text(), st.integers(1, 64) | st.none())
def test_every_failure_has_a_kind_whatever_it_says(
    message: str, tail: str, number: int | None
) -> None:
    status = RAISED if number is None else ExitStatus(signal=number)
    assert kind_of(failure(message, status, tail))


def test_advice_is_a_sentence_or_nothing() -> None:
    assert advice_for("no such kind") == ""
    assert all(len(text) < 200 and "\n" not in text for text in ADVICE.values())
