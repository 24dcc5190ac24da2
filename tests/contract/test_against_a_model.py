"""Any sequence of calls by two users gives what a register in memory would have given."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.registers.register import Token

from .stages import EtcdStage, OpenRegister, Stage

Call = tuple[int, str, int]
"""By whom, what, and with the token of how many versions ago (-1: without a token)."""
CALLS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["read", "set"]), st.integers(-1, 3)),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=CALLS)
def test_any_sequence_is_answered_as_by_a_model(
    stage: Stage, new_run_id: Callable[[], str], calls: list[Call]
) -> None:
    if isinstance(stage, EtcdStage):
        calls = calls[:6]  # Each is a write to a disk, or three.
    run_id = new_run_id()
    users = stage.open(run_id), stage.open(run_id)
    versions: list[tuple[bytes, Token]] = []
    for number, (who, what, age) in enumerate(calls):
        if what == "read":
            assert users[who].get_state() == (versions[-1] if versions else None)
        else:
            _set(users[who], b"content %d" % number, age, versions)
    stage.close_registers()


def _set(
    register: OpenRegister, content: bytes, age: int, versions: list[tuple[bytes, Token]]
) -> None:
    token = versions[-1 - age][1] if 0 <= age < len(versions) else None
    is_right = token == (versions[-1][1] if versions else None)
    answer = register.set_state(content, token)
    if not is_right:
        assert answer == (*versions[-1], False)
        return
    assert answer[0] == content
    assert answer[2]
    assert answer[1] not in [known for _, known in versions], "a token has two meanings"
    versions.append((content, answer[1]))
