"""Whether a failed round is tried again.

Rules, in this order
1. A failure that states that a restart cannot help (`holdfast.NonRetryable`, a
   listed exit code) ends the job.
2. A program that cannot begin (a syntax error, a missing module or file, an argument that it does
   not know) ends the job before its first progress, if all that failed agree. One rank of
   several, or one host of several, may itself be at fault: two of them have to agree. In a
   job of one host a rank that reports it again in the next round counts as another.
3. The same cause `same_cause_limit` times in a row, without progress between, ends it.
4. More failures than `max_restarts` ends it; with a window, only those inside it count.
5. Otherwise the job restarts: at once after the first failure, after a growing pause when
   the rounds before it made no progress either.

Progress is the steps that workers report; where none ever did, a round that lasted
`progress_after_s` counts as progress. Every decision carries its reason in words.

The pause is spread by ±25 % so that many jobs that failed together (a switch, a file
server) do not come back together. The spread is a hash of the job and the count: the
core draws no random numbers, and a replay decides the same.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.policy import sentences
from holdfast.core.policy.config import RestartPolicy
from holdfast.core.protocol.model import Failure


class RoundFailure(Struct, frozen=True):
    """A round that ended because a worker failed."""

    at: float
    lasted_s: float
    progressed: bool | None
    """The step that the workers reported, or None if they report none."""
    fingerprint: str
    """Equal for equal causes; empty where the failure says nothing about its cause."""
    exit_code: int | None
    non_retryable: bool
    hopeless: str = ""
    """Why the program cannot begin, if all failures agree."""
    witnesses: tuple[str, ...] = ()
    """Hosts that report it; in a job of one host its ranks."""
    witnesses_needed: int = 2


class Restart(Struct, frozen=True):
    """Try again, after this pause."""

    delay_s: float
    reason: str


class GiveUp(Struct, frozen=True):
    """End the job."""

    reason: str


def decide(
    policy: RestartPolicy, history: tuple[RoundFailure, ...], now: float, job: str
) -> Restart | GiveUp:
    """Judge the last entry of `history`, the job's failed rounds in order."""
    latest = history[-1]
    if latest.non_retryable:
        return GiveUp(sentences.MARKED_HOPELESS)
    if latest.exit_code is not None and latest.exit_code in policy.non_retryable_exit_codes:
        return GiveUp(sentences.not_retryable(latest.exit_code))
    if _cannot_begin(policy, history):
        return GiveUp(sentences.hopeless(latest.hopeless))
    alike = _same_cause_in_a_row(policy, history)
    if policy.same_cause_limit and alike >= policy.same_cause_limit:
        return GiveUp(sentences.same_again(alike, policy.same_cause_limit))
    counted = _counted(policy, history, now)
    if counted > policy.max_restarts:
        return GiveUp(sentences.restarts_used(policy.max_restarts, policy.window_s))
    delay_s = _delay(policy, history, job)
    words = sentences.restarting(delay_s, counted, policy.max_restarts, policy.window_s)
    return Restart(delay_s, words)


def forgotten(at: float) -> RoundFailure:
    """A failure of which only the charge is known: it counts, without a cause."""
    return RoundFailure(
        at, lasted_s=0.0, progressed=True, fingerprint="", exit_code=None, non_retryable=False
    )


def fingerprint(failure: Failure) -> str:
    """Text that two failures with the same cause have in common.

    Addresses and numbers differ from run to run and are masked. A bare signal from outside
    tells nothing about its cause, unless the kernel ran out of memory.
    """
    if failure.error.message:
        first_line = failure.error.message.splitlines()[0]
        return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", first_line)
    if failure.out_of_memory:
        return "out of memory"
    if failure.status.signal in (None, 6, 7, 8, 11):
        return str(failure.status)
    return ""


PROGRAM_ERRORS = (
    (r"(?:SyntaxError|IndentationError|TabError): .*\((?!<).*, line \d+\)",
     "the program has a syntax error"),
    (r"ModuleNotFoundError: No module named", "a module is missing"),
    (r"ImportError: attempted relative import", "the program cannot be imported like this"),
    (r"FileNotFoundError: \[Errno 2\]", "a file is missing that the program needs"),
)  # fmt: skip
"""By the first line of an exception. What is parsed from a string may be data, which can change."""
LAST_WORDS = (
    (2, r"can't open file .*Errno 2", "there is no such program"),
    (2, r"\S.{0,200}: error: |Error: No such option", "the program does not take its arguments"),
    (1, r"\S+: No module named ", "there is no such module"),
)
"""By the exit code and the last line of stderr, where there is no exception."""


def hopeless(failed: Sequence[Failure]) -> str:
    """Why the program cannot even begin, if all these failures agree on it."""
    reasons = {_why_hopeless(failure) for failure in failed}
    return reasons.pop() if len(reasons) == 1 else ""


def is_alike(one: Failure, other: Failure) -> bool:
    """Whether both failures agree; a worker that was stopped meanwhile agrees."""
    return _why_hopeless(one) == _why_hopeless(other) != ""


def _why_hopeless(failure: Failure) -> str:
    first = next(iter(failure.error.message.splitlines()), "")
    if first:
        return next((why for words, why in PROGRAM_ERRORS if re.match(words, first)), "")
    last = next(reversed(failure.stderr_tail.rstrip().splitlines()), "")
    code = failure.status.code
    return next((why for of, words, why in LAST_WORDS if of == code and re.search(words, last)), "")


def made_progress(policy: RestartPolicy, failed: RoundFailure) -> bool:
    if failed.progressed is not None:
        return failed.progressed
    return failed.lasted_s >= policy.progress_after_s


def _cannot_begin(policy: RestartPolicy, history: tuple[RoundFailure, ...]) -> bool:
    """Rule 2."""
    latest = history[-1]
    if not latest.hopeless or any(made_progress(policy, failed) for failed in history):
        return False
    seen: set[str] = set()
    for failed in reversed(history):
        if (failed.hopeless, failed.fingerprint) != (latest.hopeless, latest.fingerprint):
            break
        seen.update(failed.witnesses)
    return len(seen) >= latest.witnesses_needed


def _same_cause_in_a_row(policy: RestartPolicy, history: tuple[RoundFailure, ...]) -> int:
    latest = history[-1]
    if not latest.fingerprint:
        return 0
    count = 0
    for failed in reversed(history):
        if failed.fingerprint != latest.fingerprint or made_progress(policy, failed):
            break
        count += 1
    return count


def _counted(policy: RestartPolicy, history: tuple[RoundFailure, ...], now: float) -> int:
    if policy.window_s is None:
        return len(history)
    return sum(1 for failed in history if failed.at > now - policy.window_s)


def _delay(policy: RestartPolicy, history: tuple[RoundFailure, ...], job: str) -> float:
    fruitless = 0
    for failed in reversed(history):
        if made_progress(policy, failed):
            break
        fruitless += 1
    if fruitless < 2:
        return 0.0
    pause_s = min(policy.backoff_first_s * 2.0 ** min(fruitless - 2, 60), policy.backoff_max_s)
    spread = zlib.crc32(f"{job}/{len(history)}".encode()) / 2**32
    return pause_s * (0.75 + 0.5 * spread)
