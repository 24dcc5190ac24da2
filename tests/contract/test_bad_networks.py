"""What a register says when answers are lost, late or never come (rules 3 to 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.registers.register import RegisterUnreachable

from ..waiting import persistently
from .proxy import Proxy
from .stages import ServedStage

DEADLINE_S = 30.0


def test_a_write_whose_answer_is_lost_is_unknown_and_there(
    served: ServedStage, run_id: str
) -> None:
    far, near = served.open_far(run_id), served.open(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))
    served.proxy.lose_answer_to(b"the lost one", refuse_afterwards=True)
    with pytest.raises(RegisterUnreachable):
        far.set_state(b"the lost one", token)
    assert served.proxy.happened.is_set()
    found = near.get_state()
    assert found is not None
    assert found[0] == b"the lost one"

    served.proxy.forward()
    assert persistently(far.get_state) == found
    assert persistently(lambda: far.set_state(b"the lost one", token)) == (*found, True)
    assert persistently(lambda: far.set_state(b"after", found[1]))[2]


def test_a_first_write_whose_answer_is_lost_is_recognised(served: ServedStage, run_id: str) -> None:
    far = served.open_far(run_id)
    persistently(far.get_state)
    served.proxy.lose_answer_to(b"the lost one", refuse_afterwards=True)
    with pytest.raises(RegisterUnreachable):
        far.set_state(b"the lost one")
    served.proxy.forward()
    content, token, has_set = persistently(lambda: far.set_state(b"the lost one"))
    assert (content, has_set) == (b"the lost one", True)
    assert served.open(run_id).get_state() == (b"the lost one", token)


def test_a_write_whose_answer_is_lost_once_is_never_said_to_be_refused(
    served: ServedStage, run_id: str
) -> None:
    far = served.open_far(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))
    served.proxy.lose_answer_to(b"the lost one")
    content, _, has_set = persistently(lambda: far.set_state(b"the lost one", token))
    assert served.proxy.happened.is_set()
    assert (content, has_set) == (b"the lost one", True)


def test_a_write_that_was_overtaken_is_not_said_to_be_refused(
    served: ServedStage, run_id: str
) -> None:
    """It happened, and others have gone on from it, before it could be tried again."""
    far, near = served.open_far(run_id), served.open(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))

    def overtake() -> None:
        found = near.get_state()
        assert found is not None
        assert found[0] == b"the lost one"
        assert near.set_state(b"the newer one", found[1])[2]

    served.proxy.lose_answer_to(b"the lost one", meanwhile=overtake)
    try:
        _, _, has_set = far.set_state(b"the lost one", token)
    except RegisterUnreachable:
        has_set = True  # Unknown is as good.
    assert served.proxy.happened.is_set()
    assert has_set
    found = persistently(far.get_state)
    assert found is not None
    assert found[0] == b"the newer one"


def test_an_old_write_that_arrives_late_changes_nothing(served: ServedStage, run_id: str) -> None:
    far, near = served.open_far(run_id), served.open(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))
    served.proxy.hold_request_with(b"the late one")
    with pytest.raises(RegisterUnreachable):
        far.set_state(b"the late one", token)
    assert served.proxy.happened.is_set()
    newer = near.set_state(b"the newer one", token)
    assert newer[2]

    served.proxy.release()
    assert served.proxy.answered.wait(DEADLINE_S)
    assert near.get_state() == persistently(far.get_state) == newer[:2]


def test_a_first_write_that_arrives_late_changes_nothing(served: ServedStage, run_id: str) -> None:
    far, near = served.open_far(run_id), served.open(run_id)
    persistently(far.get_state)
    served.proxy.hold_request_with(b"the late one")
    with pytest.raises(RegisterUnreachable):
        far.set_state(b"the late one")
    newer = near.set_state(b"the first one")
    assert newer[2]
    served.proxy.release()
    assert served.proxy.answered.wait(DEADLINE_S)
    assert near.get_state() == persistently(far.get_state) == newer[:2]


@pytest.mark.parametrize("trouble", [Proxy.refuse, Proxy.swallow])
def test_a_server_that_cannot_be_reached_is_found_again(
    served: ServedStage, run_id: str, trouble: Callable[[Proxy], None]
) -> None:
    far = served.open_far(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))
    trouble(served.proxy)
    with pytest.raises(RegisterUnreachable):
        far.get_state()
    with pytest.raises(RegisterUnreachable):
        far.set_state(b"meanwhile", token)
    served.proxy.forward()
    assert persistently(far.get_state) == (b"before", token)
    assert persistently(lambda: far.set_state(b"after", token))[2]


def test_a_server_that_was_never_there_is_unreachable_until_it_is(
    served: ServedStage, run_id: str
) -> None:
    served.proxy.refuse()
    far = served.open_far(run_id)
    with pytest.raises(RegisterUnreachable):
        far.get_state()
    served.proxy.forward()
    assert persistently(far.get_state) is None


def test_answers_that_come_too_late_are_nobodys(served: ServedStage, run_id: str) -> None:
    far, near = served.open_far(run_id), served.open(run_id)
    _, token, _ = persistently(lambda: far.set_state(b"before"))
    served.proxy.hold_answers()
    with pytest.raises(RegisterUnreachable):
        far.get_state()
    _, token, _ = near.set_state(b"meanwhile", token)
    served.proxy.release()
    assert persistently(far.get_state) == (b"meanwhile", token)
    assert persistently(lambda: far.set_state(b"after", token))[2]
    found = persistently(far.get_state)
    assert found is not None
    assert found[0] == b"after"


@pytest.mark.thorough
def test_a_restart_of_the_server_keeps_what_is_on_its_disk(
    served: ServedStage, run_id: str
) -> None:
    """A TCPStore has no disk: then all is gone, and is not taken for something else."""
    near, far = served.open(run_id), served.open_far(run_id)
    _, stale, _ = near.set_state(b"first")
    _, token, _ = near.set_state(b"second", stale)
    assert persistently(far.get_state) == (b"second", token)
    served.restart()
    if served.is_durable:
        assert persistently(near.get_state) == persistently(far.get_state) == (b"second", token)
        assert persistently(lambda: far.set_state(b"third", stale)) == (b"second", token, False)
        assert near.set_state(b"third", token)[2]
    else:
        assert persistently(near.get_state) is persistently(far.get_state) is None
        assert persistently(lambda: far.set_state(b"third", token)) == (b"", None, False)
        assert near.set_state(b"third")[2]
