"""The kind of a failure, and the next thing to do.

Rules
1. A worker that we ended (for a deadline, a hang) has the kind that we ended it for.
2. The kernel's own report (out of memory) comes before any message of a program.
3. A program's own message comes next: its exception, or, without one, its last lines. They are
   searched for texts that every system has in common: errors of the operating system, of
   Python's imports, of collectives.
4. Without any message, the way in which the process ended is the kind.

The texts are foreign, and there is no other source for them. An unknown text
leads to a less specific kind ("exception", "exit code"), never to a wrong one.

It is imported when something has failed: a job that goes well never needs it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.core.protocol.model import Failure

EXCEPTION = "exception"
IN_A_THREAD = "exception in a thread"
IN_A_LOADER = "exception in a data loader"
EXIT_CODE = "exit code"
ENDED_EARLY = "ended too early"
EXTRA_STEP = "extra step"
LOST_PEER = "lost connection"
KILLED = "killed from outside"
OUT_OF_MEMORY = "out of memory"
NOT_STARTED = "could not be started"
HANG = "hang"
NO_EXIT = "hang at the end"
STALL = "hang of all ranks"
COLLECTIVES = "collectives that differ"
TIMED_OUT = "collective timed out"
DEADLINE = "deadline"
RUN_TIME = "run time used up"
STUCK = "stuck in the kernel"
FORBIDDEN = "process of another user"
AGENT_ENDED = "killed agent"
SPAWNER_ENDED = "killed spawner"
LOST_NODE = "lost host or network"
NODE_LEFT = "node left"
VERSIONS = "different versions"
MISSING_MODULE = "missing module"
NAME_NOT_RESOLVED = "name not resolved"
CERTIFICATE = "certificate not accepted"
NATIVE = frozenset({"crash", "abort", "illegal instruction", "arithmetic error"})
"""Of code that Python only called: it may be another version on another machine."""


class WordsOfKind(Struct, frozen=True):
    """The texts by which a kind is recognized, and the next thing to do."""

    kind: str
    words: str
    advice: str


# The first match counts, so the more specific come first.
# fmt: off
BY_WORDS = (
    WordsOfKind("accelerator out of memory",
                r"(?:cuda|hip|xpu|mps)\b.{0,40}out of memory|OutOfMemoryError|ALLOC_FAILED",
                "use a smaller batch, or more memory on each accelerator"),
    WordsOfKind("data loader killed",
                r"DataLoader worker \(pid\S* [\d, ]+\) is killed by signal: Killed",
                "its processes need more memory than there is: use fewer loaders, or smaller "
                "samples; the kernel log names what it killed"),
    WordsOfKind(NAME_NOT_RESOLVED,
                r"Name or service not known|name resolution|gaierror|NameResolutionError"
                r"|No address associated with hostname|nodename nor servname",
                "that machine cannot look the name up: compare /etc/resolv.conf and /etc/hosts "
                "with another machine's"),
    WordsOfKind(CERTIFICATE,
                r"CERTIFICATE_VERIFY_FAILED|certificate (?:is not yet valid|has expired)",
                "compare that machine's clock and its certificates with another machine's"),
    WordsOfKind("full shared memory",
                r"shared memory.{0,80}(?:shm|limit|No space)|DataLoader worker.{0,60}Bus error"
                r"|unable to (?:allocate|write|resize).{0,30}shared memory",
                "give the container a larger /dev/shm (docker: --shm-size), or use fewer loaders"),
    WordsOfKind(OUT_OF_MEMORY,
                r"\bMemoryError\b|Cannot allocate memory|bad_alloc|DefaultCPUAllocator",
                "it needs more memory than this machine, or its control group, has"),
    WordsOfKind("full disk",
                r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]"
                r"|PytorchStreamWriter failed|inline_container.{0,80}unexpected pos",
                "make room on that disk, or write somewhere else"),
    WordsOfKind("too many open files",
                r"Too many open files|\[Errno (?:23|24)\]",
                "raise the limit (ulimit -n), or close what is not used any more"),
    WordsOfKind("too many processes",
                r"can't start new thread|pthread_create|libgomp: Thread creation failed"
                r"|BlockingIOError: \[Errno 11\]|fork: .{0,20}Resource temporarily unavailable",
                "raise the limit of processes (ulimit -u, pids.max of the container)"),
    WordsOfKind("port taken",
                r"Address already in use|EADDRINUSE|\[Errno 98\]",
                "another program has that port: choose another one, or end that program"),
    WordsOfKind(COLLECTIVES,
                r"mismatch between collectives|op\.preamble\.length|collective.{0,40}mismatch"
                r"|mismatched collective",
                "all ranks have to call the same collectives in the same order, with the same "
                "shapes; TORCH_DISTRIBUTED_DEBUG=DETAIL has PyTorch say which differ"),
    WordsOfKind(TIMED_OUT,
                r"(?:collective|watchdog|barrier).{0,80}time(?:d )?out|wait timeout after \d+ ?ms"
                r"|failed to pass monitoredBarrier"
                r"|Timed out waiting \d+ ?ms for (?:send|recv)"
                r"|Timed out after \d+ seconds waiting for clients"
                r"|Application timeout caused pair closure|in store based barrier",
                "see what kept that rank: the file of stacks says where each was"),
    WordsOfKind("accelerator error",
                r"CUDA error|HIP error|device-side assert|uncorrectable ECC|Xid|NVML_ERROR",
                "run it with CUDA_LAUNCH_BLOCKING=1 to see where; if it comes back on one machine "
                "only, take that one out"),
    WordsOfKind("stack overflow",
                r"RecursionError|stack overflow",
                "a function calls itself without end"),
    WordsOfKind("relative import",
                r"attempted relative import with no known parent",
                "start the program as a part of its package: holdfast run -m package.module"),
    WordsOfKind("module not on the path",
                r"No module named .*\(it is in the working directory",
                "put that directory into PYTHONPATH, or start the program with -m package.module"),
    WordsOfKind("module beside the program",
                r"No module named .*\(it is beside the program",
                "import it by its full name, with its package, or start the program by its path"),
    WordsOfKind("missing module of the program",
                r"No module named .*\(\w+ is the program's own\)",
                "is its name right, and is that file in its package, on every machine?"),
    WordsOfKind(MISSING_MODULE,
                r"ModuleNotFoundError|No module named|cannot open shared object file",
                "install it in the environment that runs the job, as on the other machines"),
    WordsOfKind("damaged file",
                r"UnpicklingError|Ran out of input|PytorchStreamReader|BadZipFile|SafetensorError"
                r"|pickle data was truncated|invalid load key|HeaderTooLarge|bad magic number"
                r"|InvalidHeader|MetadataIncompleteBuffer|file in archive is not in a subdirectory"
                r"|unexpected EOF, expected \d+ more bytes|storage has wrong (?:byte )?size",
                "a file that it reads is cut short or damaged: go back to one before it"),
    WordsOfKind("read-only file system",
                r"Read-only file system|\[Errno 30\]",
                "mount it writable, or write somewhere else; a disk that fails is remounted so: "
                "look at that machine's kernel log"),
    WordsOfKind("missing file",
                r"FileNotFoundError|No such file or directory|\[Errno 2\]",
                "is that file there on every machine, under the same path?"),
    WordsOfKind("no permission",
                r"PermissionError|Permission denied|\[Errno (?:13|1)\]",
                "the user who runs the job may not do that there"),
)

FROM_OUTSIDE = "Holdfast did not do it: find out what else may end processes there"

BY_SIGNAL = {
    1: (KILLED, FROM_OUTSIDE),
    2: (KILLED, FROM_OUTSIDE),
    4: ("illegal instruction", "a wrong instruction: was it built for another processor?"),
    6: ("abort", "a library gave up: its last lines say why"),
    7: ("bus error", "a file that is mapped into memory ended too soon: is /dev/shm full?"),
    8: ("arithmetic error", "it divided by zero in native code"),
    9: (KILLED, FROM_OUTSIDE),
    11: ("crash", "native code went wrong: the stack, if there is one, says in which call"),
    15: (KILLED, FROM_OUTSIDE),
    24: ("processor time used up", "raise the limit (ulimit -t)"),
    25: ("file too large", "raise the limit (ulimit -f)"),
    31: ("forbidden system call", "a sandbox does not let it do that"),
}

ADVICE = {
    EXCEPTION: "",
    IN_A_THREAD: "an exception in a thread does not end a process: let the main thread look",
    IN_A_LOADER: "",
    EXIT_CODE: "the program ended itself: its last lines may say why",
    ENDED_EARLY: "all ranks have to do the same number of steps: does each get as much data?",
    EXTRA_STEP: "all ranks have to do the same number of steps: does this one get more data?",
    LOST_PEER: "it lost a connection to another rank, of which nothing is known",
    OUT_OF_MEMORY: "it needs more memory than this machine, or its control group, has",
    NOT_STARTED: "",
    HANG: "the file of stacks says where each rank was",
    NO_EXIT: "the file of stacks says where it was when the others had finished",
    STALL: "the file of stacks says where each rank was",
    RUN_TIME: "give it more time with --run-timeout, or let it do less",
    DEADLINE: "the file of stacks says where it was",
    STUCK: "a disk or a device does not answer: look at that machine's kernel log",
    FORBIDDEN: "let no worker start a process as another user (sudo), or end it from the worker",
    AGENT_ENDED: "somebody killed `holdfast run` there, or the machine started anew",
    SPAWNER_ENDED: "somebody killed a process of Holdfast's there, or memory ran out",
    LOST_NODE: "is that machine up, and can it be reached from the coordinator's?",
    VERSIONS: "install the same versions on all machines, and start the program in the same way",
    **{row.kind: row.advice for row in BY_WORDS},
    **dict(BY_SIGNAL.values()),
}
# fmt: on

_THREAD = re.compile(r"^Exception in thread ", re.MULTILINE)
_LOADER = re.compile(r"in DataLoader worker process (\d+)|DataLoader worker \(pid")
_RECURSION = 20
"""How often one line is in a stack (of the hundred that are written) that has overflown."""
_SHELLS_SIGNAL = 128
"""The number that a shell adds to the signal that ended its command."""
NOT_MADE = 126


def kind_of(failure: Failure) -> str:
    """The kind of one failure, by the rules above."""
    if failure.ended_for:
        return failure.ended_for
    if failure.out_of_memory:
        return OUT_OF_MEMORY
    by_words = _by_words(_own_words(failure))
    if failure.error.message:
        return by_words or _kind_of_exception(failure)
    if failure.status.signal is not None:
        return by_words or _kind_of_signal(failure, failure.status.signal)
    beyond = (failure.status.code or 0) - _SHELLS_SIGNAL
    if beyond in BY_SIGNAL:
        return by_words or BY_SIGNAL[beyond][0]
    return by_words or EXIT_CODE


def is_timed_out(failure: Failure) -> bool:
    """Whether a collective timed out. It is asked while a round is being ended, so the texts of all
    other kinds are searched only where these are found."""
    return _has_words_of(TIMED_OUT, _own_words(failure)) and kind_of(failure) == TIMED_OUT


def sounds_timed_out(text: str) -> bool:
    """Whether any of these texts occurs."""
    return _has_words_of(TIMED_OUT, text)


def own_cause(text: str) -> bool:
    """Whether a text that suggests a lost peer names a fault of the worker's own machine."""
    return _has_words_of(NAME_NOT_RESOLVED, text) or _has_words_of(CERTIFICATE, text)


