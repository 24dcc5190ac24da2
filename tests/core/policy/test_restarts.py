"""Whether a failed round is tried again: the rules of `core.policy.restarts`, one by one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.policy import sentences
from holdfast.core.policy.config import RestartPolicy
from holdfast.core.policy.restarts import (
    GiveUp,
    Restart,
    RoundFailure,
    decide,
    fingerprint,
    hopeless,
    is_alike,
)
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure

KILLED = RoundFailure(
    at=0.0,
    lasted_s=1.0,
    progressed=None,
    fingerprint="",
    exit_code=None,
    non_retryable=False,
)
RAISED = structs.replace(KILLED, fingerprint="ValueError: no", exit_code=1)
NO_PAUSES = RestartPolicy(max_restarts=10**9, same_cause_limit=0, backoff_first_s=0.0)


def judge(policy: RestartPolicy, *failures: RoundFailure, job: str = "job") -> Restart | GiveUp:
    return decide(policy, failures, failures[-1].at, job)


# --- any sequence of failures -------------------------------------------------------------

rounds = st.builds(
    RoundFailure,
    at=st.just(0.0),
    lasted_s=st.floats(0, 200),
    progressed=st.sampled_from([None, True, False]),
    fingerprint=st.sampled_from(["", "", "a", "b"]),
    exit_code=st.sampled_from([None, 1, 3]),
    non_retryable=st.sampled_from([False] * 9 + [True]),
)
policies = st.builds(
    RestartPolicy,
    max_restarts=st.integers(0, 6),
    window_s=st.none() | st.floats(0.1, 500),
    backoff_first_s=st.floats(0, 10),
    backoff_max_s=st.floats(0, 100),
    same_cause_limit=st.integers(0, 4),
    progress_after_s=st.floats(0, 100),
    non_retryable_exit_codes=st.sampled_from([(), (3,)]),
)


def one_after_the_other(
    gaps: list[tuple[float, RoundFailure]],
) -> list[RoundFailure]:
    """Failures at growing times, each as long after the one before as its gap says."""
    now, failures = 0.0, []
    for gap_s, failure in gaps:
        now += gap_s
        failures.append(structs.replace(failure, at=now))
    return failures


histories = st.lists(st.tuples(st.floats(0, 300), rounds), min_size=1, max_size=15).map(
    one_after_the_other
)


def restarts_of(policy: RestartPolicy, failures: list[RoundFailure]) -> list[RoundFailure]:
    """Live through the failures until the job gives up; those that it restarted after."""
    for count in range(1, len(failures) + 1):
        if isinstance(judge(policy, *failures[:count]), GiveUp):
            return failures[: count - 1]
    return failures


@given(policies, histories)
def test_the_budget_is_never_exceeded(policy: RestartPolicy, failures: list[RoundFailure]) -> None:
    policy = structs.replace(policy, window_s=None)
    assert len(restarts_of(policy, failures)) <= policy.max_restarts


@given(policies, histories)
def test_the_budget_of_a_window_is_never_exceeded_in_any_window(
    policy: RestartPolicy, failures: list[RoundFailure]
) -> None:
    assume(policy.window_s is not None)
    assert policy.window_s is not None
    restarted = [failure.at for failure in restarts_of(policy, failures)]
    for end in restarted:
        inside = [at for at in restarted if end - policy.window_s < at <= end]
        assert len(inside) <= policy.max_restarts


@given(policies, histories)
def test_without_another_reason_the_whole_budget_is_there_to_be_used(
    policy: RestartPolicy, failures: list[RoundFailure]
) -> None:
    policy = structs.replace(policy, same_cause_limit=0, non_retryable_exit_codes=())
    failures = [structs.replace(failure, non_retryable=False) for failure in failures]
    assert len(restarts_of(policy, failures)) >= min(len(failures), policy.max_restarts)


@given(policies, histories)
def test_every_decision_has_its_reason_in_words(
    policy: RestartPolicy, failures: list[RoundFailure]
) -> None:
    assert len(judge(policy, *failures).reason.split()) > 2


@given(policies, histories)
def test_a_replay_decides_the_same(policy: RestartPolicy, failures: list[RoundFailure]) -> None:
    assert judge(policy, *failures) == judge(policy, *failures)


# --- the budget ---------------------------------------------------------------------------


def test_no_restarts_are_allowed_unless_asked_for() -> None:
    verdict = judge(RestartPolicy(), KILLED)
    assert verdict == GiveUp(sentences.restarts_used(0))


def test_the_budget_is_told_as_it_is_spent() -> None:
    policy = RestartPolicy(max_restarts=2, backoff_first_s=0.0)
    assert judge(policy, KILLED).reason == sentences.restarting(0.0, 1, 2)
    assert judge(policy, KILLED, KILLED).reason == sentences.restarting(0.0, 2, 2)
    assert judge(policy, KILLED, KILLED, KILLED) == GiveUp(sentences.restarts_used(2))


def test_the_only_restart_is_told_in_the_singular() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=60.0)
    assert judge(policy, KILLED, KILLED) == GiveUp(sentences.restarts_used(1, 60.0))


def test_what_is_older_than_the_window_does_not_count() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=100.0, backoff_first_s=0.0)
    old, recent = structs.replace(KILLED, at=0.0), structs.replace(KILLED, at=100.0)
    assert judge(policy, old, recent) == Restart(0.0, sentences.restarting(0.0, 1, 1, 100.0))
    recent = structs.replace(KILLED, at=99.9)
    assert isinstance(judge(policy, old, recent), GiveUp)


# --- what a restart cannot help -----------------------------------------------------------


@given(policies, histories)
def test_what_is_marked_as_not_worth_a_retry_ends_the_job(
    policy: RestartPolicy, failures: list[RoundFailure]
) -> None:
    failures[-1] = structs.replace(failures[-1], non_retryable=True)
    verdict = judge(policy, *failures)
    assert verdict == GiveUp(sentences.MARKED_HOPELESS)


def test_a_listed_exit_code_ends_the_job_and_is_named() -> None:
    policy = RestartPolicy(max_restarts=5, non_retryable_exit_codes=(3, 4))
    assert isinstance(judge(policy, structs.replace(RAISED, exit_code=2)), Restart)
    verdict = judge(policy, structs.replace(RAISED, exit_code=4))
    assert verdict == GiveUp(sentences.not_retryable(4))


def test_a_mark_on_an_earlier_failure_is_history() -> None:
    policy = RestartPolicy(max_restarts=5)
    marked = structs.replace(KILLED, non_retryable=True)
    assert isinstance(judge(policy, marked, KILLED), Restart)


# --- the same cause again and again -------------------------------------------------------


def in_a_row(policy: RestartPolicy, failures: list[RoundFailure]) -> int:
    """The oracle: how many of the last failures have one cause and no progress between."""
    stretch: list[RoundFailure] = []
    for failure in failures:
        long_enough = failure.lasted_s >= policy.progress_after_s
        progressed = long_enough if failure.progressed is None else failure.progressed
        same = not stretch or stretch[-1].fingerprint == failure.fingerprint
        if progressed or not failure.fingerprint:
            stretch = []
        else:
            stretch = [*stretch, failure] if same else [failure]
    return len(stretch)


@given(policies, histories)
def test_the_same_cause_too_often_in_a_row_ends_the_job(
    policy: RestartPolicy, failures: list[RoundFailure]
) -> None:
    policy = structs.replace(policy, max_restarts=1000, window_s=None)
    last = failures[-1]
    assume(not last.non_retryable and last.exit_code not in policy.non_retryable_exit_codes)
    too_often = 0 < policy.same_cause_limit <= in_a_row(policy, failures)
    verdict = judge(policy, *failures)
    assert isinstance(verdict, GiveUp) == too_often
    if too_often:
        assert "the same failure came" in verdict.reason


def test_a_limit_of_none_never_ends_the_job() -> None:
    policy = structs.replace(NO_PAUSES, same_cause_limit=0)
    assert isinstance(judge(policy, *[RAISED] * 100), Restart)


def test_a_bare_signal_is_not_the_same_cause() -> None:
    policy = structs.replace(NO_PAUSES, same_cause_limit=2)
    assert isinstance(judge(policy, *[KILLED] * 10), Restart)


# --- the pause ----------------------------------------------------------------------------

backoffs = st.builds(
    RestartPolicy,
    max_restarts=st.just(10**9),
    backoff_first_s=st.floats(0.01, 100),
    backoff_max_s=st.floats(0.01, 1000),
    same_cause_limit=st.just(0),
)
names = st.text(max_size=20)


def pause(policy: RestartPolicy, fruitless: int, job: str = "job") -> float:
    verdict = judge(policy, *[KILLED] * fruitless, job=job)
    assert isinstance(verdict, Restart)
    return verdict.delay_s


@given(backoffs, names)
def test_the_first_restart_is_immediate(policy: RestartPolicy, job: str) -> None:
    assert pause(policy, 1, job) == 0.0


@given(backoffs, names, st.integers(2, 40))
def test_a_pause_is_spread_by_a_quarter_around_its_doubled_length(
    policy: RestartPolicy, job: str, fruitless: int
) -> None:
    length = policy.backoff_first_s
    for _ in range(fruitless - 2):
        length *= 2
    length = min(length, policy.backoff_max_s)
    assert 0.75 * length <= pause(policy, fruitless, job) <= 1.25 * length


@given(backoffs, names, st.integers(2, 12))
def test_pauses_grow_until_they_are_as_long_as_they_may_be(
    policy: RestartPolicy, job: str, fruitless: int
) -> None:
    policy = structs.replace(policy, backoff_max_s=policy.backoff_first_s * 2 ** (fruitless - 1))
    assert pause(policy, fruitless, job) < pause(policy, fruitless + 1, job)


@pytest.mark.parametrize("fruitless", [100, 1000, 1025, 1026, 2000])
def test_a_pause_stays_bounded_however_often_it_was_fruitless(fruitless: int) -> None:
    policy = structs.replace(NO_PAUSES, backoff_first_s=1.0, backoff_max_s=60.0)
    assert 45.0 <= pause(policy, fruitless) <= 75.0


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    policy = structs.replace(NO_PAUSES, backoff_first_s=10.0)
    pauses = {round(pause(policy, 2, f"job-{number}"), 3) for number in range(100)}
    assert len(pauses) > 90
    assert max(pauses) - min(pauses) > 4.0


def test_after_progress_a_restart_is_immediate_again() -> None:
    policy = structs.replace(NO_PAUSES, backoff_first_s=10.0)
    progressed = structs.replace(KILLED, progressed=True)
    assert judge(policy, KILLED, KILLED, progressed).reason == sentences.restarting(0.0, 3, 10**9)
    assert isinstance(judge(policy, KILLED, KILLED, progressed, KILLED), Restart)
    assert judge(policy, KILLED, KILLED, progressed, KILLED) == Restart(
        0.0, sentences.restarting(0.0, 4, 10**9)
    )


def test_where_workers_report_nothing_a_long_round_counts_as_progress() -> None:
    policy = structs.replace(NO_PAUSES, backoff_first_s=10.0, progress_after_s=60.0)
    long, short = structs.replace(KILLED, lasted_s=60.0), structs.replace(KILLED, lasted_s=59.9)
    assert judge(policy, short, long) == Restart(0.0, sentences.restarting(0.0, 2, 10**9))
    verdict = judge(policy, short, short)
    assert isinstance(verdict, Restart)
    assert verdict.delay_s > 0


def test_where_workers_report_a_long_round_without_a_step_is_no_progress() -> None:
    policy = structs.replace(NO_PAUSES, backoff_first_s=10.0, progress_after_s=60.0)
    standing = structs.replace(KILLED, lasted_s=3600.0, progressed=False)
    verdict = judge(policy, standing, standing)
    assert isinstance(verdict, Restart)
    assert verdict.delay_s > 0
    assert verdict.reason == sentences.restarting(verdict.delay_s, 2, 10**9)


# --- what makes two causes the same -------------------------------------------------------


def failure(status: ExitStatus, message: str = "", out_of_memory: str = "") -> Failure:
    return Failure(
        node="n",
        host="h",
        local_rank=0,
        rank=0,
        role="default",
        pid=1,
        status=status,
        observed_at=0.0,
        error=ErrorDetail(message),
        out_of_memory=out_of_memory,
    )


def test_numbers_and_addresses_do_not_make_a_cause_another() -> None:
    first = failure(ExitStatus(code=1), "OSError: [Errno 5] block 1842 at 0x7f12ab")
    again = failure(ExitStatus(code=1), "OSError: [Errno 5] block 977 at 0x55dd01\nmore")
    assert fingerprint(first) == fingerprint(again) != ""


def test_other_words_make_it_another() -> None:
    assert fingerprint(failure(ExitStatus(code=1), "KeyError: a")) != fingerprint(
        failure(ExitStatus(code=1), "KeyError: b")
    )


@pytest.mark.parametrize("number", [6, 7, 8, 11])
def test_a_crash_of_its_own_is_a_cause(number: int) -> None:
    assert fingerprint(failure(ExitStatus(signal=number)))


@pytest.mark.parametrize("number", [1, 2, 9, 15])
def test_a_signal_from_outside_says_nothing_about_the_cause(number: int) -> None:
    assert fingerprint(failure(ExitStatus(signal=number))) == ""


def test_out_of_memory_is_a_cause() -> None:
    killed = failure(ExitStatus(signal=9), out_of_memory="the kernel killed it")
    assert fingerprint(killed) == "out of memory"


def test_an_exit_code_without_words_is_a_cause() -> None:
    assert fingerprint(failure(ExitStatus(code=1))) != fingerprint(failure(ExitStatus(code=2)))


# --- a program that cannot begin ----------------------------------------------------------

MISSING = structs.replace(
    KILLED,
    fingerprint="ModuleNotFoundError: No module named 'x'",
    exit_code=1,
    hopeless="a module is missing",
    witnesses=("rank 0", "rank 1"),
)
PLENTY = RestartPolicy(max_restarts=9)


def test_a_program_that_cannot_begin_is_not_started_again() -> None:
    verdict = judge(PLENTY, MISSING)
    assert isinstance(verdict, GiveUp)
    assert verdict.reason == sentences.hopeless("a module is missing")


def test_one_witness_of_several_is_not_enough_and_the_next_round_has_another() -> None:
    once = structs.replace(MISSING, witnesses=("rank 0 in round 1",))
    again = structs.replace(MISSING, witnesses=("rank 0 in round 2",))
    assert isinstance(judge(PLENTY, once), Restart)
    assert isinstance(judge(PLENTY, once, again), GiveUp)
    assert isinstance(judge(PLENTY, once, RAISED, again), Restart)


def test_a_host_that_says_so_again_and_again_is_one_witness() -> None:
    on_one_host = structs.replace(MISSING, witnesses=("host1",))
    assert isinstance(judge(PLENTY, on_one_host, on_one_host), Restart)


@pytest.mark.parametrize("well", [{"progressed": True}, {"lasted_s": 3600.0}])
def test_a_job_that_has_got_somewhere_is_started_again(well: dict[str, object]) -> None:
    earlier = structs.replace(KILLED, **well)
    assert isinstance(judge(PLENTY, earlier, MISSING), Restart)
    assert isinstance(judge(PLENTY, structs.replace(MISSING, **well)), Restart)


@pytest.mark.parametrize(
    "message",
    [
        "SyntaxError: invalid syntax (train.py, line 1)",
        "IndentationError: unexpected indent (model.py, line 88)",
        "TabError: inconsistent use of tabs and spaces in indentation (train.py, line 2)",
        "ModuleNotFoundError: No module named 'x'\nmore",
        "ImportError: attempted relative import with no known parent package",
    ],
)
def test_exceptions_of_a_program_that_cannot_begin(message: str) -> None:
    one = failure(ExitStatus(code=1), message)
    stopped = failure(ExitStatus(signal=15), message)
    assert hopeless([one, stopped])
    assert is_alike(one, stopped)


@pytest.mark.parametrize(
    ("code", "tail"),
    [
        (2, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n"),
        (2, "Try 'train.py --help' for help.\n\nError: No such option: --foo"),
        (2, "/usr/bin/python: can't open file '/x/train.py': [Errno 2] No such file or directory"),
        (1, "/usr/bin/python: No module named train"),
    ],
)
def test_last_words_of_a_program_that_cannot_begin(code: int, tail: str) -> None:
    one = structs.replace(failure(ExitStatus(code=code)), stderr_tail=tail)
    assert hopeless([one])
    assert not hopeless([structs.replace(one, status=ExitStatus(code=3))])


@pytest.mark.parametrize(
    "message",
    [
        "",
        "ValueError: x",
        "SyntaxError: invalid syntax (<unknown>, line 1)",
        "ImportError: cannot import name 'x' from 'y'",
        "RuntimeError: ModuleNotFoundError: No module named 'x'",
    ],
)
def test_other_failures_may_be_over_the_next_time(message: str) -> None:
    one = failure(ExitStatus(code=1), message)
    assert not hopeless([one])
    assert not is_alike(one, one)


def test_all_that_failed_have_to_say_the_same() -> None:
    missing = failure(ExitStatus(code=1), "ModuleNotFoundError: No module named 'x'")
    assert not hopeless([missing, failure(ExitStatus(code=1), "KeyError: a")])
