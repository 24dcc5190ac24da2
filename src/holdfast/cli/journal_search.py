"""Find the journals that a path, or the name of a run, stands for.

Rules
1. A file is a journal. A folder stands for the journals below it. Anything else is the name of a
   run, searched for among the last runs of this user (`processes.output.run_folders`), and in
   folders of this user alone: others can leave a folder there, with a false story, or
   with a pipe in place of a journal.
2. Journals of one run id belong together if their times overlap: a name may be used again.
3. Of several jobs, the last one is taken, and the others are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.core.protocol.errors import UsageError
from holdfast.processes.output import run_folders

DEPTH = 4
"""How far below a folder journals are searched for: --log-dir, the run, a user's own folder."""
NAMED = 5


class FoundJournals(Struct, frozen=True):
    """The journals of one job, one for each node."""

    journals: list[Path]
    notes: list[str]


class Candidate(Struct, frozen=True):
    """A journal, and when it was written."""

    path: Path
    job: str
    start: float
    end: float


class _FirstLine(Struct):
    """The part of a journal's first line that tells runs apart."""

    job: str
    clock: dict[str, float] | None = None


def find_journals(paths: list[str]) -> FoundJournals:
    """The chosen job, or the last one on this machine. Raises `UsageError` if there is none."""
    if paths:
        found = [one for path_or_run in paths for one in _of_path_or_run(path_or_run)]
    else:
        found = list(candidates(_default_folders()))
    if not found:
        raise UsageError(
            "there is no journal of yours on this machine",
            "name a journal, or the folder that was given as --log-dir",
        )
    return _last_job(found)


def _of_path_or_run(path_or_run: str) -> list[Candidate]:
    path = Path(path_or_run)
    if path.is_dir():
        found = list(candidates([path]))
        if not found:
            raise UsageError(
                f"there is no journal in {path_or_run}", "a job's log folder has a journal.jsonl"
            )
        return found
    if path.exists() or "/" in path_or_run:
        if not path.exists():
            raise UsageError(
                f"{path_or_run} does not exist", "name a journal, a log folder or a run"
            )
        return [_candidate(path) or Candidate(path, "", 0.0, 0.0)]
    known = list(candidates(_default_folders()))
    named = [one for one in known if one.job == path_or_run]
    if not named:
        others = ", ".join(_names(known)) or "none"
        raise UsageError(
            f"no run called {path_or_run!r} has left a journal on this machine",
            f"there are: {others}; `holdfast jobs` lists them",
        )
    return named


def _default_folders() -> list[Path]:
    return [place for folder in run_folders.folders() for place in run_folders.places_of(folder)]


def candidates(folders: Iterable[Path]) -> Iterator[Candidate]:
    """The journals below these folders."""
    for folder in folders:
        for directory, names, files in os.walk(folder):
            depth = len(Path(directory).relative_to(folder).parts)
            names[:] = sorted(names) if depth < DEPTH else []
            for file in sorted(files):
                if file == "journal.jsonl" or (depth == 0 and _may_be_one(file, files)):
                    one = _candidate(Path(directory) / file)
                    if one is not None:
                        yield one


def _may_be_one(file: str, files: list[str]) -> bool:
    """Journals that were copied into one folder have names of their own."""
    is_later_part = file.rpartition(".jsonl")[0].rpartition(".")[2].isdecimal()
    return file.endswith(".jsonl") and not is_later_part and "journal.jsonl" not in files


def _candidate(path: Path) -> Candidate | None:
    """A file's own description; None if it is no journal, or cannot be read."""
    try:
        with path.open("rb") as file:
            first = msgspec.json.decode(file.readline(), type=_FirstLine)
        latest = max(part.stat().st_mtime for part in path.parent.glob(f"{path.stem}*.jsonl"))
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    start = first.clock["wall"] if first.clock else os.path.getctime(path.parent)
    return Candidate(path, first.job, start, max(start, latest))


def _names(found: Iterable[Candidate]) -> list[str]:
    names = list(dict.fromkeys(one.job for one in sorted(found, key=lambda one: -one.start)))
    return [*names[:NAMED], "…"] if len(names) > NAMED else names


def _last_job(found: list[Candidate]) -> FoundJournals:
    last = max(found, key=lambda one: one.end)
    together, start = [last], last.start
    for one in sorted(found, key=lambda one: -one.end):
        if one is not last and one.job == last.job and one.end >= start:
            together.append(one)
            start = min(start, one.start)
    others = [one for one in found if one not in together]
    notes = []
    names = [name for name in _names(others) if name != last.job]
    if names:
        notes.append(
            f"this is {last.job}, the last of several jobs; the others: {', '.join(names)}"
        )
    elif others:
        notes.append(f"this is the last run of {last.job}; `holdfast jobs --json` has all")
    return FoundJournals(sorted({one.path for one in together}), notes)