def _has_words_of(kind: str, text: str) -> bool:
    row = next(row for row in BY_WORDS if row.kind == kind)
    return bool(re.search(row.words, text, re.IGNORECASE))


def advice_for(kind: str) -> str:
    """The next thing to do, in a sentence; empty if the error says all."""
    return ADVICE.get(kind, "")


def telling_line(failure: Failure) -> str:
    """The most telling line: of an exception, or, without one, the last of its output."""
    lines = [line.strip() for line in failure.error.message.splitlines() if line.strip()]
    if not lines and (location := _location_of_crash(failure)):
        return location
    if not lines:
        tail = [line.strip() for line in failure.stderr_tail.splitlines() if line.strip()]
        says_little = failure.ended_for or failure.status.signal is not None
        return f"last line: {tail[-1]}" if tail and not says_little else ""
    loader = _LOADER.search(failure.error.message)
    if loader and loader[1] and len(lines) > 1:
        return f"{lines[-1]}, in data loader {loader[1]}"
    return lines[0]


def _own_words(failure: Failure) -> str:
    """Its exception; where there is none, what it wrote last."""
    return failure.error.message or failure.stderr_tail


def _by_words(text: str) -> str:
    found = (row.kind for row in BY_WORDS if re.search(row.words, text, re.IGNORECASE))
    return next(found, "")


def _kind_of_exception(failure: Failure) -> str:
    if failure.status.code == NOT_MADE and not failure.pid:
        return NOT_STARTED
    if _THREAD.search(failure.error.traceback):
        return IN_A_THREAD
    return IN_A_LOADER if _LOADER.search(failure.error.message) else EXCEPTION


def _kind_of_signal(failure: Failure, number: int) -> str:
    if number == 11 and _is_recursion(failure.error.traceback):
        return "stack overflow"
    return BY_SIGNAL.get(number, ("signal", ""))[0]


def _is_recursion(stack: str) -> bool:
    lines = stack.splitlines()
    return any(lines.count(line) >= _RECURSION for line in set(lines))


def _location_of_crash(failure: Failure) -> str:
    """The location of a worker that left its stack when it crashed."""
    if failure.status.signal is None or not failure.error.traceback:
        return ""
    from holdfast.core.policy import stacks

    frames = stacks.read_stack(failure.error.traceback)
    return stacks.WorkerStack(failure.rank, frames=frames).location.shortly() if frames else ""
