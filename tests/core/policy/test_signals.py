"""When a signal that comes again is a second one."""

from __future__ import annotations

import signal

import pytest

from holdfast.core.policy.signals import SAME_FOR_S, LastSignal, is_repeat

TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
FIRST = LastSignal(TERM, 10.0)


def test_the_first_signal_is_no_repeat() -> None:
    assert not is_repeat(TERM, 10.0, None)


@pytest.mark.parametrize(
    ("number", "after_s", "expected"),
    [
        (TERM, 0.0, True),
        (TERM, 0.002, True),
        (TERM, SAME_FOR_S, True),
        (TERM, SAME_FOR_S + 0.01, False),
        (USR1, 0.002, False),
    ],
)
def test_the_same_signal_within_two_seconds_is_one(
    number: int, after_s: float, expected: bool
) -> None:
    assert is_repeat(number, FIRST.at + after_s, FIRST) == expected


def test_ctrl_c_twice_is_twice_however_quickly() -> None:
    assert not is_repeat(INT, 10.1, LastSignal(INT, 10.0))
