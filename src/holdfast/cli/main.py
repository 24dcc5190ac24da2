"""The `holdfast` command: finds the verb and hands over.

Kept light: the spawner is started before anything heavy is imported, so that its
interpreter and ours start side by side.
"""

from __future__ import annotations

import os
import sys

from holdfast.core.protocol import exit_status

USAGE = """\
holdfast: the launcher that holds distributed jobs together

Usage: holdfast run [options] SCRIPT [arguments]

  holdfast run         start, supervise, restart and explain the workers of a job
  holdfast run --help  all its options
  holdfast jobs        list your jobs on this machine: those that run, and the last ones
  holdfast status      show a job's status: nodes, ranks, steps, what it waits for
  holdfast top         the same live, worker by worker
  holdfast events      show what has happened to it so far, and as it goes on
  holdfast logs        show what its workers write, on all nodes
  holdfast report      tell what became of a job: its story, and where its time went
  holdfast dashboard   show a job in a browser, live or from its journals
  holdfast stacks      show where all workers of a job are, right now
  holdfast drain       have a node leave its job
  holdfast restart     begin a job's next round, with all workers started again
  holdfast scale       change between how many nodes a job may have
  holdfast save        checkpoint all workers, without stopping
  holdfast stop        end a job
  holdfast chaos       inject faults into a job, to see it recover
  holdfast slurm       submit a job to Slurm, and follow it
  holdfast doctor      say what is wrong with this machine, or with all nodes of a job
  holdfast where       show what was detected about this machine and its scheduler
  holdfast --help      this text
  holdfast --version   the version

The job comes first: holdfast VERB JOB ...

For example: holdfast run --nproc-per-node 4 train.py
"""

VERBS = {
    "jobs": "jobs",
    "status": "status",
    "top": "top",
    "events": "status",
    "logs": "logs",
    "report": "report",
    "dashboard": "dashboard",
    "stacks": "stacks",
    "drain": "operate",
    "restart": "operate",
    "scale": "operate",
    "save": "operate",
    "stop": "operate",
    "chaos": "chaos",
    "slurm": "slurm",
    "doctor": "doctor",
    "where": "where",
}
"""All but `run`, each a function of that name, with the module of `holdfast.cli` that has it."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if not sys.platform.startswith("linux"):
        print("holdfast: this runs on Linux only (it needs pidfd and subreaper)", file=sys.stderr)
        return exit_status.USAGE
    verb = words[0] if words else ""
    if verb == "run":
        if argv is None:
            _die_of_an_interrupt()
        from holdfast.cli.run import run

        if argv is not None:
            return run(words[1:])
        from holdfast.runtime.failing import status_of

        _leave(status_of(lambda: run(words[1:])))
    if verb in VERBS:
        return _call(verb, words[1:])
    if verb in ("--version", "-V"):
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return exit_status.SUCCEEDED
    if verb in ("--help", "-h", "help"):
        print(USAGE, end="")
        return exit_status.SUCCEEDED
    print(f"holdfast: {_unknown(verb)}" if verb else USAGE, end="", file=sys.stderr)
    return exit_status.USAGE


def _call(verb: str, words: list[str]) -> int:
    """One of `VERBS`. An interruption is no success: `holdfast save && scancel …`."""
    from importlib import import_module
    from signal import SIGINT

    try:
        module = import_module(f"holdfast.cli.{VERBS[verb]}")
        return int(getattr(module, verb)(words))
    except KeyboardInterrupt:
        return exit_status.BY_SIGNAL + SIGINT


def _unknown(verb: str) -> str:
    """The message for a word that is no verb: most likely the program to run."""
    meant = "`holdfast --help` lists the commands"
    if not verb.startswith("-"):
        meant = f"to run it, write `holdfast run {verb}`"
    return f"{verb!r} is not a command of holdfast\nhint: {meant}\n"


def _die_of_an_interrupt() -> None:
    """Until there is a job, Ctrl-C just ends us, with no traceback of a half-done import."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(status: int) -> None:
    """End without finalizing the interpreter: that takes a job's time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
