"""`holdfast chaos`: inject faults into a running job, and report how it recovers."""

from __future__ import annotations

import random
from argparse import Namespace
from pathlib import Path

from holdfast.cli.fault_injection import FaultInjector, FaultSchedule, InjectionLines, summary
from holdfast.cli.job_connection import connect, job_parser
from holdfast.cli.time_arguments import duration
from holdfast.cli.verbs import verb
from holdfast.core.policy.fault_schedule import FaultRate, plan_faults
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import FaultKind
from holdfast.observe.summary import length

RATES: dict[str, FaultKind] = {
    "kill_worker": "kill worker",
    "pause_worker": "pause worker",
    "kill_node": "kill node",
}
DEMO = {"kill_worker": 8.0, "pause_worker": 25.0, "kill_node": 25.0}
"""The default mean intervals of `--demo`."""


def interval(text: str) -> float:
    """A mean time between two faults: `30s`, or `1/30s`. Raises `UsageError`."""
    return duration(text.strip().removeprefix("1/"))


PARSER = job_parser(
    "chaos",
    "Inject faults into a job that was started with --allow-chaos, at random moments, and tell at "
    "the end what was done and how long the job took to step again each time. EVERY is the mean "
    "time between two faults: 30s, 5m, or 1/30s.",
)
PARSER.add_argument("--kill-worker", type=interval, metavar="EVERY", help="SIGKILL to a worker")
PARSER.add_argument(
    "--pause-worker",
    type=interval,
    metavar="EVERY",
    help="SIGSTOP to a worker, and SIGCONT after --pause-time",
)
PARSER.add_argument(
    "--kill-node",
    type=interval,
    metavar="EVERY",
    help="SIGKILL to an agent, never to that of the coordinator's node if others are there; "
    "whoever started it has to start it again",
)
PARSER.add_argument("--for", dest="length", type=duration, default=60.0, metavar="TIME",
                    help="how long [1m]")  # fmt: skip
PARSER.add_argument("--pause-time", type=duration, metavar="TIME", help="of --pause-worker [5s]")
PARSER.add_argument("--seed", type=whole_number(0), metavar="N", help="the same faults again")
PARSER.add_argument(
    "--demo",
    action="store_true",
    help="on a job of its own: three agents with two workers each on this machine, which are "
    "started again when they are killed, and at the end a report: where the time went, and "
    "whether anything was lost or left behind",
)


@verb(PARSER)
def chaos(asked: Namespace) -> int:
    every = {name: getattr(asked, name) for name in RATES}
    if asked.demo and not any(every.values()):
        every = DEMO
    pause_s = asked.pause_time or (2.0 if asked.demo else 5.0)
    rates = [
        FaultRate(what, every[name], pause_s if what == "pause worker" else 0.0)
        for name, what in RATES.items()
        if every[name]
    ]
    if not rates:
        raise UsageError("choose at least one fault", "for example: --kill-worker 30s --for 5m")
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    dice = random.Random(seed)
    print(f"injecting faults for {length(asked.length)}, seed {seed}", flush=True)
    schedule = FaultSchedule(plan_faults(rates, asked.length, dice), asked.length, dice)
    if asked.demo:
        return _demo(asked.job, schedule)
    with connect(asked) as job:
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
