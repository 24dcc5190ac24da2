"""The simulator's command: many seeds, or the story of one; or a leader lost at every point.

python -m tools.simulator --seeds 0:20000 --jobs 2
python -m tools.simulator --seed 1234 --story
python -m tools.simulator --seed 1234 --story --journals DIR --why host0-1:57
python -m tools.simulator --everywhere --jobs 2
python -m tools.simulator --case 'closing/holding/its node is killed/41' --story
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tools.journals import explaining
from tools.simulator import PROFILES, Run, everywhere, make_plan, shrink, simulate
from tools.simulator.plan import Plan

from holdfast.observe import journal

PROGRESS_EVERY_S = 2.0
BATCH = 20
SHRUNK = 3
"""How many failing seeds are shrunk; the others are only named."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.case:
        plan = everywhere.Case.named(options.case).plan()
        return _tell(plan, options.story, options.journals, options.why)
    if options.everywhere:
        return _everywhere(options.jobs, options.points, options.stop_after)
    if options.seed is not None:
        return _one(options)
    first, _, last = options.seeds.partition(":")
    return _many(range(int(first), int(last)), options.profile, options.jobs, options.stop_after)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulator",
        description="Run simulated clusters under seeded faults, and check every promise.",
    )
    parser.add_argument("--seeds", default="0:300", help="first:last, the last not included")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--story", action="store_true", help="tell what happened, line by line")
    parser.add_argument(
        "--journals", type=Path, metavar="DIR", help="keep the nodes' journals there"
    )
    parser.add_argument(
        "--why", default="", metavar="NODE:LINE", help="how it came to that line of a journal"
    )
    parser.add_argument("--shrink", action="store_true", help="find a shorter story first")
    parser.add_argument("--profile", default="", choices=["", *PROFILES], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--stop-after", type=int, default=10, help="failing runs; 0: never")
    parser.add_argument("--everywhere", action="store_true", help="lose the leader at every point")
    parser.add_argument("--points", type=int, default=0, help="of each story at most; 0: all")
    parser.add_argument("--case", default="", metavar="NAME", help="one of those runs only")
    return parser


# One seed.


def _one(options: argparse.Namespace) -> int:
    plan = make_plan(options.seed, options.profile)
    if options.shrink:
        violations = simulate(plan).violations
        plan = shrink(plan, violations[0].checker) if violations else plan
    return _tell(plan, options.story, options.journals, options.why)


def _tell(plan: Plan, story: bool, journals: Path | None = None, why: str = "") -> int:
    """Play a plan, and tell what happened; with a story, also how it came to its end."""
    with TemporaryDirectory(prefix="holdfast-journals-") as passing:
        folder = Path(passing) if journals is None else journals
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.jsonl")):
            _parser().error(f"--journals {folder}: it holds journals already; name another folder")
        is_kept = story or journals is not None or why
        run = simulate(plan, story=story, journals=folder if is_kept else None)
        way = _way(folder, why) if story or why else []
    _print_plan(plan)
    for line in (*run.story, *way):
        print(line)
    for violation in run.violations:
        print(f"BROKEN {violation}")
    print(f"{run.virtual_s:.0f} virtual seconds; {len(run.violations)} broken promises")
    return 1 if run.violations else 0


def _way(folder: Path, wanted: str) -> list[str]:
    """How it came to a line of the nodes' journals; to the end of the job if none is named."""
    journals = [journal.read(path) for path in sorted(folder.glob("*.jsonl"))]
    try:
        line = explaining.step_named(wanted) if wanted else explaining.the_end(journals)
        lines = explaining.story(journals, line) if line is not None else []
    except (KeyError, ValueError):
        _parser().error(f"--why {wanted}: no journal has such a line; one is named NODE:NUMBER")
    return ["how it came to that:", *(f"  {line}" for line in lines)] if lines else []


def _print_plan(plan: Plan) -> None:
    config = plan.config
    how = "embedded coordinator" if plan.embedded else f"{plan.register.kind} register"
    print(
        f"seed {plan.seed}, {plan.profile}: {len(plan.hosts)} hosts, "
        f"{config.min_nodes} to {config.max_nodes} nodes, {how}, lease {config.leases.lease_s:g} s,"
        f" max_restarts {config.restarts.max_restarts}, healed at {plan.heal_at:.1f} s"
    )
    for number, host in enumerate(plan.hosts):
        if host.start_at > 1.0:
            print(f"  host {number} starts at {host.start_at:.2f} s")
    for fault in plan.faults:
        print(f"  {fault}")
    if plan.strike is not None:
        print(f"  {plan.strike}")


# Many runs.

Failing = tuple[str, str]
Work = TypeVar("Work")


class Progress:
    """How far it is, told every few seconds."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._began = self._said = time.monotonic()
        self.done = 0
        self.failing: list[Failing] = []

    def add(self, count: int, found: list[Failing]) -> None:
        self.done += count
        self.failing += found
        for name, text in found:
            print(f"{name} fails: {text}", flush=True)
        now = time.monotonic()
        if now - self._said >= PROGRESS_EVERY_S:
            self._said = now
            rate = self.done / (now - self._began)
            text = f"{self.done} of {self._total} {self._what}, {rate:.0f} a second"
            print(f"{text}, {len(self.failing)} failing", file=sys.stderr, flush=True)

    def finish(self) -> None:
        took = time.monotonic() - self._began
        text = f"{self.done} {self._what} in {took:.1f} s, {len(self.failing)} failing"
        print(text, flush=True)


def _go_through(
    batches: list[list[Work]],
    run: Callable[[list[Work]], list[Failing]],
    progress: Progress,
    options: tuple[int, int],
) -> None:
    """Run all batches in so many processes, until so many runs have failed."""
    jobs, stop_after = options
    for size, found in _results(batches, run, jobs):
        progress.add(size, found)
        if stop_after and len(progress.failing) >= stop_after:
            break
    progress.finish()


def _results(
    batches: list[list[Work]], run: Callable[[list[Work]], list[Failing]], jobs: int
) -> Iterator[tuple[int, list[Failing]]]:
    sizes = iter([len(batch) for batch in batches])
    if jobs <= 1:
        for batch in batches:
            yield next(sizes), run(batch)
        return
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for found in pool.imap(run, batches):
            yield next(sizes), found


def _in_batches(works: Sequence[Work]) -> list[list[Work]]:
    return [list(works[start : start + BATCH]) for start in range(0, len(works), BATCH)]


# Many seeds.

Seed = tuple[int, str]


def _run_seeds(seeds: list[Seed]) -> list[Failing]:
    failing = []
    for seed, profile in seeds:
        run = simulate(make_plan(seed, profile))
        if run.violations:
            failing.append((f"seed {seed}", str(run.violations[0])))
    return failing


def _many(seeds: range, profile: str, jobs: int, stop_after: int) -> int:
    progress = Progress(len(seeds), "seeds")
    batches = _in_batches([(seed, profile) for seed in seeds])
    _go_through(batches, _run_seeds, progress, (jobs, stop_after))
    failing = sorted(int(name.removeprefix("seed ")) for name, _ in progress.failing)
    for seed in failing[:SHRUNK]:
        _explain(seed, profile)
    return 1 if failing else 0


# A leader lost at every point.


def _run_cases(cases: list[everywhere.Case]) -> list[Failing]:
    failing = []
    for case in cases:
        run = case.play()
        if run.violations:
            failing.append((str(case), str(run.violations[0])))
    return failing


def _everywhere(jobs: int, points: int, stop_after: int) -> int:
    cases = list(everywhere.cases(at_most=points))
    counted = Counter(case.story for case in cases)
    reached = {(case.story, case.store, case.point) for case in cases}
    points_of = Counter(story for story, _, _ in reached)
    for story, count in counted.items():
        print(f"{story}: {points_of[story]} points, {count} runs", flush=True)
    progress = Progress(len(cases), "runs")
    _go_through(_in_batches(cases), _run_cases, progress, (jobs, stop_after))
    for name, _ in progress.failing[:SHRUNK]:
        print()
        _tell(everywhere.Case.named(name).plan(), story=True)
        print(f"replay: python -m tools.simulator --case '{name}' --story")
    return 1 if progress.failing else 0


def _explain(seed: int, profile: str) -> None:
    """A short story that breaks the same promise, and how to see it again."""
    plan = make_plan(seed, profile)
    checker = simulate(plan).violations[0].checker
    plan = shrink(plan, checker)
    run: Run = simulate(plan, story=True)
    print()
    _print_plan(plan)
    for line in run.story[-60:]:
        print(line)
    for violation in run.violations:
        print(f"BROKEN {violation}")
    named = f" --profile '{profile}'" if profile else ""
    print(f"replay: python -m tools.simulator --seed {seed}{named} --shrink --story")


if __name__ == "__main__":
    sys.exit(main())
