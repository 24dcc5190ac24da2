"""What follows from a round that is over: another one, a charge for a restart, or the end.

Rules
1. A round is judged once, when every member is back or gone.
2. Only a round that ended because a worker failed, and in which no member was lost, is
   charged: the peers of a machine that dies fail first, and the loss is known later. So do the
   peers of a node that has lost the coordinator and stopped its workers.
3. Rounds in a row without progress end the job, whatever ended them.
4. A job that was asked to close ends with the round that it is in.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator.io import CoordinatorEffect, Explain
from holdfast.core.coordinator.round import StoppingRound, ToldRound
from holdfast.core.coordinator.state import CoordinatorState, JobEnd, Unrecorded, name_of
from holdfast.core.policy import restarts, rounds
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.document import brief, fit_outcome
from holdfast.core.protocol.model import EarlyEnd, Outcome

SAID_AFTER_S = 1.0
"""An end that takes longer to be written down is explained."""
ALL_SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)


def settle_round(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Judge the round once nobody is waited for any more."""
    current = state.round
    if not isinstance(current, StoppingRound) or not current.is_over:
        return []
    return _judge(state, current, now)


def _judge(state: CoordinatorState, ended: StoppingRound, now: float) -> list[CoordinatorEffect]:
    """Every member is back or gone: form again, restart or give up."""
    state.round = None
    state.looks.pop("stop", None)
    state.looks.pop("stopping", None)
    state.looks.pop("missing", None)
    if ended.has_run:
        state.former = _who_has_state(state, ended) or state.former
    if not state.holders:
        present = (state.members.get(name) for name in state.former)
        state.holders = tuple(member.info for member in present if member is not None)
    progressed = _note_progress(state, ended, now)
    cause = _with_early_ends(state, rootcause.name(ended.course.failures.values()), ended)
    if state.config.max_nodes > 1:  # Else there is no other host, and nothing of it is loaded.
        from holdfast.core.coordinator import quarantine

        quarantine.judged(state, ended, cause, now)
    if state.closing is not None:
        reason = f"{ended.cause.reason}; {state.closing.reason}"
        return close(state, _failed_or_lost(state, ended, reason, cause))
    if ended.cause.kind == "failure" and cause is not None and not ended.lost:
        return _charge(state, ended, cause, progressed, now)
    reason = _fruitless_for_too_long(state)
    if reason:
        reason = f"{ended.cause.reason}; {reason}"
        return close(state, _failed_or_lost(state, ended, reason, cause))
    if not state.members:
        return []  # Nobody is left who could form another one.
    free = "re-forming, not counted against --max-restarts"
    if ended.lost and ended.cause.kind == "failure":
        what = f"{ended.lost}, and its peers' workers failed as a result"
        return [Explain(f"{what}; {free}", topic="re-form")]
    if ended.lost and ended.cause.suspicion:
        return [Explain(f"{ended.lost}; {free}", topic="re-form")]
    text = free if ended.is_explained else f"{ended.cause.reason}; {free}"
    return [Explain(text, "" if ended.is_explained else ended.cause.about, "re-form")]


def _with_early_ends(
    state: CoordinatorState, cause: rootcause.Cause | None, ended: StoppingRound
) -> rootcause.Cause | None:
    """Name beside the first failure who had ended well before, on whichever node."""
    if cause is None:
        return None
    known = {end.rank: end for each in ended.course.failures.values() for end in each.ended_before}
    for node in ended.course.succeeded:
        assignment = ended.assignments.get(node)
        for ranks in assignment.workers if assignment is not None else ():
            known.setdefault(ranks.rank, EarlyEnd(ranks.rank, host=name_of(state, node)))
    first = tuple(known[rank] for rank in sorted(known)[: rootcause.EARLY_ENDS_TOLD])
    return replace(cause, first=replace(cause.first, ended_before=first))


def _who_has_state(state: CoordinatorState, ended: StoppingRound) -> tuple[str, ...]:
    """By group rank: who ran the round, or had run an earlier one when it got its seat."""
    earlier = set(state.former)
    rest = ended.exited
    here = [name for name in ended.seats.nodes() if rest.get(name) != "gone"]
    return tuple(
        name
        for name in here
        if name in state.members
        and (rest.get(name) != "idle" or name in earlier or state.members[name].last_round)
    )


def _fruitless_for_too_long(state: CoordinatorState) -> str:
    limit = state.config.restarts.fruitless_rounds_limit
    if not limit or state.budget.fruitless < limit:
        return ""
    return f"{state.budget.fruitless} rounds in a row ended without progress"


def _note_progress(state: CoordinatorState, ended: StoppingRound, now: float) -> bool | None:
    """Whether the round got anywhere; None where workers report nothing."""
    reported, before = ended.course.furthest_step, state.budget.furthest_step
    progressed = None
    if reported is not None or before is not None:
        progressed = (reported or 0) > (before or 0)
        state.budget.furthest_step = max(reported or 0, before or 0)
    lasted = now - ended.started_at >= state.config.restarts.progress_after_s
    if progressed or (progressed is None and lasted):
        state.budget.fruitless = 0
        state.penalties = {}
    else:
        state.budget.fruitless += 1
    return progressed


