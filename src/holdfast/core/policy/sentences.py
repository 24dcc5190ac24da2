"""A node's messages to its user, as sentences made of facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.protocol.model import Assignment

SPAWNER_SILENT = "the spawner, the parent of all workers here, does not answer: killing it"
NO_SUBREAPER = "this kernel has no subreaper: processes that workers detach may outlive the job"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def seat(assignment: Assignment) -> str:
    first, last = assignment.workers[0].rank, assignment.workers[-1].rank
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    where = f"node {assignment.group_rank + 1} of {assignment.group_size}"
    return f"round {assignment.round}: {where}, {ranks} of {assignment.world_size}"


def round_ends(number: int, reason: str, left: int, has_failed: bool) -> str:
    """The end of a round, and its effect on this node, where `left` workers still run."""
    stopping = ""
    if left and has_failed:
        stopping = (
            f"; stopping the other {'worker' if left == 1 else f'{left} workers'} of this node"
        )
    elif left:
        stopping = f"; stopping {_count(left, 'worker')} of this node"
    return f"round {number} ends: {reason}{stopping}"


def no_contact(reason: str, is_done: bool, has_job: bool, limit_s: float | None) -> str:
    """The coordinator cannot be reached, and is dialled again for up to `limit_s`."""
    again = "reconnecting" if has_job else "trying until it answers"
    if has_job and limit_s is not None:
        again += f", for up to {limit_s:g} s (--join-timeout)"
    if is_done:
        again = "all workers of this node are done; waiting for that to be recorded"
    return f"no contact with the coordinator: {reason}; {again}"


def passed_on(running: int, grace_s: float, is_interrupt: bool) -> str:
    """The effect of a signal; follows a sentence about it."""
    if not running:
        return ""
    again = "; Ctrl-C again ends at once" if is_interrupt else ""
    return f"; passing it on to {_count(running, 'worker')}, {grace_s:g} s of grace{again}"


def others_wait(others: int, limit_s: float) -> str:
    """Ending one node of a job that needs all of its nodes does not end the job."""
    nodes = "the other node waits" if others == 1 else f"the other {others} nodes wait"
    there = "there" if others == 1 else "on each of them"
    return (
        f"{nodes} up to {limit_s:g} s (--join-timeout) for another node in place of this one;"
        f" Ctrl-C {there} ends it"
    )


def not_stopped(ranks: Sequence[int], limit_s: float) -> str:
    which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"{which} did not stop within {limit_s:g} s (--shutdown-timeout): killing"


def left_behind(processes: Sequence[str], forbidden: Sequence[str]) -> Iterator[str]:
    """Processes that outlive the node; those that are `forbidden` to it may well go on."""
    if processes or not forbidden:
        named = ", ".join(processes) or "a process"
        yield f"{named} did not die from SIGKILL (stuck in the kernel?); going on without it"
    if forbidden:
        words = "belongs to another user: it could not be ended, and may still run"
        yield f"{', '.join(forbidden)} {words}; going on without it"
