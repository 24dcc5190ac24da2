"""The verdict on hangs, and all that must never be taken for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.policy.hangs import HangTerms, HangVerdict, HangWatch, WorkerSight, check, judge
from holdfast.core.policy.stacks import StackFrame, WorkerStack

FLOOR_S, UNSAID_S, LOOK_S = 300.0, 1800.0, 2.0
TERMS = HangTerms(floor_s=FLOOR_S, unreported_s=UNSAID_S, interval_s=LOOK_S)
ALL_REDUCE = (
    StackFrame("/x/site-packages/torch/d.py", 1, "all_reduce"),
    StackFrame("/t.py", 4, "f"),
)
EVALUATE = (StackFrame("/home/me/train.py", 77, "evaluate"),)
ONE_ELSEWHERE = (ALL_REDUCE, ALL_REDUCE, EVALUATE, ALL_REDUCE)
HOUR_S = 3600.0
Moment = Callable[[float], list[WorkerSight]]


class Group:
    """Workers over time, looked at as an agent does."""

    def __init__(self, ranks: int = 4) -> None:
        self.watch = HangWatch(TERMS)
        self.ranks = ranks
        self.now = 1000.0
        self.found: list[str] = []

    def stepping(self, step_s: float = 1.0, lasts_s: float = 60.0) -> Group:
        """Steps as long as that, in all ranks."""
        self.run(
            lambda at: [
                WorkerSight(rank, at % step_s, longest_s=step_s if at > step_s else 0.0, cpu_s=at)
                for rank in range(self.ranks)
            ],
            lasts_s,
        )
        return self

    def run(self, moment: Moment, lasts_s: float, every_s: float = LOOK_S) -> Group:
        at = 0.0
        while at < lasts_s:
            self.found.append(check(self.watch, moment(at), self.now))
            at += every_s
            self.now += every_s
        return self

    def still(self, lasts_s: float, **changes: object) -> Group:
        """Nobody gives a sign from now on; what else is true of all of them."""
        cpu_s = {
            rank: (one.last.cpu_s if one.last else 0.0) for rank, one in self.watch.workers.items()
        }
        given: dict[str, object] = {"longest_s": 1.0, **changes}

        def moment(at: float) -> list[WorkerSight]:
            return [
                replace(WorkerSight(rank, at, cpu_s=cpu_s.get(rank, 0.0)), **given)
                for rank in range(self.ranks)
            ]

        return self.run(moment, lasts_s)

    def judged_silent(self, frames: Iterable[tuple[StackFrame, ...]]) -> HangVerdict:
        """After three looks."""
        stacks = list(frames)
        for _ in range(2):
            assert not self.judged(stacks).hangs
            assert self.still(LOOK_S, age_s=None).found[-1] == "suspicion"
        return self.judged(stacks)

    @property
    def suspicions(self) -> int:
        return self.found.count("suspicion")

    def judged(self, frames: Iterable[tuple[StackFrame, ...]] = ()) -> HangVerdict:
        stacks = list(frames) or [ALL_REDUCE] * self.ranks
        return judge(self.watch, [WorkerStack(n, "", one) for n, one in enumerate(stacks)])


# What is a hang.


def test_a_group_that_stands_still_for_longer_than_the_floor_is_suspected() -> None:
    group = Group().stepping().still(FLOOR_S - 10)
    assert group.suspicions == 0
    group.still(30)
    assert group.suspicions == 0, "a sign is as old as it says"
    group = Group().stepping().still(FLOOR_S + 10)
    assert group.suspicions == 1
    verdict = group.judged()
    assert verdict.hangs
    assert verdict.words == (
        "all workers have been stalled for 308 s, where no wait took more than 1.0 s before: "
        "ranks 0, 1, 2 and 3 wait in all_reduce at t.py:4"
    )


def test_the_odd_one_is_named() -> None:
    group = Group().stepping().still(FLOOR_S + 10)
    for looks in (1, 2):
        assert not group.judged(ONE_ELSEWHERE).hangs, "more looks tell whether it moves"
        assert group.still(LOOK_S, age_s=400.0).suspicions == 1 + looks
    verdict = group.judged(ONE_ELSEWHERE)
    assert verdict.hangs
    assert verdict.suspect == 2
    assert verdict.groups[-1].location.shortly() == "in evaluate at train.py:77"


@pytest.mark.parametrize("moves", ["processor", "bytes", "stack"])
def test_a_rank_that_moves_while_others_wait_for_it_is_slow_and_not_hung(moves: str) -> None:
    group = Group().stepping().still(FLOOR_S + 10)
    group.judged(ONE_ELSEWHERE)
    changes: dict[str, dict[str, Any]] = {
        "processor": {"cpu_s": 60.3},
        "bytes": {"io_bytes": 10},
        "stack": {},
    }
    sights = [WorkerSight(rank, 400.0, longest_s=1.0, cpu_s=60.0) for rank in range(4)]
    group.run(lambda at: [*sights[:2], replace(sights[2], **changes[moves]), sights[3]], LOOK_S)
    later = (StackFrame("/home/me/train.py", 78, "evaluate"),)
    now = [ALL_REDUCE, ALL_REDUCE, later if moves == "stack" else EVALUATE, ALL_REDUCE]
    verdict = group.judged(now)
    assert not verdict.hangs
    where = "train.py:78" if moves == "stack" else "train.py:77"
    assert verdict.slow == (
        f"slow, but moving: rank 2 is in evaluate at {where}, "
        "while ranks 0, 1 and 3 wait in all_reduce at t.py:4"
    )
    assert group.judged(now).slow == "", "it is said once"


def test_a_group_that_spins_in_a_collective_hangs() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [WorkerSight(n, at, longest_s=1.0, cpu_s=100 + at) for n in range(4)],
        FLOOR_S + 10,
    )
    assert group.suspicions == 1
    assert group.judged().hangs


def test_five_times_the_longest_wait_is_allowed() -> None:
    group = Group().stepping(step_s=100.0, lasts_s=500.0).still(490, longest_s=100.0)
    assert group.suspicions == 0
    group = Group().stepping(step_s=100.0, lasts_s=500.0).still(510, longest_s=100.0)
    assert group.suspicions == 1


def test_a_hang_is_told_once_and_its_end_too() -> None:
    group = Group().stepping().still(FLOOR_S + 10)
    group.judged()
    group.run(lambda at: [WorkerSight(n, 400 + at, longest_s=1.0) for n in range(4)], HOUR_S)
    assert group.suspicions == 1
    group.stepping()
    assert group.found.count("movement") == 1


def test_a_group_that_says_nothing_is_told_of_after_long_idleness_and_not_restarted() -> None:
    group = Group().still(UNSAID_S - 20, age_s=None)
    assert group.judged_silent([ALL_REDUCE] * 4).needs_cause
    group.still(30, age_s=None)
    assert group.found[-15:].count("suspicion") == 1
    verdict = group.judged()
    assert verdict.hangs
    assert verdict.never_reported
    assert not verdict.needs_cause
    assert "without work or output" in verdict.words


def test_a_group_that_says_nothing_counts_after_the_floor_if_a_cause_is_known() -> None:
    group = Group().still(FLOOR_S, age_s=None)
    assert group.suspicions == 0
    verdict = group.still(10, age_s=None).judged_silent(ONE_ELSEWHERE)
    assert (verdict.hangs, verdict.needs_cause, verdict.suspect) == (True, True, 2)
    group.still(LOOK_S, age_s=None, printed_bytes=1)
    assert group.found[-1] == "movement"


@pytest.mark.parametrize(
    "moves", [{"io_bytes": 1}, {"switches": 100}], ids=lambda one: next(iter(one))
)
def test_a_rank_that_moves_a_little_and_never_spoke_is_no_cause(moves: dict[str, float]) -> None:
    def moment(at: float) -> list[WorkerSight]:
        rank_2 = WorkerSight(2, None, **{name: one * at / 2 for name, one in moves.items()})  # type: ignore[arg-type]
        return [WorkerSight(0), WorkerSight(1), rank_2, WorkerSight(3)]

    group = Group().run(moment, FLOOR_S + 10)
    for _ in range(5):
        assert not group.judged(ONE_ELSEWHERE).hangs
        group.run(lambda _: moment(group.now), LOOK_S)


@pytest.mark.parametrize("age_s", [None, 0.0], ids=["never spoke", "spoke"])
def test_a_rank_that_moves_in_bursts_does_not_hang(age_s: float | None) -> None:
    """Shorter than the floor; then it stops to."""
    began = 0.0

    def moment(_: float) -> list[WorkerSight]:
        at = group.now - began
        age = None if age_s is None else at
        bursts = min(at, 1000) // 200
        return [
            WorkerSight(rank, age, longest_s=1.0, io_bytes=int(bursts) if rank == 2 else 0)
            for rank in range(4)
        ]

    group = Group() if age_s is None else Group().stepping()
    began = group.now
    verdicts = []
    while group.now - began < 1000 + FLOOR_S + 20:
        if group.run(moment, LOOK_S).found[-1] == "suspicion":
            verdicts.append((group.now - began, group.judged(ONE_ELSEWHERE).hangs))
    hung = [at for at, hangs in verdicts if hangs]
    assert verdicts[0][0] < FLOOR_S + 20
    assert hung
    assert hung[0] > 1000 + FLOOR_S - 10


def test_a_rank_that_works_while_most_wait_for_it_is_told_of_once_as_slow() -> None:
    def moment(at: float) -> list[WorkerSight]:
        return [WorkerSight(rank, cpu_s=at if rank == 2 else 0.0) for rank in range(4)]

    group = Group().run(moment, FLOOR_S + 10)
    assert group.suspicions == 1
    verdict = group.judged(ONE_ELSEWHERE)
    assert not verdict.hangs
    assert verdict.slow.startswith("slow, but moving: rank 2 is in evaluate at train.py:77")
    group.run(lambda at: moment(FLOOR_S + 10 + at), 4 * FLOOR_S)
    assert group.suspicions == 1


def test_a_rank_that_gives_no_stack_may_be_anywhere() -> None:
    group = Group().still(FLOOR_S + 10, age_s=None)
    for _ in range(4):
        assert not group.judged([ALL_REDUCE, ALL_REDUCE, (), ALL_REDUCE]).hangs
        group.still(LOOK_S, age_s=None)


def test_a_verdict_on_a_group_that_says_nothing_is_void_once_its_stacks_differ() -> None:
    group = Group().still(FLOOR_S + 10, age_s=None)
    assert group.judged_silent(ONE_ELSEWHERE).hangs
    assert group.still(FLOOR_S + 10, age_s=None).found.count("movement") == 0
    verdict = group.judged([ALL_REDUCE] * 4)
    assert (verdict.hangs, verdict.is_void) == (False, True)


def test_a_verdict_on_a_group_that_says_nothing_is_void_once_its_outlier_reads() -> None:
    group = Group().still(FLOOR_S + 10, age_s=None)
    assert group.judged_silent(ONE_ELSEWHERE).hangs
    sights = [WorkerSight(rank, io_bytes=rank == 2) for rank in range(4)]
    assert group.run(lambda at: sights, LOOK_S).found[-1] == "movement"


def test_once_a_rank_has_ended_those_that_are_left_are_looked_at_anew() -> None:
    group = Group().still(FLOOR_S + 10, age_s=None)
    group.judged_silent([ALL_REDUCE] * 4)
    group.ranks = 3
    assert group.still(LOOK_S, age_s=None).found[-1] == "suspicion"
    assert group.judged_silent([ALL_REDUCE] * 3).needs_cause


def test_where_only_one_rank_gives_signs_the_others_need_only_be_idle() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [WorkerSight(0, at, longest_s=1.0), *(WorkerSight(n) for n in range(1, 4))],
        FLOOR_S + 10,
    )
    assert group.suspicions == 1


# What is none: each of these has been taken for a hang by some system.


def test_evaluation_on_rank_0_while_the_others_wait_in_a_barrier() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [
            WorkerSight(0, at, longest_s=1.0, cpu_s=60 + at),
            *(WorkerSight(n, at, longest_s=1.0, cpu_s=60) for n in range(1, 4)),
        ],
        2 * HOUR_S,
    )
    assert not group.judged([EVALUATE, ALL_REDUCE, ALL_REDUCE, ALL_REDUCE]).hangs
    assert group.suspicions < 6, "stacks are not taken again and again"


def test_a_checkpoint_on_rank_0_in_a_phase_of_its_own_that_is_the_first() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [
            WorkerSight(0, at, "checkpoint", 0.0),
            *(WorkerSight(n, at, longest_s=1.0) for n in range(1, 4)),
        ],
        2 * HOUR_S,
    )
    assert group.suspicions == 0


def test_a_checkpoint_that_takes_four_times_as_long_as_the_last() -> None:
    group = Group().stepping().still(4 * 600, phase="checkpoint", longest_s=600.0)
    assert group.suspicions == 0


def test_what_a_step_takes_accuses_no_checkpoint() -> None:
    group = Group().stepping().still(HOUR_S, phase="checkpoint", longest_s=0.0)
    assert group.suspicions == 0


def test_data_loading_by_rank_0_alone() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [
            WorkerSight(0, at, longest_s=1.0, io_bytes=int(at * 50e6)),
            *(WorkerSight(n, at, longest_s=1.0) for n in range(1, 4)),
        ],
        HOUR_S,
    )
    assert not group.judged([EVALUATE, ALL_REDUCE, ALL_REDUCE, ALL_REDUCE]).hangs


def test_a_long_start_and_a_first_step_that_compiles() -> None:
    group = Group().still(UNSAID_S - 10, age_s=None)
    assert group.judged_silent([EVALUATE] * 4).needs_cause, "and nobody is in a collective"
    assert Group().still(2 * HOUR_S, longest_s=0.0).suspicions == 0


def test_a_long_silent_computation_that_holds_the_interpreter() -> None:
    computing = (StackFrame("/home/me/model.py", 5, "factorise"),)
    group = Group().stepping()
    group.run(
        lambda at: [WorkerSight(n, at, longest_s=1.0, cpu_s=60 + at) for n in range(4)], HOUR_S
    )
    assert not group.judged([computing] * 4).hangs
    silent = Group()
    silent.run(lambda at: [WorkerSight(n, None, cpu_s=at) for n in range(4)], 10 * HOUR_S)
    assert silent.suspicions == 0


def test_a_computation_that_hardly_gets_a_processor() -> None:
    computing = (StackFrame("/home/me/model.py", 5, "factorise"),)
    group = Group().stepping()

    def moment(at: float) -> list[WorkerSight]:
        bursts = 60 + 20 * (at // 60)  # A third of a processor, in bursts between long pauses.
        return [WorkerSight(n, at, longest_s=1.0, cpu_s=bursts) for n in range(4)]

    group.run(moment, HOUR_S + 30)
    assert not group.judged([computing] * 4).hangs
    wanting = Group().stepping().still(FLOOR_S + 10, state="R")
    assert not wanting.judged([computing] * 4).hangs


def test_long_input_from_a_stalled_disk() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [
            WorkerSight(0, at, longest_s=1.0, state="D"),
            *(WorkerSight(n, at, longest_s=1.0) for n in range(1, 4)),
        ],
        HOUR_S,
    )
    assert group.suspicions == 0


def test_a_machine_that_was_paused_and_resumed() -> None:
    group = Group().stepping()
    group.now += 10 * HOUR_S
    group.run(lambda at: [WorkerSight(n, 10 * HOUR_S + at, longest_s=1.0) for n in range(4)], 60)
    group.stepping()
    assert group.suspicions == 0


def test_an_agent_that_was_held_up_accuses_nobody() -> None:
    group = Group().stepping()
    group.run(lambda at: [WorkerSight(n, at, longest_s=1.0) for n in range(4)], 3000, every_s=200)
    assert group.suspicions == 0


def test_a_debugger_or_a_stop_signal() -> None:
    for changes in ({"traced": True}, {"state": "t"}, {"state": "T"}):
        group = Group().stepping().still(HOUR_S, **changes)
        assert group.suspicions == 0


def test_one_rank_that_still_steps_clears_all() -> None:
    group = Group().stepping()
    group.run(
        lambda at: [
            WorkerSight(0, at % 60, longest_s=60.0),
            *(WorkerSight(n, at, longest_s=1.0) for n in (1, 2)),
        ],
        HOUR_S,
    )
    assert group.suspicions == 0


def test_a_job_that_prints_now_and_then_stands_not_still() -> None:
    group = Group()
    group.run(lambda at: [WorkerSight(0, None, printed_bytes=int(at // 600))], 10 * HOUR_S)
    assert not group.watch.is_long
    assert group.suspicions == 1, "of which nobody is told without a cause"


def test_a_job_that_waits_long_between_works_has_shown_that_it_does() -> None:
    group = Group()
    group.run(lambda at: [WorkerSight(0, None, cpu_s=5.0 * (at // 1500))], 3000)
    group.run(lambda at: [WorkerSight(0, None, cpu_s=10.0)], 5 * 1400)
    assert not group.watch.is_long
    assert not group.found[-1000:].count("suspicion")


@given(st.lists(st.tuples(st.floats(0, 299), st.integers(0, 3)), max_size=40))
def test_nobody_who_gives_a_sign_within_the_floor_is_ever_suspected(
    waits: list[tuple[float, int]],
) -> None:
    group = Group().stepping()
    for wait_s, rank in waits:

        def moment(at: float, rank: int = rank) -> list[WorkerSight]:
            return [WorkerSight(n, at if n == rank else 10_000.0, longest_s=1.0) for n in range(4)]

        group.run(moment, wait_s)
    assert group.suspicions == 0