def _charge(
    state: CoordinatorState,
    ended: StoppingRound,
    cause: rootcause.Cause,
    progressed: bool | None,
    now: float,
) -> list[CoordinatorEffect]:
    first = cause.first
    failed = restarts.RoundFailure(
        at=now,
        lasted_s=now - ended.started_at,
        progressed=progressed,
        fingerprint=restarts.fingerprint(first),
        exit_code=first.status.code,
        non_retryable=first.error.non_retryable,
    )
    failed = _with_witnesses(state, ended, cause, failed)
    history = (*state.budget.history, failed)
    state.budget.history.append(failed)
    state.version += 1
    verdict = restarts.decide(state.config.restarts, history, now, state.config.run_id)
    what = rootcause.summary(cause)
    if isinstance(verdict, restarts.Restart) and _fruitless_for_too_long(state):
        verdict = restarts.GiveUp(_fruitless_for_too_long(state))
    if isinstance(verdict, restarts.GiveUp):
        return close(state, failed_outcome(f"{what}; {verdict.reason}", cause))
    state.wait.not_before = now + verdict.delay_s
    state.wait.reason = rounds.PAUSING if verdict.delay_s else ""
    is_known = ended.is_explained and what == ended.cause.reason
    text = verdict.reason if is_known else f"{what}; {verdict.reason}"
    return [Explain(text, topic="restart", pause_s=verdict.delay_s)]


def _with_witnesses(
    state: CoordinatorState,
    ended: StoppingRound,
    cause: rootcause.Cause,
    failed: restarts.RoundFailure,
) -> restarts.RoundFailure:
    """Who says that the program cannot begin. A job that has made a step could begin."""
    has_begun = state.budget.furthest_step is not None or bool(ended.course.succeeded)
    if has_begun or cause.first.ended_before:
        return failed
    hopeless = restarts.hopeless(cause.failed)
    alike = [one for one in cause.everybody if restarts.is_alike(one, cause.first)]
    if state.config.max_nodes > 1:
        witnesses, needed = {one.host for one in alike}, 2
    else:
        witnesses = {f"rank {one.rank} in round {ended.number}" for one in alike}
        needed = min(2, state.config.slots)
    found = tuple(sorted(witnesses))
    return replace(failed, hopeless=hopeless, witnesses=found, witnesses_needed=needed)


def closing_wanted(state: CoordinatorState, outcome: Outcome) -> list[CoordinatorEffect]:
    """Let the present round go on, and none come after it. The first wish counts."""
    if state.closing is not None:
        return []
    state.closing = brief(outcome)
    state.version += 1
    return [Explain(f"{cut(outcome.reason)}; no further round forms")]


def close_if_all_succeeded(state: CoordinatorState, current: ToldRound) -> list[CoordinatorEffect]:
    """A round that is being stopped is judged, whoever has succeeded meanwhile."""
    if isinstance(current, StoppingRound) or not current.course.has_all_succeeded(current.seats):
        return []
    return close(state, ALL_SUCCEEDED)


def close(state: CoordinatorState, outcome: Outcome) -> list[CoordinatorEffect]:
    """The job is over; it is told once it is written down."""
    assert state.end is None, "a job is closed twice"
    state.version += 1
    state.looks = {}
    told = outcome if state.config.max_nodes == 1 else fit_outcome(outcome)
    state.end = JobEnd(told, Unrecorded(state.version), set(state.members))
    return []


def say_unrecorded(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """The end is decided, but not written down: it would look like a hang."""
    if state.embedded or state.end is None or not isinstance(state.end.stage, Unrecorded):
        return []
    outcome, stage = state.end.outcome, state.end.stage
    if stage.explain_at is None:
        stage.explain_at = state.looks["unrecorded"] = now + SAID_AFTER_S
    if stage.explained or now < stage.explain_at:
        return []
    stage.explained = True
    what = "all workers are done"
    if outcome.verdict != "succeeded":
        what = f"the job is over ({outcome.reason})"
    return [Explain(f"{what}; waiting for the register to record it", topic="waiting")]


def _failed_or_lost(
    state: CoordinatorState, ended: StoppingRound, reason: str, cause: rootcause.Cause | None
) -> Outcome:
    """The peers of a node that is lost fail, too: it is to blame, and not they."""
    outcome = failed_outcome(reason, cause)
    if state.loss is None or state.loss.round != ended.number or not ended.lost:
        return outcome
    return replace(outcome, blame=state.loss.blame)


def failed_outcome(reason: str, cause: rootcause.Cause | None) -> Outcome:
    if cause is None:
        return Outcome("failed", reason, exit_status.FAILED)
    others = cause.also_failed + cause.victims + cause.stopped
    found = rootcause.blame(cause)
    return Outcome("failed", reason, exit_status.FAILED, cause.first, others, blame=found)
