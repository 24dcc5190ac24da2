"""Where the workers of a round are, and how far: looked at now and then, and whenever it is asked.

Workers say how far they are in their pages (`worker.page`), where it wakes nobody. The first step
of each comes over the channel, at once; from then on the pages are read as often as a heartbeat is
sent, and when a worker has ended, so that its last word is told before its end.

Hangs are checked for once a minute (`monitoring.checks`), more often where `--hang-after` is
short. Where they are is asked of the workers themselves (`monitoring.stacks`): when they are
suspected of a hang, and when somebody wants to know. A worker that is beyond a time that the user
has set (`Limit`, `Oversight`) is ended for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.node_io import (
    DeadlineMissed,
    NodeEvent,
    StallFound,
    StallOver,
    StepReported,
    StragglerFound,
    Unexited,
    UnexitedFound,
    WorkerStuck,
)
from holdfast.core.policy import sentences
from holdfast.core.policy.config import Oversight
from holdfast.core.protocol.bounds import LINE_MOST, clean, cut
from holdfast.core.protocol.messages import LOCATIONS_MOST, FrameGroup
from holdfast.core.protocol.model import Ranks
from holdfast.processes.monitoring.pages import RoundPages, Sign, StackFiles, StackMeans
from holdfast.runtime.loop import Cancellable
from holdfast.worker.page import VARIABLE

if TYPE_CHECKING:
    from holdfast.core.policy.hangs import Finding, HangVerdict
    from holdfast.core.policy.stacks import StackGroup
    from holdfast.core.policy.stuck import StuckFinding
    from holdfast.core.policy.worker_progress import StepMarks, StragglerWatch, WorkerProgress
    from holdfast.processes.monitoring import stacks
    from holdfast.processes.monitoring.checks import HangChecks, StuckChecks

IsLate = Callable[[Sign | None, int | None], bool]
"""Whether a worker with this sign, and this last step, is beyond the limit."""


class Limit(Struct, frozen=True):
    """A time from the start of a round's workers on, and which of them are too late then."""

    after_s: float
    words: str
    is_late: IsLate
    is_final: bool = False
    """Another round would be beyond it, too."""


def limits_of(oversight: Oversight, run_left_s: float | None) -> list[Limit]:
    """Those that were set. `run_left_s` is what is left of the time for the whole run."""
    found = []
    if oversight.start_s is not None:
        words = sentences.first_sign_time(oversight.start_s)
        found.append(Limit(oversight.start_s, words, _has_said_nothing))
    if oversight.first_step_s is not None:
        words = sentences.first_step_time(oversight.first_step_s)
        found.append(Limit(oversight.first_step_s, words, _has_made_no_step))
    if run_left_s is not None:
        words = sentences.run_time(oversight.run_s or 0.0)
        found.append(Limit(max(0.0, run_left_s), words, _always, is_final=True))
    return found


def _has_said_nothing(sign: Sign | None, step: int | None) -> bool:
    return sign is None and step is None


def _has_made_no_step(sign: Sign | None, step: int | None) -> bool:
    return step is None and (sign is None or sign.step is None)


def _always(sign: Sign | None, step: int | None) -> bool:
    return True


if TYPE_CHECKING:
    OnStacks = Callable[[stacks.StackSnapshot | None], None]
    """None where no worker runs."""
    WantsNative = Callable[[stacks.StackSnapshot], bool]
    """Whether to have frames of C too, for which workers are held for a moment."""

LOAD_AFTER_S = 1.0
"""A job that is over by then never needs what is loaded for a longer one."""
KEPT_WITHIN_S = 5.0
"""How long to wait for a disk to take stacks before they are told without their file."""
TOLD_APART_S = 1.0
"""A worker without a page reports all steps over the channel: they are posted this often."""


class Watched(Struct):
    """A worker that is looked at."""

    local_rank: int
    rank: int
    pid: int
    step: int | None = None
    """The last that was told."""
    unsaid: int | None = None
    """What came over the channel since, too soon to be told."""
    next_at: float = 0.0
    heard_at: float = 0.0
    """When a step last came over the channel."""
    born_at: float = 0.0
    """By the clock on the wall, as files have it."""
    stack_bytes: int = 0
    """What it has written because it was asked where it is: no work of its own."""
    has_ended: bool = False
    is_expired: bool = False


