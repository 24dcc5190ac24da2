"""Judging all nodes together: their reports go in, findings come out.

Rules
1. Versions that differ are named with who has which: the many in front, then the odd ones.
2. A node that no other can dial at any of its addresses is an error, whatever works the
   other way: any of them may be rank 0.
3. Clocks may differ: Holdfast compares none. It is said from a second on, since logs and
   certificates are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Count, Line, Seconds
from holdfast.doctor import machine, sentences
from holdfast.doctor.facts import Finding, Level, MachineFacts, Short, Wanted, most_serious_first

SLOW_ROUND_TRIP_S = 0.01
CLOCK_APART_S = 1.0
COMPARED_VARIABLES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")


class DialResult(Struct, frozen=True):
    """The result of one node dialling another."""

    to: Count
    """The other's place in the round."""
    address: Short
    round_trip_s: Seconds | None = None
    """None where nobody answered."""
    clock_ahead_s: Seconds = 0.0
    """By how much the other's clock is ahead of ours."""
    problem: Line = ""


class Examined(Struct, frozen=True):
    """All that one node found out."""

    rank: Count
    facts: MachineFacts
    dials: Annotated[tuple[DialResult, ...], Meta(max_length=4096)] = ()
    shared: Line | None = None
    """Why the shared folder is not shared, as seen from there; empty where it is."""


def names_of(reports: Sequence[Examined]) -> dict[int, str]:
    """A name for each node: its host, with its rank where two hosts have one name."""
    hosts = Counter(report.facts.names.host for report in reports)
    return {
        one.rank: one.facts.names.host
        if hosts[one.facts.names.host] == 1
        else f"{one.facts.names.host} (node {one.rank + 1})"
        for one in reports
    }


def judge(reports: Sequence[Examined], wanted: Wanted, size: int) -> list[Finding]:
    """Everything that is wrong, on any of them or between them."""
    names = names_of(reports)
    found = [*missing(reports, size), *reachability(reports, names), *shared(reports, names)]
    found += [*versions(reports, names), *same_names(reports)]
    for report in reports:
        own = machine.judge(report.facts, wanted)
        found += [Finding(o.level, o.what, o.fix, (names[report.rank],)) for o in own]
    found += [*slowness(reports, names), *clocks(reports, names), *settings(reports, names)]
    found += accelerators(reports, names)
    return most_serious_first(found)


def missing(reports: Sequence[Examined], size: int) -> Iterator[Finding]:
    if len(reports) < size:
        yield Finding("error", *sentences.missing(size - len(reports), size))


def reachability(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    for report in reports:
        by_node: dict[int, list[DialResult]] = {}
        for dial in report.dials:
            by_node.setdefault(dial.to, []).append(dial)
        for other, dials in by_node.items():
            if any(dial.round_trip_s is not None for dial in dials):
                if other == 0 and dials[0].round_trip_s is None:
                    # Only another address works. Its master address is dialled first.
                    node, master = names[report.rank], dials[0]
                    words = sentences.master_unreachable(node, master.address, master.problem)
                    yield Finding("error", *words, (node,))
                continue
            tried = [(dial.address, dial.problem) for dial in dials[: sentences.NAMED]]
            node, to = names[report.rank], names.get(other, str(other))
            yield Finding("error", *sentences.unreachable(node, to, tried), (node,))


def shared(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    for report in reports:
        if report.shared:
            where = names[report.rank]
            yield Finding("error", *sentences.not_shared(where, report.shared), (where,))


def versions(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    what: tuple[tuple[str, Level, Callable[[MachineFacts], str]], ...] = (
        ("PyTorch", "error", lambda facts: facts.torch or "none"),
        ("Holdfast", "error", lambda facts: facts.holdfast or "none"),
        ("Python", "warning", lambda facts: facts.python),
    )
    for package, level, version in what:
        said = _differing(reports, names, version)
        if said:
            yield Finding(level, *sentences.versions_differ(package, said))


def _differing(
    reports: Sequence[Examined], names: dict[int, str], value: Callable[[MachineFacts], str]
) -> str:
    """Each value with the nodes that have it, the most common first; empty where all agree."""
    by_value: dict[str, list[str]] = {}
    for report in reports:
        by_value.setdefault(value(report.facts), []).append(names[report.rank])
    if len(by_value) < 2:
        return ""
    by_many = sorted(by_value.items(), key=lambda pair: -len(pair[1]))
    return sentences.by_value(by_many)


def same_names(reports: Sequence[Examined]) -> Iterator[Finding]:
    counted = Counter(report.facts.names.host for report in reports)
    for host, number in counted.items():
        if number > 1:
            yield Finding("warning", *sentences.one_name(number, host))


def slowness(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    slow = [
        (dial.round_trip_s, names[report.rank], names.get(dial.to, str(dial.to)))
        for report in reports
        for dial in report.dials
        if dial.round_trip_s is not None and dial.round_trip_s > SLOW_ROUND_TRIP_S
    ]
    if slow:
        worst_s, one, other = max(slow)
        yield Finding("warning", *sentences.slow(one, other, worst_s, len(slow)))


def clocks(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    first = reports[0].rank if reports else 0
    for dial in reports[0].dials if reports else ():
        if dial.round_trip_s is not None and abs(dial.clock_ahead_s) > CLOCK_APART_S:
            other = names.get(dial.to, str(dial.to))
            words = sentences.clock_apart(other, names[first], dial.clock_ahead_s)
            yield Finding("warning", *words, (other,))


def settings(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    known = {name for report in reports for name in report.facts.variables}
    for name in sorted(one for one in known if one.startswith(COMPARED_VARIABLES)):
        said = _differing(reports, names, lambda facts, n=name: facts.variables.get(n, "not set"))  # type: ignore[misc]
        if said:
            yield Finding("warning", *sentences.setting_differs(name, said))


def accelerators(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    said = _differing(reports, names, lambda facts: str(facts.accelerators))
    if said:
        yield Finding("warning", *sentences.accelerators_differ(said))
