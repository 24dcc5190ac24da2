"""What happened to one register, as its users saw it; and whether that could have been.

A history is *linearizable* if every operation can be given one moment between its beginning
and its end, so that a register which does one thing at a time would have answered the same.
For a register whose contents are all different, and whose sets name the content that they
follow, that is decided by looking, without search:

1. Of the sets that happened each follows another content, and they form one chain, which
   begins where nothing was.
2. A set that was refused did not happen, and what it was shown is not what it expected.
3. Whatever was seen is in the chain. An operation's *position* is that of the content that it
   set or saw.
4. What ends before another begins has no higher position than the other.
5. Nothing is seen before its set began.

With rules 4 and 5 the order by position, sets first, is such an assignment of moments. A set
whose answer did not come may have happened at any time after it began, or not at all: it
happened if its content was seen, or followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Outcome = Literal["read", "set", "refused", "unknown"]


class Operation(Struct, frozen=True):
    """One call, by the clock that all processes of a machine share."""

    who: str
    began: float
    ended: float
    outcome: Outcome
    seen: str | None
    """The content that the call returned; None where nothing was there."""
    content: str = ""
    """What was to be set."""
    expected: str | None = None
    """The content that the token was given with; None without a token."""


class NotLinearizable(AssertionError):
    """No order of the operations explains what was seen."""


def check(history: Iterable[Operation]) -> list[str]:
    """The contents in their order; raises `NotLinearizable` with the reason."""
    operations = list(history)
    sets = _sets_that_happened(operations)
    chain = _chain(sets)
    position: dict[str | None, int] = {None: 0}
    position.update((content, number) for number, content in enumerate(chain, 1))
    began = {operation.content: operation.began for operation in sets}
    for operation in operations:
        _check_alone(operation, position, began)
    _check_times([each for each in operations if each.outcome != "unknown"], sets, position)
    return chain


def _sets_that_happened(operations: list[Operation]) -> list[Operation]:
    noticed = {each.seen for each in operations if each.outcome != "unknown"}
    noticed |= {each.expected for each in operations}
    for each in operations:
        if each.outcome == "refused" and each.content in noticed:
            raise NotLinearizable(f"{each.content} was refused, and happened")
    found: dict[str, Operation] = {}
    for each in operations:
        if each.outcome == "set" or (each.outcome == "unknown" and each.content in noticed):
            first = found.get(each.content)
            found[each.content] = each if first is None else _tried_twice(first, each)
    return list(found.values())


def _tried_twice(first: Operation, second: Operation) -> Operation:
    """The same write, tried again after no answer: it happened at any time of the two tries."""
    if "unknown" not in (first.outcome, second.outcome):
        raise NotLinearizable(f"{first.content} was set twice")
    return Operation(
        first.who,
        min(first.began, second.began),
        max(first.ended, second.ended),
        "set" if "set" in (first.outcome, second.outcome) else "unknown",
        first.content,
        first.content,
        first.expected,
    )


def _chain(sets: list[Operation]) -> list[str]:
    followers: dict[str | None, Operation] = {}
    for each in sets:
        other = followers.setdefault(each.expected, each)
        if other is not each:
            raise NotLinearizable(
                f"{each.content} of {each.who} and {other.content} of {other.who} "
                f"both follow {each.expected}"
            )
    chain: list[str] = []
    last: str | None = None
    while last in followers:
        last = followers.pop(last).content
        chain.append(last)
    if followers:
        lost = ", ".join(sorted(map(str, followers))[:5])
        raise NotLinearizable(f"{len(followers)} follow what was never there: {lost}")
    return chain


def _check_alone(
    operation: Operation, position: dict[str | None, int], began: dict[str, float]
) -> None:
    if operation.outcome == "refused":
        if operation.content in position:
            raise NotLinearizable(f"{operation.content} was refused, and set by another call")
        if operation.seen == operation.expected:
            raise NotLinearizable(f"{operation.content} was refused, and its token was right")
    if operation.outcome == "unknown":
        return
    if operation.outcome == "set" and operation.seen != operation.content:
        raise NotLinearizable(f"{operation.content} was set, and {operation.seen} was shown")
    if operation.seen not in position:
        raise NotLinearizable(f"{operation.who} saw {operation.seen}, which nobody set")
    if operation.seen is not None and operation.ended < began[operation.seen]:
        raise NotLinearizable(f"{operation.who} saw {operation.seen} before its set began")


def _check_times(
    known: list[Operation], sets: list[Operation], position: dict[str | None, int]
) -> None:
    """Positions never fall from what has ended to what begins afterwards."""
    tries: dict[str, float] = {}
    for each in sets:
        tries[each.content] = each.began
    moments: list[tuple[float, int, int, Operation]] = []
    for each in known:
        place = position[each.seen]
        began = tries[each.content] if each.outcome == "set" else each.began
        moments.append((began, 0, place, each))
        moments.append((each.ended, 1, place, each))
    highest, of = -math.inf, None
    for _, is_end, place, each in sorted(moments, key=lambda moment: moment[:3]):
        if not is_end and place < highest and of is not None:
            raise NotLinearizable(
                f"{each.who} came to {each.seen} after {of.who} had come to {of.seen}"
            )
        if is_end and place > highest:
            highest, of = place, each
