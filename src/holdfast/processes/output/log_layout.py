"""Where the files of a job lie.

    <log dir>/<run id>_<host>_<unique>/journal.jsonl
        attempt_<restart>/filtered_stdout.log, filtered_stderr.log
                         /<local rank>/stdout.log, stderr.log, error.json

Rules
- Two jobs never share a directory, also when they share a run id: the suffix is unique. On a disk
  that all hosts share, the host's name tells whose it is.
- Whatever the run id and the host's name contain, they name one directory and never lead out of
  the log dir.
- `os.devnull` as log dir means that nothing is written: every path is None.
- Without a log dir a temporary one is made, and only that is ever removed again, and only
  when it holds nothing that a worker wrote (`processes.output.kept_runs`).
- Paths are only named here. Who writes a file makes its directory.

The temporary directory is made by hand, because `tempfile` alone costs a tenth of the time
in which a job has started.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from holdfast.core.protocol.errors import UsageError

STREAM_FILES = {1: "stdout.log", 2: "stderr.log"}
FILTERED_FILES = {1: "filtered_stdout.log", 2: "filtered_stderr.log"}

_JOURNAL = "journal.jsonl"
_ANY_JOURNAL = r"journal(\.\d+)?\.jsonl"
_ERROR_FILE = "error.json"
RECORD = "run.json"
"""How the run ended (`processes.output.kept_runs`)."""
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
