"""Holdfast as it is beside an earlier commit of itself: `python -m benchmarks.beside_commit REV`.

Both are run from their source trees by this interpreter, in turns, each with an empty memory of
earlier launches. The commit is checked out into the scratch folder and removed afterwards.
"""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import structs

from benchmarks import launching, recovery, standing_cost
from benchmarks.figures import Figure, format_value
from benchmarks.jobs import become_subreaper
from benchmarks.launchers import Launcher
from benchmarks.session import Session
from benchmarks.standing_cost import COLD, WARM, Variant

REPOSITORY = Path(__file__).parents[1]
REPEATS = 7
Sample = Callable[[Session, Launcher], list[float]]


def measures() -> list[tuple[list[Figure], Sample]]:
    """What is measured, with the way to take one sample of it."""
    found: list[tuple[list[Figure], Sample]] = []
    for size in launching.SIZES:
        figure = Figure("a", f"nothing_{size}", f"launch {size} workers that do nothing, total")
        found.append(([figure], partial(_with_size, launching.sample_nothing, size)))
    figures = [
        Figure("b", "group_2", "launch 2 workers with torch and gloo, to the first all-reduce"),
        Figure("b", "group_2_total", "… total"),
    ]
    found.append((figures, partial(_with_size, launching.sample_group, 2)))
    figures = [
        Figure("c", "recover_2", "worker of 2 killed, to the next attempt's first all-reduce"),
        Figure("c", "recover_2_begun", "… to the last one's first line"),
    ]
    found.append((figures, partial(_with_size, recovery.sample_recovery, 2)))
    for variant, whose in ((COLD, "agent and spawner"), (WARM, "zygote and store with torch")):
        figures = [
            Figure("d", whose, f"resident memory of {whose}", "MB"),
            Figure("d", f"{whose} PSS", "… proportional (PSS)", "MB"),
        ]
        found.append((figures, partial(_memory, variant)))
    return found


def _with_size(
    sample: Callable[[Session, Launcher, int], list[float]],
    size: int,
    session: Session,
    launcher: Launcher,
) -> list[float]:
    return sample(session, launcher, size)


def _memory(variant: Variant, session: Session, launcher: Launcher) -> list[float]:
    return standing_cost.sample_memory(session, structs.replace(variant, launcher=launcher))


@contextmanager
def _checked_out(revision: str, scratch: Path) -> Iterator[Path]:
    """The source of a commit."""
    tree = scratch / "earlier"
    git = ("git", "-C", str(REPOSITORY), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
    try:
        yield tree / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _launcher(name: str, source: Path, scratch: Path) -> Launcher:
    compileall.compile_dir(source, quiet=1)
    memory = scratch / f"memory of {name}"
    variables = {"PYTHONPATH": str(source), "XDG_CACHE_HOME": str(memory)}
    return Launcher(name, (sys.executable, "-m", "holdfast", "run"), variables)


def main() -> None:
    """Measure both in turns; print the medians side by side."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_commit", description=__doc__)
    parser.add_argument("revision", metavar="REV", help="the earlier commit")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each (%(default)s)")
    parser.add_argument("--only", default="abcd", metavar="LETTERS", help="of %(default)s")
    options = parser.parse_args()
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        scratch = Path(folder)
        session = Session(options.repeats, scratch)
        with _checked_out(options.revision, scratch) as earlier:
            contenders = [
                _launcher(options.revision, earlier, scratch),
                _launcher("now", REPOSITORY / "src", scratch),
            ]
            for launcher in contenders:  # Uncounted: files come into memory.
                launching.sample_group(session, launcher, 2)
            for figures, sample in measures():
                if figures[0].measure in options.only:
                    _measure(session, contenders, figures, sample)


def _measure(
    session: Session, contenders: list[Launcher], figures: list[Figure], sample: Sample
) -> None:
    for repeat in range(session.repeats):
        for launcher in contenders if repeat % 2 else reversed(contenders):
            session.take(figures, launcher, partial(sample, session, launcher), repeat)
    before, now = (launcher.name for launcher in contenders)
    for figure in figures:
        first, second = figure.median(before), figure.median(now)
        ratio = format_value(second / first) if first and second else "–"
        session.say(
            f"==> {figure.title}: {figure.show(before)} at {before},"
            f" {figure.show(now)} now ({ratio}×)"
        )


if __name__ == "__main__":
    main()
