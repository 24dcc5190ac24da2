"""What a note proves, rule by rule of `core.policy.liveness_locks`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.policy.liveness_locks import (
    OUTERMOST,
    Evidence,
    LockOrigin,
    LockRecord,
    RecordedSeat,
    ended_member,
    judge,
)
from holdfast.core.protocol.messages import EndedMember

HERE = LockOrigin("machine", "this start", OUTERMOST)
EARLIER = replace(HERE, start="an earlier start")
IN_A_CONTAINER = replace(HERE, namespace="pid:[4026532222]")
NOTE = LockRecord("job", "here-1", HERE, file=7)
FREE = Evidence(7, is_locked=False)


def test_1_a_lock_that_can_be_taken_proves_the_end() -> None:
    assert judge(NOTE, HERE, FREE) == "ended"
    assert judge(NOTE, HERE, replace(FREE, is_locked=True)) == "may run"


def test_1_a_copy_of_a_note_proves_nothing() -> None:
    assert judge(NOTE, HERE, replace(FREE, file=8)) == "unknown"


def test_2_a_process_that_carries_the_marker_may_run() -> None:
    assert judge(NOTE, HERE, replace(FREE, marked=1)) == "may run"


@pytest.mark.parametrize("where", [IN_A_CONTAINER, replace(HERE, namespace="")])
def test_2_who_looks_from_another_namespace_cannot_know(where: LockOrigin) -> None:
    assert judge(NOTE, where, FREE) == "unknown"
    assert judge(replace(NOTE, where=where), HERE, FREE) == "unknown"


def test_2_within_one_namespace_a_container_knows_too() -> None:
    assert judge(replace(NOTE, where=IN_A_CONTAINER), IN_A_CONTAINER, FREE) == "ended"


def test_3_another_start_of_the_machine_proves_the_end() -> None:
    assert judge(replace(NOTE, where=EARLIER), HERE, replace(FREE, marked=1)) == "ended"


@pytest.mark.parametrize(
    "note",
    [
        replace(EARLIER, machine="another"),
        replace(EARLIER, namespace=IN_A_CONTAINER.namespace),
        replace(EARLIER, start=""),
    ],
)
def test_3_but_not_of_another_machine_or_of_a_container(note: LockOrigin) -> None:
    assert judge(replace(NOTE, where=note), HERE, FREE) == "unknown"


@pytest.mark.parametrize("here", [replace(HERE, machine=""), replace(HERE, start="")])
def test_3_nor_where_it_is_not_known_which_machine_this_is(here: LockOrigin) -> None:
    nameless = replace(EARLIER, machine=here.machine)
    assert judge(replace(NOTE, where=nameless), here, FREE) == "unknown"


def test_what_is_told_has_the_seat() -> None:
    assert ended_member(NOTE) is None, "it never was in a round"
    seated = replace(NOTE, seat=RecordedSeat(3, 4, 1))
    assert ended_member(seated) == EndedMember("here-1", 3, 4, 1)
