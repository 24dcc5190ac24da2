"""Parsers of user input: yes or no, a number, a time, a word.

Rules
- A parser takes the text as written and returns the value, or raises `UsageError` with
  the mistake and a hint. It does not know the option: the caller puts the name in front.
- Nothing here reads the environment, a file or the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.protocol.errors import UsageError

Parser = Callable[[str], object]

NUMBER_MAX = 2**31 - 1
SECONDS_MAX = 1e9  # thirty years; clocks of the system overflow somewhere above
_SECONDS = "write a plain number of seconds such as 30 or 2.5"
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
_NO = frozenset({"0", "false", "f", "no", "n", "off"})


def flag(text: str) -> bool:
    """Any whole number but 0 is yes, as it is for torchrun; so are the usual words."""
    word = text.strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    try:
        return int(word) != 0
    except ValueError:
        raise UsageError(f"{text!r} is neither yes nor no", "write 1 or 0") from None


def whole_number(minimum: int, maximum: int = NUMBER_MAX) -> Callable[[str], int]:
    """A parser of whole numbers from `minimum` up to `maximum`, both included."""
    limits = f"{minimum} or more" if maximum == NUMBER_MAX else f"{minimum} to {maximum}"

    def parse(text: str) -> int:
        hint = f"write a whole number, {limits}"
        try:
            number = int(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a whole number", hint) from None
        if not minimum <= number <= maximum:
            raise UsageError(f"{text} is out of range", hint)
        return number

    return parse


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number of seconds", _SECONDS) from None
    if not abs(number) <= SECONDS_MAX:  # written so that it refuses nan too
        raise UsageError(f"{text!r} is not a length of time", _SECONDS)
    return number


def seconds(text: str) -> float:
    """Zero or more seconds."""
    number = _finite(text)
    if number < 0:
        raise UsageError(f"{text} is too short: it must be 0 or more", _SECONDS)
    return number


def positive_seconds(text: str) -> float:
    """More than zero seconds."""
    number = _finite(text)
    if number <= 0:
        raise UsageError(f"{text} is too short: it must be more than 0", _SECONDS)
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that accepts only these words, in any case, as PyTorch's backends do."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            hint = f"choose from {listed(choices, 'or')}"
            raise UsageError(f"{text!r} is not one of the choices", hint)
        return word

    return parse


def text(value: str) -> str:
    """Any text but the empty one."""
    if not value.strip():
        raise UsageError("the value is empty", "give one, or leave the option out")
    return value


def pairs(value: str) -> dict[str, str]:
    """`key=value,key=value`."""
    found: dict[str, str] = {}
    for item in value.split(",") if value.strip() else ():
        key, _, setting = (part.strip() for part in item.partition("="))
        if not key or not setting:
            raise UsageError(f"{item!r} is not key=value", "write key=value,key=value")
        found[key] = setting
    return found


def listed(words: Iterable[str], last: str = "and") -> str:
    """`a, b and c`."""
    *front, back = words
    return f"{', '.join(front)} {last} {back}" if front else back
