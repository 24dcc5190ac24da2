"""The simulator's command: many seeds, or the story of one.

python -m holdfast.testing --seeds 0:20000 --jobs 2
python -m holdfast.testing --seed 1234 --story
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from holdfast.testing import PROFILES, Run, make_plan, shrink, simulate
from holdfast.testing.plan import Plan

PROGRESS_EVERY_S = 2.0
BATCH = 20
SHRUNK = 3
"""How many failing seeds are shrunk; the others are only named."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.profile, options.story, options.shrink)
    first, _, last = options.seeds.partition(":")
    return _many(range(int(first), int(last)), options.profile, options.jobs, options.stop_after)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing",
        description="Run simulated clusters under seeded faults, and check every promise.",
    )
    parser.add_argument("--seeds", default="0:300", help="first:last, the last not included")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--story", action="store_true", help="tell what happened, line by line")
    parser.add_argument("--shrink", action="store_true", help="find a shorter story first")
    parser.add_argument("--profile", default="", choices=["", *PROFILES], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--stop-after", type=int, default=10, help="failing seeds; 0: never")
    return parser


# One seed.


def _one(seed: int, profile: str, story: bool, shorter: bool) -> int:
    plan = make_plan(seed, profile)
    run = simulate(plan, story=story)
    if shorter and run.violations:
        plan = shrink(plan, run.violations[0].checker)
        run = simulate(plan, story=story)
    _print_plan(plan)
    for line in run.story:
        print(line)
    for violation in run.violations:
        print(f"BROKEN {violation}")
    print(f"{run.virtual_s:.0f} virtual seconds; {len(run.violations)} broken promises")
    return 1 if run.violations else 0


def _print_plan(plan: Plan) -> None:
    config = plan.config
    how = "embedded coordinator" if plan.embedded else "shared register"
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


# Many seeds.

Failing = tuple[int, str]
Batch = tuple[tuple[int, ...], str]


def _run_batch(batch: Batch) -> list[Failing]:
    seeds, profile = batch
    failing = []
    for seed in seeds:
        run = simulate(make_plan(seed, profile))
        if run.violations:
            failing.append((seed, str(run.violations[0])))
    return failing


def _many(seeds: range, profile: str, jobs: int, stop_after: int) -> int:
    batches = [
        (tuple(seeds[start : start + BATCH]), profile) for start in range(0, len(seeds), BATCH)
    ]
    began = said = time.monotonic()
    done = 0
    failing: list[Failing] = []
    for size, found in _results(batches, jobs):
        done += size
        for seed, text in found:
            print(f"seed {seed} fails: {text}", flush=True)
        failing += found
        now = time.monotonic()
        if now - said >= PROGRESS_EVERY_S:
            said = now
            rate = done / (now - began)
            text = f"{done} of {len(seeds)} seeds, {rate:.0f} a second, {len(failing)} failing"
            print(text, file=sys.stderr, flush=True)
        if stop_after and len(failing) >= stop_after:
            break
    took = time.monotonic() - began
    print(f"{done} seeds in {took:.1f} s, {len(failing)} failing", flush=True)
    for seed, _ in sorted(failing)[:SHRUNK]:
        _explain(seed, profile)
    return 1 if failing else 0


def _results(batches: list[Batch], jobs: int) -> Iterator[tuple[int, list[Failing]]]:
    if jobs <= 1:
        for batch in batches:
            yield len(batch[0]), _run_batch(batch)
        return
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        sizes = iter([len(batch[0]) for batch in batches])
        for found in pool.imap(_run_batch, batches):
            yield next(sizes), found


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
    print(f"replay: python -m holdfast.testing --seed {seed}{named} --shrink --story")


if __name__ == "__main__":
    sys.exit(main())
