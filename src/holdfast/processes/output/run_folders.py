"""Where the files of a job lie, and the folders of the last runs, which can still be reported on.

    <log dir>/<run id>_<host>_<unique>/journal.jsonl
        attempt_<restart>/filtered_stdout.log, filtered_stderr.log
                         /<local rank>/stdout.log, stderr.log, error.json
    <temporary>/holdfast_<unique>/<run>_<host>_<unique>/…
                                 /run.json    how it ended, in numbers
                                 /output      what its workers wrote last

Rules
1. Two jobs never share a directory, also when they share a run id. Whatever the run id and the
   host's name contain, they name one directory and never lead out of the log dir.
2. `os.devnull` as log dir means that nothing is written: every path is None. Without a log dir a
   temporary one is made, by hand, since `tempfile` costs a tenth of the time of a start.
3. Each run has a temporary folder, closed to all other users; with a log dir it holds a link to
   where the journal is. Its agent holds a lock on it while it lives: a run without an end and
   without a lock was killed.
4. The last runs are kept, `KEPT_RUNS` and `KEPT_BYTES` of them at most. At the end of a run older
   ones are removed: never one that runs, nor one in whose folder a worker has written something.
   Several runs may do so at once; what another one has removed is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.core.protocol.errors import UsageError
from holdfast.processes.output.recent import LastOutput
from holdfast.runtime.private_folder import is_ours, read_file, write_file

STREAM_FILES = {1: "stdout.log", 2: "stderr.log"}
FILTERED_FILES = {1: "filtered_stdout.log", 2: "filtered_stderr.log"}

_JOURNAL = "journal.jsonl"
_ANY_JOURNAL = r"journal(\.\d+)?\.jsonl"
_ERROR_FILE = "error.json"
RECORD = "run.json"
"""How the run ended."""
OUTPUT = "output"
"""What its workers wrote last."""
_RUN_ID_LENGTH_MAX = 100
_HOST_LENGTH_MAX = 63
_UNIQUE_ATTEMPTS = 100


class JobLogs(Struct, frozen=True):
    """The paths of one job. `root` is None where nothing is to be written."""

    root: Path | None
    temporary: Path | None = None
    """The directory that we made for it ourselves, where none was named."""

    @property
    def journal(self) -> Path | None:
        return self.root / _JOURNAL if self.root else None

    def attempt(self, restart_count: int) -> Path | None:
        return self.root / f"attempt_{restart_count}" if self.root else None

    def worker(self, restart_count: int, local_rank: int) -> Path | None:
        attempt = self.attempt(restart_count)
        return attempt / str(local_rank) if attempt else None

    def error_file(self, restart_count: int, local_rank: int) -> Path | None:
        worker = self.worker(restart_count, local_rank)
        return worker / _ERROR_FILE if worker else None


def create_job_logs(log_dir: str | None, run_id: str, host: str = "") -> JobLogs:
    """Make the directory of a new job and return its paths.

    Raises `UsageError` when the directory cannot be made.
    """
    if log_dir == os.devnull:
        return JobLogs(None)
    name = _safe_name(run_id)
    if host:
        name = f"{name}_{_safe_name(host)[:_HOST_LENGTH_MAX]}"
    try:
        if log_dir is not None:
            os.makedirs(log_dir, exist_ok=True)
            return JobLogs(_make_unique(Path(log_dir).absolute(), name))
        temporary = make_temporary()
        return JobLogs(_make_unique(temporary, name), temporary)
    except OSError as error:
        where = log_dir if log_dir is not None else "a temporary directory"
        raise UsageError(
            f"cannot make the log directory in {where}: {error.strerror}",
            "give --log-dir a directory that can be written, or /dev/null for no logs",
        ) from error


def only_our_records(tree: Path) -> bool:
    """Whether nothing in it is worth keeping for itself. Raises `OSError`.

    Our own records (journal, error files) and empty files are not; a log with output in it, or any
    file that we did not make, is.
    """
    for directory, _, names in os.walk(tree):
        for name in names:
            if name in (_ERROR_FILE, RECORD, OUTPUT) or re.fullmatch(_ANY_JOURNAL, name):
                continue
            status = os.lstat(os.path.join(directory, name))
            if status.st_size > 0:
                return False
    return True


def remove_tree(tree: Path) -> None:
    """As `shutil` would, which is a large import for a handful of files."""
    for directory, folders, names in os.walk(tree, topdown=False):
        for name in names:
            os.unlink(os.path.join(directory, name))
        for name in folders:
            path = os.path.join(directory, name)
            (os.unlink if os.path.islink(path) else os.rmdir)(path)
    os.rmdir(tree)


def _safe_name(run_id: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:_RUN_ID_LENGTH_MAX]
    return re.sub(r"^\.+", "_", name) or "job"


def temporary_folders() -> list[Path]:
    """Where logs go that nobody named a place for: the first that can be written to."""
    candidates = [os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.getcwd()]
    return [Path(one).absolute() for one in dict.fromkeys(candidates) if one]


def make_temporary() -> Path:
    *candidates, last = temporary_folders()
    for candidate in candidates:
        try:
            return _make_unique(candidate, "holdfast")
        except OSError:
            continue
    return _make_unique(last, "holdfast")


def _make_unique(parent: Path, name: str) -> Path:
    for _ in range(_UNIQUE_ATTEMPTS):
        path = parent / f"{name}_{os.urandom(4).hex()}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(0, "no unused name found", str(parent))


KEPT_RUNS = 50
KEPT_BYTES = 64 << 20
RECORD_MOST = 1 << 16
OUTPUT_MOST = 8 << 20
NO_OUTPUT = LastOutput([], [])
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RunRecord(Struct, frozen=True, omit_defaults=True):
    """How a run ended, as this node knows it."""

    job: str
    node: str
    host: str
    started: float
    """Seconds since 1970."""
    seconds: float
    verdict: str
    reason: str
    exit_status: int
    nodes: int = 0
    ranks: int = 0
    restarts: int = 0
    steps: int | None = None
    goodput: float | None = None


class KeptRun:
    """The folder of this run, locked."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder, self._lock = folder, lock

    def end(self, record: RunRecord, output: LastOutput = NO_OUTPUT) -> None:
        """Write down how it ended, and make room for the next ones. It may wait for a disk."""
        with contextlib.suppress(OSError):
            if output.blocks or output.files:
                write_file(self._lock, OUTPUT, msgspec.msgpack.encode(output))
            write_file(self._lock, RECORD, msgspec.json.encode(record))
        prune(self._folder.parent)
        self._close()

    def remove_if_untouched(self) -> None:
        """Keep nothing of it, unless a worker has written something there."""
        self._close()
        if _is_ours_alone(self._folder):
            with contextlib.suppress(OSError):
                remove_tree(self._folder)

    def _close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def keep(logs: JobLogs) -> KeptRun | None:
    """Begin to keep the run; None where it leaves no journal, or its folder cannot be made."""
    if logs.root is None:
        return None
    with contextlib.suppress(OSError):
        folder = logs.temporary
        if folder is None:
            folder = make_temporary()
            os.symlink(logs.root, folder / logs.root.name)
        lock = os.open(folder, FOLDER)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return KeptRun(folder, lock)
    return None


