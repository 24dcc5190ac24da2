"""What a client of a running job tells its users, as functions of facts."""

from __future__ import annotations

from collections.abc import Sequence

NO_COORDINATOR = "the coordinator did not answer"


def silent(patience_s: float) -> str:
    return f"the job has not answered for {patience_s:g} s"


def no_own_job(others: Sequence[str]) -> str:
    """No job here; the `others` are users who may have some."""
    hint = f"; {', '.join(others)} may have some" if others else ""
    return f"no job of yours runs on this machine{hint}"


def no_such_job(wanted: str, running: Sequence[str]) -> str:
    return f"no job called {wanted!r} runs on this machine: {', '.join(running)}"


def several_jobs(running: Sequence[str]) -> str:
    return f"several jobs run on this machine, so name one: {', '.join(running)}"


def jobs_of_several(users: Sequence[str], wanted: str) -> str:
    """None of the users is the one who asks."""
    return f"{' and '.join(users)} each have a job called {wanted!r}: ask as the one you mean"


def just_ended(job: str) -> str:
    return f"{job} has just ended"


def remote_client(address: str, claimed: str) -> str:
    """The name of a client on another machine, which nobody can check."""
    return f"someone at {address} (says it is {claimed})"
