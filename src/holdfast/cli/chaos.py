"""`holdfast chaos`: harm a running job on purpose, and tell how it got over it."""

from __future__ import annotations

import random
import re
from pathlib import Path

from holdfast.cli.fault_injection import FaultInjector, FaultSchedule, InjectionLines, summary
from holdfast.cli.job_connection import FINDING, connect, job_arguments, take_values
from holdfast.cli.status_view import duration
from holdfast.cli.verbs import verb
from holdfast.core.policy.storms import HarmRate, storm
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import Harm

HELP = f"""\
Usage: holdfast chaos [JOB] [--kill-worker EVERY] [--pause-worker EVERY] [--kill-node EVERY]
                      [--for TIME] [--pause-time TIME] [--seed N]
       holdfast chaos --demo [--for TIME] [the same]

Harms a job that was started with --allow-chaos, at random moments, and tells at the end what
was done and how long the job took to step again each time. EVERY is the mean time between two
strokes: 30s, 5m, or 1/30s.

  --kill-worker EVERY   SIGKILL to a worker
  --pause-worker EVERY  SIGSTOP to a worker, and SIGCONT after --pause-time [5s]
  --kill-node EVERY     SIGKILL to an agent, never to that of the coordinator's node if others
                        are there; whoever started it has to start it again
  --for TIME            how long [1m]
  --seed N              the same storm again
  --demo                on a job of its own: three agents with two workers each on this machine,
                        which are started again when they are killed, and at the end a report:
                        where the time went, and whether anything was lost or left behind

{FINDING}"""
VALUES = ("--kill-worker", "--pause-worker", "--kill-node", "--for", "--pause-time", "--seed")
RATES: dict[str, Harm] = {
    "--kill-worker": "kill worker",
    "--pause-worker": "pause worker",
    "--kill-node": "kill node",
}
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEMO: dict[str, str] = {"--kill-worker": "8s", "--pause-worker": "25s", "--kill-node": "25s"}
"""The storm of `--demo`, unless another one is asked for."""


@verb(HELP)
def chaos(words: list[str]) -> int:
    values, rest = take_values(words, VALUES)
    request = job_arguments(rest, ("--demo",))
    is_demo = "--demo" in request.flags
    if is_demo and not any(values[name] for name in RATES):
        values |= {name: [every] for name, every in DEMO.items()}
        values["--pause-time"] = values["--pause-time"] or ["2s"]
    pause_s = seconds(_last(values["--pause-time"], "5s"))
    rates = [
        HarmRate(what, seconds(text), pause_s if what == "pause worker" else 0.0)
        for name, what in RATES.items()
        for text in values[name]
    ]
    if not rates:
        raise UsageError("what harm is to be done?", "for example: --kill-worker 30s --for 5m")
    length_s = seconds(_last(values["--for"], "1m"))
    seed = whole_number(0)(_last(values["--seed"], str(random.SystemRandom().randrange(10**6))))
    dice = random.Random(seed)
    print(f"a storm of {duration(length_s)}, seed {seed}", flush=True)
    schedule = FaultSchedule(storm(rates, length_s, dice), length_s, dice)
    if is_demo:
        return _demo(request.name, schedule)
    with connect(request) as job:
        injector = FaultInjector(job, InjectionLines())
        settled = injector.inject(schedule)
    print(f"\n{summary(injector.told)}")
    return exit_status.SUCCEEDED if settled else exit_status.FAILED


def _demo(name: str, schedule: FaultSchedule) -> int:
    if name:
        raise UsageError(f"--demo has a job of its own, not {name!r}", "leave the name out")
    from holdfast.cli import chaos_demo, demo_program
    from holdfast.cli.demo_job import DemoProgram

    program = DemoProgram(Path(demo_program.__file__))
    result = chaos_demo.run(program, schedule)
    print(chaos_demo.render(result), end="", flush=True)
    return exit_status.SUCCEEDED if result.is_well else exit_status.FAILED


def _last(given: list[str], default: str) -> str:
    return given[-1] if given else default


def seconds(text: str) -> float:
    """`30s`, `5m`, `1/30s` or `90`. Raises `UsageError`."""
    found = re.fullmatch(r"(?:1/)?(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if found is None or float(found[1]) <= 0.0:
        raise UsageError(f"{text!r} is no time", "write 30s, 5m or 2h")
    return float(found[1]) * UNITS[found[2] or ""]