def folders() -> list[Path]:
    """The folders of all runs that this user has left where logs go by default."""
    found = (each for parent in temporary_folders() for each in sorted(parent.glob("holdfast_*")))
    return [folder for folder in dict.fromkeys(found) if is_own(folder)]


def places_of(folder: Path) -> list[Path]:
    """Where the journals of a run are: its folder, and what it links to, if that is as private."""
    with contextlib.suppress(OSError):
        links = [each.readlink() for each in folder.iterdir() if each.is_symlink()]
        return [folder, *filter(is_own, links)]
    return [folder]


def is_own(folder: Path) -> bool:
    """Whether it is a folder, no link to one, that only this user can have put something into."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False  # It has just been removed.
    return stat.S_ISDIR(found.st_mode) and is_ours(found)


def is_running(folder: Path) -> bool:
    """Whether the agent of this run is alive."""
    with contextlib.suppress(OSError), _locked(folder) as is_free:
        return not is_free
    return False


def record_of(folder: Path) -> RunRecord | None:
    """How the run ended; None of one that goes on, or was killed."""
    try:
        with _opened(folder) as descriptor:
            content, _ = read_file(descriptor, RECORD, RECORD_MOST)
        return msgspec.json.decode(content, type=RunRecord)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def output_of(folder: Path) -> LastOutput:
    """What its workers wrote last, as far as it was kept."""
    try:
        with _opened(folder) as descriptor:
            content, _ = read_file(descriptor, OUTPUT, OUTPUT_MOST)
        return msgspec.msgpack.decode(content, type=LastOutput)
    except (OSError, ValueError, msgspec.MsgspecError):
        return NO_OUTPUT


def prune(parent: Path) -> None:
    """Remove the oldest runs that are too many (rule 3)."""
    runs = [each for each in parent.glob("holdfast_*") if is_own(each) and _is_ours_alone(each)]
    runs.sort(key=_changed, reverse=True)
    size = 0
    for count, folder in enumerate(runs, 1):
        size += _size(folder)
        if count == 1 or (count <= KEPT_RUNS and size <= KEPT_BYTES):
            continue
        with contextlib.suppress(OSError), _locked(folder) as is_free:
            if is_free:
                remove_tree(folder)


def _is_ours_alone(folder: Path) -> bool:
    try:
        return only_our_records(folder)
    except OSError:
        return False  # Somebody else removes it right now.


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether nobody else has a lock on it, and a lock on it for that long. Raises `OSError`."""
    with _opened(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _changed(folder: Path) -> float:
    """When it was last written to: its journal, or the record of its end."""
    times = [0.0]
    for directory, _, names in os.walk(folder):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            with contextlib.suppress(OSError):
                times.append(os.lstat(path).st_mtime)
    return max(times)


def _size(folder: Path) -> int:
    size = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(directory, name)).st_size
    return size
