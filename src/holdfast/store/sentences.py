"""What the store tells its users, as functions of facts."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.protocol.model import Endpoint

NAMED_MOST = 5


def round_over(round: int) -> str:
    return f"round {round} is over"


def round_not_begun(round: int) -> str:
    return f"round {round} has not begun"


def too_large(what: str, size: int, limit: int) -> str:
    return f"a {what} of {size} bytes is above the limit of {limit} bytes"


def store_full(limit: int) -> str:
    return f"the store is full: it holds {limit} bytes at most"


def answer_too_large(limit: int) -> str:
    return f"the values are above {limit} bytes together: get fewer keys at once"


def too_many_keys(count: int, limit: int) -> str:
    return f"{count} keys are above the limit of {limit} keys in one request"


def too_many_waiting(limit: int) -> str:
    return f"too many clients wait for keys: their lists hold {limit} bytes at most"


def not_a_number(key: str) -> str:
    return f"cannot add to {key}: its value is not a number"


def number_too_large(key: str) -> str:
    return f"cannot add to {key}: the sum does not fit in 64 bits"


def not_set(keys: Sequence[str], waited_s: float) -> str:
    named = ", ".join(keys[:NAMED_MOST]) + (", …" if len(keys) > NAMED_MOST else "")
    words = f"{named} was not set" if len(keys) == 1 else f"not all of {named} were set"
    return f"{words} within {waited_s:g} s"


def keys_and_values_differ(keys: int, values: int) -> str:
    return f"{keys} keys cannot be set to {values} values"


def no_answer(endpoint: Endpoint, waited_s: float) -> str:
    return f"the store at {endpoint} did not answer within {waited_s:g} s"


def unreachable(endpoint: Endpoint, why: str) -> str:
    return f"the store at {endpoint}: {why}"


def unresolved(address: str) -> str:
    return f"cannot resolve {address}"


def unexpected_answer(kind: str) -> str:
    return f"the store gave an unexpected answer: {kind}"