class WatchedRound(Struct, frozen=True):
    """What is to be known of a round."""

    number: int
    workers: int
    interval_s: float
    """How often to look at the pages."""
    oversight: Oversight = Oversight()
    stacks_folder: Path | None = None
    """Where stacks are written; None where nothing is."""
    run_left_s: float | None = None
    """Of the time for the whole run, where there is a limit to that."""
    store_port: int = 0
    """Of PyTorch's store, as its clients reach it."""


class Monitor:
    """Looks at the workers of one round, from their start to the end of the round."""

    def __init__(
        self, watched: WatchedRound, means: StackMeans, post: Callable[[NodeEvent], None]
    ) -> None:
        self._round = watched
        self._means = means
        self._post = post
        self._workers: dict[int, Watched] = {}
        self._timer: Cancellable | None = None
        self._hang_timer: Cancellable | None = None
        self._limit_timers: list[Cancellable] | None = None
        self._stuck_timer: Cancellable | None = None
        self._stuck_checks: StuckChecks | None = None
        self._load_timer: Cancellable | None = None
        self._is_loaded = False
        self._is_closed = False
        self._hang_checks: HangChecks | None = None
        self._verdict: HangVerdict | None = None
        self._keeping = 0
        self._stragglers: StragglerWatch | None = None
        self._marks: dict[int, StepMarks] = {}
        self._stacks = StackFiles()
        self._taking: stacks.StackTaking | None = None
        self._awaited: list[OnStacks] = []
        self._taken = 0
        self._pages: RoundPages | None
        try:
            self._pages = RoundPages(watched.workers)
        except OSError:
            self._pages = None  # Workers then say it over the channel.

    def variables(self, local_rank: int) -> dict[str, str]:
        """What the environment of this worker has for our sake."""
        page = {} if self._pages is None else {VARIABLE: self._pages.variable(local_rank)}
        return page | (self._stacks.variables(local_rank) if self._round.oversight.stacks else {})

    def started(self, ranks: Ranks, pid: int) -> None:
        """It exists."""
        self._workers[ranks.local_rank] = Watched(
            ranks.local_rank, ranks.rank, pid, born_at=time.time()
        )
        if self._load_timer is None:
            self._load_timer = self._means.loop.call_later(LOAD_AFTER_S, self._load)
        if self._limit_timers is None and self._round.oversight.has_limits:
            self._set_limits()
        if self._hang_timer is None and self._round.oversight.hang != "off":
            self._check_for_hangs_later()
        if self._stuck_timer is None and self._round.oversight.checks_for_stuck:
            self._check_for_stuck_later()

    def heard(self, local_rank: int, step: int) -> None:
        """It said this over the channel: look from now on."""
        worker = self._workers.get(local_rank)
        if worker is None:
            return
        if self._timer is None:
            self._read_pages_later()
        worker.unsaid = step
        now = worker.heard_at = time.monotonic()
        if now >= worker.next_at:
            worker.next_at = now + TOLD_APART_S
            self._tell(worker, step, 0.0)

    def next_asks(self) -> dict[int, int]:
        """The first steps at which workers can still ask whether to save, by local rank."""
        pages = self._pages
        found = {} if pages is None else {one: pages.next_ask(one) for one in self._workers}
        return {local_rank: step for local_rank, step in found.items() if step is not None}

    def is_shielded(self, local_rank: int, pid: int, number: int) -> bool:
        """Whether this signal does not end a worker, since it asks whether to save."""
        return self._pages is not None and bool(self._pages.shielded(local_rank, pid) >> number & 1)

    def _running(self) -> list[Watched]:
        return [worker for worker in self._workers.values() if not worker.has_ended]

    def has_deadlines(self) -> None:
        """A worker has set one: look from now on."""
        if self._timer is None:
            self._read_pages_later()

    def ended(self, local_rank: int) -> None:
        """Its process is gone: tell its last word."""
        worker = self._workers.get(local_rank)
        if worker is not None:
            worker.has_ended = True
            self._read_page(worker)

    def last_words(self, local_rank: int) -> str:
        """What the crash handler of a worker that has ended left, if it did."""
        return self._stacks.take(local_rank)

    def keep_flight_record(self, local_rank: int) -> None:
        """It has failed: keep what PyTorch wrote of its collectives before it is written over."""
        worker, folder = self._workers.get(local_rank), self._round.stacks_folder
        if worker is not None and folder is not None:
            environ = self._means.environ
            # Not in the lane for files: the next round waits for that one.
            self._means.process_lane.do(partial(_keep_record, environ, worker, folder))

    def take_stacks(
        self, reason: str, then: OnStacks, wants_native: WantsNative | None = None
    ) -> None:
        """Ask all that run where they are. A request meanwhile gets the same answer."""
        self._awaited.append(then)
        if len(self._awaited) == 1:
            self._means.lane.do(load, partial(self._begin_stacks, reason, wants_native))

    def _begin_stacks(self, reason: str, wants_native: WantsNative | None, is_loaded: bool) -> None:
        if self._is_closed:
            return
        from holdfast.processes.monitoring import stacks

        asked, taken = self._running(), partial(self._on_taken, reason)
        self._taking = stacks.StackTaking(self._stacks, asked, self._means, taken, wants_native)
        self._taking.begin()

    def close(self) -> None:
        looks = (self._timer, self._hang_timer, self._stuck_timer)
        for timer in (*looks, self._load_timer, *(self._limit_timers or ())):
            if timer is not None:
                timer.cancel()
        self._is_closed = True
        self._keeping = 0
        if self._taking is not None:
            self._taking.end()
        self._hand_over(None)
        self._stacks.close()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _on_taken(self, reason: str, snapshot: stacks.StackSnapshot) -> None:
        folder = self._round.stacks_folder
        if folder is None or not snapshot.answers:
            self._hand_over(snapshot)
            return
        self._taken += 1
        path = folder / f"stacks_{self._taken}.txt"
        keep = partial(snapshot.kept, path, reason, self._means.environ)
        self._keeping, on_kept = self._taken, partial(self._on_kept, self._taken)
        self._means.lane.do(keep, on_kept)
        # A disk that does not answer may be why the job stands still: then there is no file.
        self._means.loop.call_later(KEPT_WITHIN_S, on_kept, snapshot)

    def _on_kept(self, number: int, snapshot: stacks.StackSnapshot) -> None:
        if self._keeping == number:
            self._keeping = 0
            self._hand_over(snapshot)

    def _hand_over(self, snapshot: stacks.StackSnapshot | None) -> None:
        self._taking = None
        awaited, self._awaited = self._awaited, []
        for then in awaited:
            then(snapshot)

    def _load(self) -> None:
        """What looks need is imported in a lane: the loop never waits for a disk."""

        def note(is_loaded: bool) -> None:
            self._is_loaded = is_loaded

        self._means.lane.do(load, note)

    def watched_by(self) -> Literal["", "steps", "signs"]:
        """By what workers are seen to move: steps that they report, other signs, or nothing yet."""
        signs = [sign for worker in self._running() if (sign := self._sign(worker)) is not None]
        if any(sign.step is not None for sign in signs) or any(
            worker.step is not None for worker in self._running()
        ):
            return "steps"
        return "signs" if signs else ""

    # How far they are.

    def _read_pages_later(self) -> None:
        self._timer = self._means.loop.call_later(self._round.interval_s, self._read_pages)

    def _read_pages(self) -> None:
        self._read_pages_later()
        for worker in self._running():
            self._read_page(worker)
            self._check_deadline(worker)
        self._note_paces()

    def _check_deadline(self, worker: Watched) -> None:
        """A scope that is over ends its worker, once its stack is kept."""
        if self._pages is None or worker.is_expired:
            return
        scope = self._pages.expired(worker.local_rank)
        if scope:
            self._expire(worker, sentences.scope_deadline(scope))

    def _expire(self, worker: Watched, deadline: str, *, is_final: bool = False) -> None:
        worker.is_expired = True
        tell = partial(self._on_expired, worker, deadline, is_final)
        self.take_stacks(f"{deadline} of rank {worker.rank} ran out", tell)

    def _on_expired(
        self, worker: Watched, deadline: str, is_final: bool, snapshot: stacks.StackSnapshot | None
    ) -> None:
        location, file = "", ""
        if snapshot is not None:
            location, file = snapshot.location_of(worker.rank), snapshot.file
        of = (self._round.number, worker.local_rank)
        self._post(DeadlineMissed(*of, deadline, location, file, is_final))

    def _set_limits(self) -> None:
        self._limit_timers = [
            self._means.loop.call_later(limit.after_s, self._limit_over, limit)
            for limit in limits_of(self._round.oversight, self._round.run_left_s)
        ]

    def _limit_over(self, limit: Limit) -> None:
        """The first that is too late is ended for it: its round ends with it."""
        for worker in self._running():
            if not worker.is_expired and limit.is_late(self._sign(worker), worker.step):
                self._expire(worker, limit.words, is_final=limit.is_final)
                return

    def find_unexited(self, *, ends: bool) -> None:
        """Where those are that still run, with their frames of C too."""
        tell = partial(self._on_unexited, ends)
        self.take_stacks("others have finished", tell, wants_native=lambda _: True)

    def _on_unexited(self, ends: bool, snapshot: stacks.StackSnapshot | None) -> None:
        if self._is_closed:
            return
        workers = tuple(
            Unexited(
                one.local_rank,
                "" if snapshot is None else snapshot.location_of(one.rank),
                snapshot is not None and snapshot.is_finalizing(one.rank, self._means.is_python),
            )
            for one in self._running()
        )
        file = "" if snapshot is None else snapshot.file
        self._post(UnexitedFound(self._round.number, workers, file, ends))

    def scope_over(self, pid: int, scope: str) -> None:
        """A timer of this process ran out (`monitor.file_timer`)."""
        from holdfast.processes.monitoring.file_timer import worker_above

        find = partial(worker_above, pid, {one.pid for one in self._running()})
        self._means.process_lane.do(find, partial(self._end_scope_of, clean(scope)))

    def _end_scope_of(self, scope: str, pid: int | None) -> None:
        if self._is_closed:
            return
        for worker in self._running():
            if worker.pid == pid and not worker.is_expired:
                self._expire(worker, sentences.scope_timer(scope))

    def worker_progress(self) -> list[WorkerProgress]:
        """How far each worker that runs is, and how fast, now; in the order of their local ranks.

        Reads memory alone, so it may be called on the loop (status, metrics)."""
        return [
            self._progress_of(worker)
            for worker in sorted(self._running(), key=lambda one: one.local_rank)
        ]

    def finished(self) -> list[WorkerProgress]:
        """The workers that have ended while the round goes on, with their last steps."""
        return [
            replace(self._progress_of(worker), step_age_s=None, steps_a_second=None, phase="")
            for worker in self._workers.values()
            if worker.has_ended
        ]

    def _progress_of(self, worker: Watched) -> WorkerProgress:
        from holdfast.core.policy import worker_progress

        sign, now = self._sign(worker), time.monotonic()
        step = worker.unsaid if worker.unsaid is not None else worker.step
        age_s = now - worker.heard_at
        if sign is not None and sign.step is not None:
            step, age_s = sign.step, sign.step_age_s
        marks = self._marks.setdefault(worker.local_rank, worker_progress.StepMarks())
        if step is not None:
            worker_progress.note(marks, step, now - age_s)
        return worker_progress.WorkerProgress(
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            step=step,
            step_age_s=None if step is None else age_s,
            steps_a_second=worker_progress.pace(marks, now),
            phase="" if sign is None else sign.phase,
        )

    def _note_paces(self) -> None:
        if not self._is_loaded:
            return
        from holdfast.core.policy import worker_progress

        if self._stragglers is None:
            after_s = self._round.oversight.straggler_after_s
            self._stragglers = worker_progress.StragglerWatch(after_s)
        workers, now = self.worker_progress(), time.monotonic()
        for words in worker_progress.stragglers(self._stragglers, workers, now):
            self._post(StragglerFound(self._round.number, words))

    def _read_page(self, worker: Watched) -> None:
        sign = self._sign(worker)
        step = worker.unsaid if sign is None or sign.step is None else sign.step
        if step is not None:
            self._tell(worker, step, 0.0 if sign is None else sign.step_age_s)

    def _sign(self, worker: Watched) -> Sign | None:
        return None if self._pages is None else self._pages.read(worker.local_rank)

    def _tell(self, worker: Watched, step: int, age_s: float) -> None:
        worker.unsaid = None
        if step != worker.step:
            worker.step = step
            self._post(StepReported(self._round.number, worker.local_rank, step, age_s))

    # Whether they hang.

    def _check_for_hangs_later(self) -> None:
        every_s = self._round.oversight.hang_check_s
        self._hang_timer = self._means.loop.call_later(every_s, self._check_for_hangs)

    def _check_for_hangs(self) -> None:
        self._check_for_hangs_later()
        if not self._is_loaded:
            return
        if self._hang_checks is None:
            self._hang_checks = self._begin_hang_checks()
        running = list(self._running())
        for worker in running:
            worker.stack_bytes = self._stacks.written(worker.local_rank)
        self._hang_checks.check([(worker, self._sign(worker)) for worker in running])

    def _check_for_stuck_later(self) -> None:
        every_s = self._round.oversight.stuck_check_s
        self._stuck_timer = self._means.loop.call_later(every_s, self._check_for_stuck)

    def _check_for_stuck(self) -> None:
        self._check_for_stuck_later()
        if not self._is_loaded:
            return
        if self._stuck_checks is None:
            from holdfast.core.policy.stuck import StuckLimits
            from holdfast.processes.monitoring.checks import StuckChecks

            watched = self._round.oversight
            terms = StuckLimits(watched.hang_after_s, watched.stuck_s, watched.stuck_check_s)
            self._stuck_checks = StuckChecks(terms, self._means.process_lane, self._on_stuck)
        self._stuck_checks.check({one.local_rank: one.pid for one in self._running()})

    def _on_stuck(self, finding: StuckFinding, words: str) -> None:
        if not self._is_closed:
            self._post(WorkerStuck(self._round.number, finding.local_rank, words, finding.ends))

    def _begin_hang_checks(self) -> HangChecks:
        from holdfast.core.policy.hangs import HangTerms
        from holdfast.processes.monitoring.checks import HangChecks

        watched = self._round.oversight
        terms = HangTerms(watched.hang_after_s, watched.hang_unreported_s, watched.hang_check_s)
        lane, port = self._means.process_lane, self._round.store_port
        return HangChecks(terms, lane, self._on_finding, port)

    def _on_finding(self, finding: Finding) -> None:
        if self._is_closed:
            return
        if finding == "movement":
            self._post(StallOver(self._round.number))
        else:
            self._verdict = None
            told = self._on_stacks_of_suspects
            self.take_stacks("the workers may hang", told, wants_native=self._is_hang)

    def _is_hang(self, snapshot: stacks.StackSnapshot) -> bool:
        if self._hang_checks is None:
            return False
        self._verdict = self._hang_checks.judge(snapshot)
        return self._verdict.hangs and not self._verdict.needs_cause

    def _on_stacks_of_suspects(self, snapshot: stacks.StackSnapshot | None) -> None:
        """Only now is anything said, unless they have moved while a debugger looked."""
        if snapshot is None or self._hang_checks is None:
            return
        verdict = self._verdict or self._hang_checks.judge(snapshot)
        if verdict.slow:
            self._post(StragglerFound(self._round.number, cut(verdict.slow, LINE_MOST)))
        if verdict.is_void:
            self._post(StallOver(self._round.number))
        if verdict.hangs and self._hang_checks.still_hangs:
            self._post(
                StallFound(
                    self._round.number,
                    cut(verdict.words, LINE_MOST),
                    snapshot.file,
                    verdict.suspect,
                    places_told(verdict.groups),
                    verdict.stalled_s,
                    verdict.never_reported,
                    verdict.needs_cause,
                )
            )


def places_told(groups: Iterable[StackGroup]) -> tuple[FrameGroup, ...]:
    """Where workers are, as the coordinator is told of it."""
    return tuple(
        FrameGroup(
            tuple(stack.rank for stack in group.stacks),
            cut(group.location.function, LINE_MOST),
            cut(group.location.where, LINE_MOST),
            cut(group.location.kernel, LINE_MOST),
        )
        for group in islice(groups, LOCATIONS_MOST)
    )


def _keep_record(environ: Mapping[str, str], worker: Watched, folder: Path) -> None:
    """In a lane."""
    from holdfast.processes.monitoring import flight_records

    flight_records.keep(environ, worker.rank, worker.born_at, folder)


def load() -> bool:
    """In a lane: import what later checks need."""
    import holdfast.core.policy.worker_progress
    import holdfast.processes.monitoring.checks  # noqa: F401 - for later checks

    return True
