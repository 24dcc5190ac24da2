"""The end of a job in a few lines: the first failure, its cause, and the decision.

The length is bounded, whatever the job went through: of every long text, the
last lines are shown (of further failures, the first) and the rest is counted. Much of it comes
from other machines: nothing in it begins a line of its own, or moves a cursor.
"""

from __future__ import annotations

import re
import time

from holdfast.core.policy.root_cause import early_ends, lost_a_peer, shortened
from holdfast.core.protocol.bounds import clean, clean_lines, one_line_each
from holdfast.core.protocol.model import Blame, Failure, Outcome

MAX_TRACEBACK_LINES = 40
MAX_STDERR_LINES = 20
MAX_OTHERS = 8
MAX_LINE = 500

RANK_PREFIX = r"^\[rank\d+\]: ?"
"""PyTorch's prefix of each line of a traceback, from `init_process_group` on."""


def render(outcome: Outcome, journal: str | None) -> str:
    """The report as text, ending in a newline; empty if all went well."""
    if outcome.verdict == "succeeded":
        return ""
    lines = [f"holdfast: {headline(outcome)}"]
    if outcome.blame is not None:
        lines += _blame(outcome.blame)
    if outcome.cause is not None:
        lines += _cause(outcome.cause)
    lines += _others(outcome.others, outcome.others_untold)
    if journal is not None:
        lines += ["", f"  journal: {journal}"]
    return one_line_each(lines)


def headline(outcome: Outcome) -> str:
    """How the job ended, in one line."""
    verdicts = {
        "succeeded": "the job succeeded",
        "failed": "the job failed",
        "interrupted": "the job was interrupted",
        "not_formed": "the group could not form",
    }
    verdict = verdicts[outcome.verdict]
    if outcome.asked == "node":
        verdict = "this node has left the job, which goes on"
    return f"{verdict}: {clean(outcome.reason)}"


def _blame(blame: Blame) -> list[str]:
    """In short: the cause, its origin, how certain it is, and the next thing to do."""
    from holdfast.core.policy.kinds import advice_for

    lines = ["", f"  Cause: {clean(blame.kind)}, {blame.certainty}"]
    lines.append(f"    who      {clean(blame.who)}")
    if blame.why:
        lines.append(f"    why      {shortened(clean(blame.why), MAX_LINE)}")
    if advice := advice_for(blame.kind):
        lines.append(f"    next     {advice}")
    return lines


def _cause(cause: Failure) -> list[str]:
    lines = ["", "  First observed failure"]
    lines.append(f"    who      rank {cause.rank} (local rank {cause.local_rank}, {cause.role})")
    lines.append(f"    where    {cause.host}, pid {cause.pid}")
    if cause.wall_time:
        clock = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(cause.wall_time))
        lines.append(f"    when     {clock}")
    lines.append(f"    how      {_how(cause)}")
    if cause.error.message:
        first = next(iter(clean_lines(cause.error.message).splitlines()), "")
        lines.append(f"    error    {shortened(first, MAX_LINE)}")
    if cause.ended_before:
        lines.append(f"    before   {early_ends(cause)}")
    if cause.error.traceback:
        lines += ["", *_indented(cause.error.traceback, MAX_TRACEBACK_LINES)]
    tail = _without(cause.stderr_tail, cause.error.traceback)
    if tail:
        lines += ["", "    last lines of stderr:", *_indented(tail, MAX_STDERR_LINES)]
    return lines


def _without(tail: str, traceback: str) -> str:
    """The end of stderr without the traceback, which was printed there too."""
    shown = {"", *traceback.splitlines()}
    return "\n".join(
        line
        for line in tail.splitlines()
        if line.strip() and line not in shown and re.sub(RANK_PREFIX, "", line) not in shown
    )


def _how(cause: Failure) -> str:
    from holdfast.core.policy.kinds import STUCK

    if not cause.status.is_known:
        return "as reported by the program that runs it"
    if cause.status.signal is None:
        return f"ended with exit code {cause.status.code}"
    if cause.ended_for == STUCK:
        return "it has not ended: not even SIGKILL reaches it"
    words = f"killed by {cause.status}"
    return f"{words}; {clean(cause.out_of_memory)}" if cause.out_of_memory else words


def _others(others: tuple[Failure, ...], untold: int) -> list[str]:
    if not others:
        return []
    lines = ["", "  Then"]
    for other in others[:MAX_OTHERS]:
        fate = "stopped by Holdfast" if other.stopped_by_us else "failed too"
        if not other.stopped_by_us and lost_a_peer(other):
            fate = "failed because it lost a peer"
        lines.append(f"    rank {other.rank} on {other.host}: {fate} ({other.status})")
    more = max(0, len(others) - MAX_OTHERS) + untold
    if more:
        lines.append(f"    and {more} more")
    return lines


def _indented(text: str, limit: int) -> list[str]:
    lines = clean_lines(text.rstrip()).splitlines()
    cut = [f"      … {len(lines) - limit} lines left out"] if len(lines) > limit else []
    return cut + [f"      {line[:MAX_LINE]}" for line in lines[-limit:]]
