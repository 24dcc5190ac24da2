"""`holdfast stacks`: where the workers of the jobs on this machine are, right now."""

from __future__ import annotations

import sys

from holdfast.core.protocol import exit_status

HELP = """\
Usage: holdfast stacks [RUN]

Shows where every worker on this machine is right now. Workers in the same place are shown
together, so that the odd one stands out. Nothing is stopped and no debugger is needed. RUN
is a job's name (--rdzv-id, or what `holdfast run` called it); without one, all your jobs
are asked.

Only this machine's workers are asked: on several nodes, run it on each of them. The full
stacks go into a file beside the job's logs; its path is printed.
"""


def stacks(words: list[str]) -> int:
    """The verb. Returns the exit status: 0 if a job answered, 1 if none runs, 2 for a mistake."""
    if any(word in ("-h", "--help") for word in words):
        print(HELP, end="")
        return exit_status.SUCCEEDED
    if len(words) > 1 or any(word.startswith("-") for word in words):
        return _complain(
            f"`holdfast stacks` takes the name of one job, not {words[-1]!r}",
            "`holdfast stacks`, or `holdfast stacks RUN` with the name of a job",
        )
    from holdfast.processes.lookout.asking import ask, listening_agents

    wanted = words[0] if words else ""
    answers = [ask(channel, wanted) for channel in listening_agents().values()]
    told = [one for one in answers if one is not None]
    meant = [one for one in told if one.is_meant]
    if not meant and wanted:
        runs = ", ".join(sorted(one.run_id for one in told)) or "none of yours"
        return _complain(f"no job called {wanted!r} runs on this machine", f"running: {runs}")
    if not meant:
        print("holdfast: no job of yours runs on this machine", file=sys.stderr)
        return exit_status.FAILED
    for one in meant:
        print(f"{one.run_id}: {one.words}")
        if one.file:
            print(f"  in full: {one.file}")
    return exit_status.SUCCEEDED


def _complain(message: str, hint: str) -> int:
    print(f"holdfast: {message}\nhint: {hint}", file=sys.stderr)
    return exit_status.USAGE
