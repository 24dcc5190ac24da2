"""Whether a group of workers hangs: decided by rules, never by chance.

At each check it is known of each worker: how long ago it gave a sign (a step, a change of phase),
how long the longest wait in its phase was, and its state in the kernel. Stacks are read only once
workers are suspected, before anything is reported or done.

Rules
1. A worker is stalled from its last sign on, as far as it was checked meanwhile: a stretch
   without checks (a machine that slept, an agent that stalled) counts as one check.
2. It may be stalled for `FACTOR` times the longest wait that its phase has taken in this round,
   and never for less than the floor. Each round begins without a history.
3. Where no wait of the phase has ended in this round, nothing is known of it and no worker is
   accused: the start, the first step, a first evaluation or checkpoint take as long as they take.
   Deadlines are for those.
4. A group hangs only as a whole: one worker that is within its time clears all of them.
5. A working worker does not hang. Work is processor time since the last sign, input and output
   since the last check, or waiting for a processor; unless the worker is in a function that only
   waits for others: those may spin.
   A rank in no collective is slow, and not hung, as long as it moves: it uses a processor, reads or
   writes, or its stack is not the same in three checks. A rank that last moved less than the floor
   ago may do so again: an upload to a slow server moves in bursts. The ranks that wait for it are
   told so, once, and nothing is done. A rank in a lock, a sleep or a read does none of these.
6. A worker that is held does not hang: it waits for a device and cannot be woken, is
   stopped by a signal, or a debugger holds it.
7. A worker that never gave a sign, among others that did, has only to be without work. Where none
   ever did, the group is stalled as long as all of them neither work nor print, and may be so
   for `FACTOR` times the longest such stretch that ended by itself, and never for less than
   `unreported_s`. Such a group is reported, and never restarted.
   After the floor it is only a part of what the coordinator needs: it is reported where stacks show
   which rank the others wait for. Each worker has to be at the same location in three checks for
   that. Such verdicts are repeated, less and less often: one from before another rank ended is
   void. Where at least half of them are stalled and wait for others that work, that is reported
   once, as of a slow rank: an endless loop has the same signs.
8. A suspicion that its stacks do not confirm is not raised again before twice the time has passed.
   A verdict holds until a worker moves, and is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from holdfast.core.policy import sentences
from holdfast.core.policy.stacks import (
    StackFrame,
    StackGroup,
    WorkerStack,
    grouped,
    in_words,
    not_in_collective,
    odd_one,
)

FACTOR = 5.0
LATE_CHECKS = 2.0
"""A stretch without checks counts as this many at most."""
BUSY_SHARE = 0.1
"""Of a processor, since the last sign: a worker that used more works, even on a slow machine."""
BUSY_BYTES = 1 << 20
"""Since the last check: a worker that reads and writes more works."""
MOVING_SHARE = 0.05
"""Of a processor, since the last check: a rank in no collective that uses more moves."""
SAME_CHECKS = 3
"""This many equal stacks in a row mean that a rank does not move."""
IDLE_SHARE = 0.01
"""Of a worker that gives no signs: one that uses more is not stalled."""
IDLE_S = 0.025
"""The least time between two checks: the kernel counts in hundredths of a second."""
SWITCHES = 1.0
"""A second: a worker that gives no signs, and is woken more often, moves: it may be receiving."""
SWITCHES_OF_CHECKS = 10
"""Being asked for its stack wakes a worker, too."""
STUCK_STATES = frozenset("DTt")

Finding = Literal["nothing", "suspicion", "movement"]


class HangTerms(Struct, frozen=True):
    """The limits."""

    floor_s: float
    unreported_s: float
    interval_s: float
    """The interval of the checks."""


class WorkerSight(Struct, frozen=True):
    """One worker at one check."""

    rank: int
    age_s: float | None = None
    """Since its last sign; None where it never gave one."""
    phase: str = ""
    longest_s: float = 0.0
    """Of the waits in this phase that have ended, in this round; 0 where none has."""
    state: str = "S"
    traced: bool = False
    cpu_s: float = 0.0
    io_bytes: int = 0
    printed_bytes: int = 0
    switches: int = 0
    """How often its main thread has begun to wait."""


class WorkerStall(Struct):
    """The state of one worker."""

    stalled_s: float = 0.0
    longest_stall_s: float = 0.0
    """The longest stretch without a sign of work that ended by itself (rule 7)."""
    last: WorkerSight | None = None
    moved: WorkerSight | None = None
    """The check at which it last moved."""
    works: bool = True
    moves: bool = True
    """Since the previous check (rule 5)."""
    unmoved_s: float = 0.0
    """How long it has not moved."""
    frames: tuple[StackFrame, ...] = ()
    """Its location when last asked, since its last sign."""
    same: int = 0
    """How often in a row it was there."""
    in_collective: bool = True
    """Whether it was in one then."""


class HangVerdict(Struct, frozen=True):
    """The result of reading the stacks of a suspected group."""

    hangs: bool
    words: str
    suspect: int = 0
    """The rank that is the most likely cause: the outlier, else the first of all."""
    groups: tuple[StackGroup, ...] = ()
    """The locations of all."""
    stalled_s: float = 0.0
    """How long all have stalled."""
    never_reported: bool = False
    """None of them ever gave a sign: such a group is only reported."""
    needs_cause: bool = False
    """It hangs only if it waits for a rank that is known (rule 7)."""
    is_void: bool = False
    """An earlier verdict is void."""
    slow: str = ""
    """In words, the rank for which the others wait, where it moves; empty if reported before."""


class HangWatch(Struct):
    """The workers of one node in one round, or of a whole job of one node."""

    terms: HangTerms
    workers: dict[int, WorkerStall] = field(default_factory=dict)
    checked_at: float | None = None
    not_before: float = 0.0
    """When the next suspicion may be raised."""
    patience_s: float = 0.0
    hangs: bool = False
    may_hang: bool = False
    """The last verdict counts only if a cause is known (rule 7)."""
    is_long: bool = False
    """Workers that never gave a sign have stalled for as long as they may."""
    told_slow: bool = False


def check(watch: HangWatch, seen: Iterable[WorkerSight], now: float) -> Finding:
    """Take in one check of all running workers; the clock of `now` sleeps with the machine."""
    elapsed_s = 0.0 if watch.checked_at is None else max(0.0, now - watch.checked_at)
    watch.checked_at = now
    counted_s = min(elapsed_s, LATE_CHECKS * watch.terms.interval_s)
    found = list(seen)
    before = watch.workers
    watch.workers = {one.rank: before.get(one.rank) or WorkerStall() for one in found}
    for one in found:
        _take(watch.workers[one.rank], one, elapsed_s, counted_s)
    has_gone_on = watch.may_hang and any(
        one.moves and not one.in_collective for one in watch.workers.values()
    )
    if has_gone_on or not _all_beyond(watch, found):
        was = watch.hangs or watch.may_hang
        watch.hangs = watch.may_hang = watch.is_long = False
        watch.patience_s = 0.0
        if was or not _most_are_idle(watch, found):
            watch.told_slow = False
            return "movement" if was else "nothing"
        if watch.told_slow or now < watch.not_before:
            return "nothing"
        watch.not_before = now + watch.terms.floor_s
        return "suspicion"
    if before.keys() != watch.workers.keys():
        _start_over(watch)
    if not watch.is_long and _is_long(watch):
        watch.is_long, watch.not_before = True, now
    if (watch.hangs and _gave_signs(watch)) or now < watch.not_before:
        return "nothing"
    watch.patience_s = max(2 * watch.patience_s, watch.terms.floor_s)
    watch.not_before = now + watch.patience_s
    return "suspicion"


def judge(watch: HangWatch, stacks: Iterable[WorkerStack]) -> HangVerdict:
    """Take in the stacks of a suspected group; return the verdict."""
    known = {stack.rank: stack for stack in stacks}
    working = [
        rank
        for rank, worker in watch.workers.items()
        if worker.works and not (rank in known and known[rank].location.waits)
    ]
    groups = grouped(known.values())
    needs_cause = not (_gave_signs(watch) or watch.is_long)
    absent = {one.rank for group in not_in_collective(groups) for one in group.stacks}
    moving, unclear = _moving(watch, known, absent, everybody=needs_cause)
    if needs_cause:
        moving |= {rank for rank, one in watch.workers.items() if not _is_idle(watch, one)}
    was = watch.hangs or watch.may_hang
    watch.hangs = watch.may_hang = False
    if working or moving or not watch.workers:
        slow = _slow(watch, groups, {*working, *moving})
        return HangVerdict(False, in_words(groups), slow=slow, is_void=was)
    wait_s = _until_unmoved_s(watch, absent)
    if unclear or wait_s > 0.0:
        watch.not_before, watch.patience_s = (watch.checked_at or 0.0) + wait_s, 0.0
        return HangVerdict(False, in_words(groups), is_void=was)
    if needs_cause and any(not (one in known and known[one].frames) for one in watch.workers):
        return HangVerdict(False, in_words(groups), is_void=was)
    watch.hangs, watch.may_hang = not needs_cause, needs_cause
    odd = odd_one(groups)
    return HangVerdict(
        hangs=True,
        words=f"{_how_long(watch)}: {in_words(groups)}",
        suspect=min(watch.workers) if odd is None else odd.rank,
        groups=groups,
        stalled_s=min(worker.stalled_s for worker in _reporting(watch)),
        never_reported=not _gave_signs(watch),
        needs_cause=needs_cause,
    )


def _start_over(watch: HangWatch) -> None:
    """A worker has ended: others may have waited for that."""
    for worker in watch.workers.values():
        worker.frames, worker.same = (), 0
    if not _gave_signs(watch):
        watch.hangs = watch.may_hang = False
        watch.not_before = watch.patience_s = 0.0


def _moving(
    watch: HangWatch, known: dict[int, WorkerStack], absent: set[int], everybody: bool
) -> tuple[set[int], bool]:
    """Ranks in no collective that move (rule 5), and whether another check is needed."""
    moving, unclear = set(), False
    for rank, worker in watch.workers.items():
        stack = known.get(rank)
        if stack is None or not stack.frames:
            continue
        in_collective = rank not in absent
        if in_collective and not everybody:
            continue
        worker.in_collective = in_collective
        is_known, is_same = bool(worker.frames), worker.frames == stack.frames
        worker.frames, worker.same = stack.frames, worker.same + 1 if is_same else 1
        unclear = unclear or worker.same < SAME_CHECKS
        if (worker.moves and not in_collective) or (is_known and not is_same):
            moving.add(rank)
    return moving, unclear


def _until_unmoved_s(watch: HangWatch, absent: set[int]) -> float:
    """How long until ranks in no collective have not moved for the floor."""
    left = [
        watch.terms.floor_s - watch.workers[one].unmoved_s for one in absent & set(watch.workers)
    ]
    return max(0.0, *left) if left else 0.0


def _slow(watch: HangWatch, groups: tuple[StackGroup, ...], ranks: set[int]) -> str:
    """The report on ranks that move while others wait for them; empty if reported before."""
    behind = [one for one in groups if any(stack.rank in ranks for stack in one.stacks)]
    absent = not_in_collective(groups)
    waiting = [one for one in groups if one not in absent and one not in behind]
    if not behind or not waiting or watch.told_slow:
        return ""
    watch.told_slow = True
    return sentences.slow(in_words(tuple(behind)), in_words(tuple(waiting)))


def _take(worker: WorkerStall, one: WorkerSight, elapsed_s: float, counted_s: float) -> None:
    last, worker.last = worker.last, one
    if last is None or worker.moved is None:
        worker.moved = one
        return
    if one.age_s is None:
        cpu_s = one.cpu_s - last.cpu_s
        has_moved = (
            cpu_s > max(IDLE_S, IDLE_SHARE * elapsed_s) or one.printed_bytes != last.printed_bytes
        )
        if has_moved:
            worker.longest_stall_s = max(worker.longest_stall_s, worker.stalled_s)
        worker.stalled_s = 0.0 if has_moved else worker.stalled_s + counted_s
    else:
        has_moved = one.age_s <= elapsed_s
        worker.stalled_s = min(one.age_s, counted_s) if has_moved else worker.stalled_s + counted_s
    if has_moved:
        worker.moved, worker.frames, worker.same = one, (), 0
    recent_s = one.cpu_s - last.cpu_s
    worker.moves = recent_s > MOVING_SHARE * elapsed_s or one.io_bytes != last.io_bytes
    if one.age_s is None:
        woken = one.switches - last.switches
        worker.moves = worker.moves or woken > SWITCHES * elapsed_s + SWITCHES_OF_CHECKS
    worker.unmoved_s = 0.0 if worker.moves else worker.unmoved_s + counted_s
    used_s, read_or_written = one.cpu_s - worker.moved.cpu_s, one.io_bytes - last.io_bytes
    is_busy = used_s > BUSY_SHARE * worker.stalled_s or read_or_written > BUSY_BYTES
    worker.works = is_busy or one.state == "R"


def _all_beyond(watch: HangWatch, found: list[WorkerSight]) -> bool:
    """Whether all have stalled for longer than they may, and none is held."""
    if not found or any(one.state in STUCK_STATES or one.traced for one in found):
        return False
    some_gave_signs = any(one.age_s is not None for one in found)
    if some_gave_signs:
        found = [one for one in found if one.age_s is not None]
    return all(_is_beyond(watch, one) for one in found)


def _most_are_idle(watch: HangWatch, found: list[WorkerSight]) -> bool:
    """Whether at least half of a group that never gave a sign may wait for the others."""
    if any(one.age_s is not None or one.state in STUCK_STATES or one.traced for one in found):
        return False
    idle = sum(_is_idle(watch, watch.workers[one.rank]) for one in found)
    return 0 < len(found) <= 2 * idle


def _is_idle(watch: HangWatch, worker: WorkerStall) -> bool:
    return worker.last is not None and _is_beyond(watch, worker.last)


def _is_beyond(watch: HangWatch, one: WorkerSight) -> bool:
    worker, terms = watch.workers[one.rank], watch.terms
    if one.age_s is None:
        return worker.stalled_s > max(terms.floor_s, FACTOR * worker.longest_stall_s)
    if one.longest_s <= 0.0:
        return False
    return worker.stalled_s > max(terms.floor_s, FACTOR * one.longest_s)


def _is_long(watch: HangWatch) -> bool:
    """Whether none ever gave a sign, and all have stalled for `unreported_s` at least."""
    still = all(one.stalled_s > watch.terms.unreported_s for one in watch.workers.values())
    return still and not _gave_signs(watch)


def _gave_signs(watch: HangWatch) -> bool:
    return any(worker.last and worker.last.age_s is not None for worker in watch.workers.values())


def _reporting(watch: HangWatch) -> list[WorkerStall]:
    """Workers that have ever given a sign; all of them if none has."""
    workers = list(watch.workers.values())
    return [one for one in workers if one.last and one.last.age_s is not None] or workers


def _how_long(watch: HangWatch) -> str:
    """How long all have been stalled, and how long they waited before."""
    last = [worker.last for worker in _reporting(watch) if worker.last]
    stalled_s = min(worker.stalled_s for worker in _reporting(watch))
    if not _gave_signs(watch):
        return sentences.stalled_silently(len(watch.workers), stalled_s)
    phases = sorted({one.phase for one in last if one.phase})
    longest_s = max(one.longest_s for one in last)
    return sentences.stalled(len(watch.workers), stalled_s, phases, longest_s)
