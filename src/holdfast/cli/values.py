"""Parsers of option values, beside those of `core.policy.texts`.

Rules
- The rules of those parsers hold here too.
- A parser that feeds several fields of the configuration returns a tuple, one for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.core.policy.config import BUILT_IN_CHECK
from holdfast.core.policy.texts import NUMBER_MAX, flag, text
from holdfast.core.protocol.errors import UsageError

WORKERS_MAX = 2**22  # what Linux can have of processes
_NAME_LENGTH_MAX = 200  # a run id names a directory, whose name ends at 255 with our suffix
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NOT_FORWARDABLE = {
    "SIGKILL": "cannot be caught",
    "SIGSTOP": "cannot be caught",
    "SIGCHLD": "is how the agent learns that a worker ended",
}


def inverted_flag(text: str) -> bool:
    """For an option that turns something off."""
    return not flag(text)


def duration(text: str) -> float:
    """`30s`, `5m`, `2h` or `90`, as seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?", text.strip())
    if found is None or float(found[1]) <= 0.0:
        raise UsageError(f"invalid duration: {text!r}", "use 30s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2] or ""]


def check(text: str) -> str:
    """`--check` alone is the built-in one; with a value, that command."""
    try:
        return BUILT_IN_CHECK if flag(text) else ""
    except UsageError:
        return text.strip()


def plain(value: str) -> str:
    """Any text, even empty: judged later, together with other options."""
    return value.strip()


def optional_text(value: str) -> str | None:
    """Any text; an empty one is the same as none."""
    return value or None


def numeric_address(value: str) -> str:
    """An IPv4 or IPv6 address, with or without its brackets; `localhost` is 127.0.0.1."""
    from ipaddress import ip_address

    address = value.strip().removeprefix("[").removesuffix("]")
    if address == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(address))
    except ValueError:
        hint = "write a number such as 10.0.0.5 or ::1; names are not looked up"
        raise UsageError(f"{value!r} is not a numeric address", hint) from None


def run_id(value: str) -> str:
    """The name of a job, which is part of a directory's name too."""
    name = text(value)
    if "/" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot name a job", "the name is used for a directory: no / in it"
        )
    if len(name.encode()) > _NAME_LENGTH_MAX:
        raise UsageError("the name is too long", f"use at most {_NAME_LENGTH_MAX} bytes")
    return name


def nodes(value: str) -> tuple[int, int]:
    """`N` or `MIN:MAX`, as the least and the greatest number of nodes."""
    least, colon, most = value.partition(":")
    try:
        low = int(least)
        high = int(most) if colon else low
    except ValueError:
        raise UsageError(
            f"{value!r} is neither N nor MIN:MAX", "write 2, or 1:4 for an elastic job"
        ) from None
    if not 1 <= low <= NUMBER_MAX or high > NUMBER_MAX:
        raise UsageError(f"{value} is not a number of nodes", "a job has at least 1 node")
    if high < low:
        raise UsageError(f"{value!r} has the larger number first", "write the smaller one first")
    return low, high


def processes(value: str) -> int | str:
    """A positive number, or the word for what to count."""
    if value in ("cpu", "gpu", "xpu", "auto"):
        return value
    hint = "write a positive number, cpu, gpu, xpu or auto"
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{value!r} is not a number of workers", hint) from None
    if not 1 <= number <= WORKERS_MAX:
        raise UsageError(f"{value} workers cannot be started", hint)
    return number


def streams(value: str) -> tuple[int, dict[int, int]]:
    """`3` for all local ranks, or `0:3,12:1` for those named: (the rest, by local rank)."""
    if re.fullmatch(r"[0-3]", value):
        return int(value), {}
    pairs = [item.partition(":") for item in value.split(",")]
    if all(re.fullmatch(r"[0-9]{1,6}", r) and re.fullmatch(r"[0-3]", s) for r, _, s in pairs):
        return 0, {int(rank): int(which) for rank, _, which in pairs}
    raise UsageError(
        f"{value!r} is not a choice of streams",
        "0 none, 1 stdout, 2 stderr, 3 both, for all ranks; or by local rank: 0:3,1:2",
    )


def local_ranks(value: str) -> tuple[int, ...] | None:
    """`0,2`; empty text filters nothing."""
    if not value.strip():
        return None
    ranks = [item.strip() for item in value.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", rank) for rank in ranks):
        raise UsageError(f"{value!r} is not a list of local ranks", "write 0, or 0,2,3")
    return tuple(sorted({int(rank) for rank in ranks}))


def exit_codes(value: str) -> tuple[int, ...]:
    """`3,4`: codes of failures, so 1 to 255."""
    hint = "write numbers from 1 to 255 with commas between, such as 3,4"
    try:
        codes = [int(item) for item in value.split(",") if item.strip()]
    except ValueError:
        raise UsageError(f"{value!r} is not a list of exit codes", hint) from None
    if any(not 1 <= code <= 255 for code in codes):
        raise UsageError(f"{value!r} has a code that is no failure's", hint)
    return tuple(dict.fromkeys(codes))


def filters(value: str) -> tuple[str, ...]:
    """A comma list in which `,,` is a literal comma. Empty items would match every line
    and are left out."""
    items = [""]
    for piece in re.split(r"(,,|,)", value):
        if piece == ",":
            items.append("")
        else:
            items[-1] += "," if piece == ",," else piece
    return tuple(item for item in items if item)


def modules(value: str) -> tuple[str, ...]:
    """A comma list of importable names."""
    names = [item.strip() for item in value.split(",") if item.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                f"{name!r} is not the name of a module",
                "write names as in an import, with commas between: numpy,torch.distributed",
            )
    return tuple(dict.fromkeys(names))


def signals(value: str) -> tuple[str, ...]:
    """Names of signals, with or without their SIG, each once."""
    import signal

    names = []
    for item in value.split(","):
        word = item.strip().upper()
        name = word if word.startswith("SIG") else f"SIG{word}"
        try:
            name = signal.Signals[name].name
        except KeyError:
            near = closest(name, signal.Signals.__members__) if item.strip() else ""
            hint = near or "write names such as TERM,USR1"
            raise UsageError(f"there is no signal {item.strip()!r}", hint) from None
        if name in _NOT_FORWARDABLE:
            raise UsageError(f"{name} {_NOT_FORWARDABLE[name]}", "leave it out of the list")
        names.append(name)
    return tuple(dict.fromkeys(names))


def drain_signals(value: str) -> tuple[str, ...]:
    """Names of signals, or `none`."""
    return () if value.strip().lower() == "none" else signals(value)


def worker_signal(value: str) -> str | None:
    """The name of one signal, or `none`."""
    names = drain_signals(value)
    if len(names) > 1:
        raise UsageError(f"{value!r} is more than one signal", "write one, such as USR1")
    return names[0] if names else None


def closest(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` for the nearest known word; empty where none is near."""
    import difflib

    words = list(known)
    starting = [name for name in words if word and name.startswith(word)]
    near = starting[:1] or difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else ""
