"""How the text of one option becomes a value.

Rules
- A parser takes the text as typed and returns the value, or raises `UsageError` with what
  is wrong and a hint. It does not know the name of its option: the caller puts it in front.
- Nothing here reads the environment, a file or the clock.
- A parser that feeds several fields of the configuration returns a tuple, one for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from holdfast.core.errors import UsageError
from holdfast.core.model import Endpoint

Parser = Callable[[str], object]

PORT_MAX = 65535
NUMBER_MAX = 2**31 - 1
SECONDS_MAX = 1e9  # thirty years; clocks of the system overflow somewhere above
WORKERS_MAX = 2**22  # what Linux can have of processes
_NAME_LENGTH_MAX = 200  # a run id names a directory, whose name ends at 255 with our suffix
_SECONDS = "write a plain number of seconds such as 30 or 2.5"
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
_NO = frozenset({"0", "false", "f", "no", "n", "off"})
_NOT_FORWARDABLE = {
    "SIGKILL": "cannot be caught",
    "SIGSTOP": "cannot be caught",
    "SIGCHLD": "is how the agent learns that a worker ended",
}


def flag(text: str) -> bool:
    """Any whole number but 0 is yes, as it is for torchrun; so are the usual words."""
    word = text.strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    try:
        return int(word) != 0
    except ValueError:
        raise UsageError(f"{text!r} is neither yes nor no", "write 1 or 0") from None


def inverted_flag(text: str) -> bool:
    """For an option that turns something off."""
    return not flag(text)


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
    """A parser that accepts these words only."""

    def parse(text: str) -> str:
        if text not in choices:
            hint = f"choose from {listed(choices, 'or')}"
            raise UsageError(f"{text!r} is not one of the choices", hint)
        return text

    return parse


def text(value: str) -> str:
    """Any text but the empty one."""
    if not value.strip():
        raise UsageError("the value is empty", "give one, or leave the option out")
    return value


def plain(value: str) -> str:
    """Any text, the empty one included: judged later, together with other options."""
    return value.strip()


def optional_text(value: str) -> str | None:
    """Any text; an empty one is the same as none."""
    return value or None


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
    """A positive number, or the word for what is to be counted."""
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
        f"{value!r} does not say which streams",
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
        raise UsageError(f"{value!r} lists what is not the exit code of a failure", hint)
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
            hint = closest(name, signal.Signals.__members__)
            raise UsageError(f"there is no signal {item.strip()!r}", hint) from None
        if name in _NOT_FORWARDABLE:
            raise UsageError(f"{name} {_NOT_FORWARDABLE[name]}", "leave it out of the list")
        names.append(name)
    return tuple(dict.fromkeys(names))


def host(value: str) -> str:
    """A host name or an address; brackets around IPv6 are taken off."""
    address = value.strip()
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    if ":" in bare and _is_ipv6(bare):
        return bare
    if not re.fullmatch(r"[\w.-]+", bare, re.ASCII) or bare != address:
        raise UsageError(
            f"{value!r} is not a host", "write a host name, or an IPv4 or IPv6 address"
        )
    return bare


def endpoint(value: str, default_port: int) -> Endpoint:
    """`host`, `host:port`, `[ipv6]` or `[ipv6]:port`."""
    place = value.strip()
    if "@" in place:
        # Not shown: what stands before it is often a password.
        raise UsageError("an endpoint has no user or password in it", "write HOST:PORT only")
    if "://" in place:
        raise UsageError(f"{value!r} is a URL", "write HOST:PORT only")
    if place.count(":") > 1 and not place.startswith("["):
        hint = f"put IPv6 in brackets: [{place}]" if _is_ipv6(place) else "write HOST:PORT"
        raise UsageError(f"{value!r} has too many colons", hint)
    matched = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", place)
    name, port = matched.groups() if matched else (place, None)
    if port is None:
        return Endpoint(host(name), default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MAX:
        raise UsageError(f"{port!r} is not a port", f"ports go from 0 to {PORT_MAX}")
    return Endpoint(host(name), int(port))


def _is_ipv6(address: str) -> bool:
    import socket

    try:
        socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return False
    return True


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


def closest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean …?` for the nearest known word, else `otherwise`."""
    import difflib

    words = list(known)
    starting = [name for name in words if word and name.startswith(word)]
    near = starting[:1] or difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else otherwise
