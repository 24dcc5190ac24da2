"""`python -m benchmarks`: Holdfast beside torchrun, in turn, in one run."""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    both_apis,
    floor,
    inside_torchrun,
    launching,
    nodes,
    recovery,
    register_cost,
    register_load,
    results,
    scale,
    stacks,
    standing_cost,
    takeover,
    tee,
)
from benchmarks.figures import Figure
from benchmarks.jobs import RunFailed, become_subreaper
from benchmarks.launchers import CONTENDERS
from benchmarks.session import Session

REPEATS = 5
WARM_UP_DEADLINE_S = 120.0
MEASURES: dict[str, Callable[[Session], list[Figure]]] = {
    "floor": floor.floor,
    "a": launching.launch_nothing,
    "b": launching.launch_group,
    "c": recovery.recover,
    "d": standing_cost.memory,
    "e": standing_cost.idle,
    "f": tee.tee,
    "g": nodes.lose_node,
    "h": nodes.gain_node,
    "i": nodes.start_alone,
    "j": scale.crowd,
    "k": takeover.takeover,
    "l": register_load.load,
    "m": register_cost.cost,
    "n": both_apis.both_apis,
    "o": inside_torchrun.meet_inside_torchrun,
    "p": stacks.stacks,
}


def main() -> int:
    """Measure, print, store; 0 if every target that was measured is reached."""
    options = _options()
    become_subreaper()
    # SIGTERM unwinds as Control-C does, so that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load_before = os.getloadavg()[0]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.scratch) as scratch:
        session = Session(options.repeats, Path(scratch))
        prepare(session)
        for measure in options.only:
            figures += MEASURES[measure](session)
    for rows in results.tables(figures):
        print("\n" + results.as_text(rows))
    whole = options.only == list(MEASURES) and options.repeats >= REPEATS
    if whole or options.store:
        made_under = results.conditions(options.repeats, date, load_before)
        results.store(results.Run(made_under, figures), options.results)
        print(f"\nStored in {options.results}")
    return 1 if any(figure.verdict() == "not reached" for figure in figures) else 0


def prepare(session: Session) -> None:
    """Give both the same start: compiled modules, and files that are in memory already.

    pip compiles what it installs, torch for one; a package installed from its working copy
    is compiled by nobody, and is compiled here.
    """
    spec = importlib.util.find_spec("holdfast")
    assert spec is not None, "holdfast is not installed beside this interpreter"
    for place in spec.submodule_search_locations or ():
        compileall.compile_dir(place, quiet=1)
    for launcher in CONTENDERS:
        session.say(f"warming up: {launcher.name}")
        with session.job(launcher, launcher.command(2, "first_all_reduce.py")) as job:
            job.await_success(WARM_UP_DEADLINE_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each sample (%(default)s)")
    parser.add_argument(
        "--only", type=_measures, default=list(MEASURES), metavar="a,b,…", help="of: %(default)s"
    )
    parser.add_argument("--store", action="store_true", help="keep the results of a partial run")
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="where to store")
    parser.add_argument("--scratch", type=Path, help="where jobs write (the temporary folder)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def _measures(text: str) -> list[str]:
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in MEASURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MEASURES)}")
    return wanted


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunFailed as failure:
        sys.exit(f"benchmarks: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
