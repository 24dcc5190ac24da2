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

from holdfast.core.policy.texts import listed
from holdfast.core.protocol.bounds import Count, Line, Seconds
from holdfast.doctor import machine
from holdfast.doctor.facts import MachineFacts, Short, Wanted
from holdfast.doctor.findings import Finding, Level, most_serious_first

SLOW_ROUND_TRIP_S = 0.01
CLOCK_APART_S = 1.0
NAMED = 4
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
        without = size - len(reports)
        nodes = "1 node" if without == 1 else f"{without} nodes"
        what = f"{nodes} of {size} joined, and did not answer"
        yield Finding("error", what, "look at what the doctor says there")


def reachability(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    for report in reports:
        by_node: dict[int, list[DialResult]] = {}
        for dial in report.dials:
            by_node.setdefault(dial.to, []).append(dial)
        for other, dials in by_node.items():
            if any(dial.round_trip_s is not None for dial in dials):
                if other == 0 and dials[0].round_trip_s is None:
                    yield _master_out_of_reach(names[report.rank], dials[0])
                continue
            tried = ", ".join(f"{dial.address}: {dial.problem}" for dial in dials[:NAMED])
            what = f"{names[report.rank]} cannot reach {names.get(other, other)} ({tried})"
            fix = (
                "look at firewalls and routes between the two; where only one of several networks "
                "connects them, name that address with --local-addr"
            )
            yield Finding("error", what, fix, (names[report.rank],))


def _master_out_of_reach(node: str, dial: DialResult) -> Finding:
    """Only another address of the first node works. Its master address is dialled first."""
    where = f"the first node at its master address, {dial.address}"
    fix = "give the first node the address by which the others reach it: --local-addr"
    return Finding("error", f"{node} cannot reach {where}: {dial.problem}", fix, (node,))


def shared(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    for report in reports:
        if report.shared:
            where = names[report.rank]
            what = f"the shared folder is not shared: on {where} {report.shared}"
            fix = "mount the same file system at that path on all nodes"
            yield Finding("error", what, fix, (where,))


def versions(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    what: tuple[tuple[str, Level, Callable[[MachineFacts], str]], ...] = (
        ("PyTorch", "error", lambda facts: facts.torch or "none"),
        ("Holdfast", "error", lambda facts: facts.holdfast or "none"),
        ("Python", "warning", lambda facts: facts.python),
    )
    for package, level, version in what:
        said = _differing(reports, names, version)
        if said:
            same = "install the same everywhere: one environment, or one image, for all nodes"
            yield Finding(level, f"{package} differs between nodes: {said}", same)


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
    return "; ".join(f"{text} on {some(who)}" for text, who in by_many)


def some(nodes: Sequence[str]) -> str:
    """A few of them by name, and how many more."""
    if len(nodes) <= NAMED:
        return listed(nodes)
    return f"{', '.join(nodes[:NAMED])} and {len(nodes) - NAMED} more"


def same_names(reports: Sequence[Examined]) -> Iterator[Finding]:
    counted = Counter(report.facts.names.host for report in reports)
    for host, number in counted.items():
        if number > 1:
            what = f"{number} nodes are called {host}: logs and reports cannot tell them apart"
            fix = "give each its own host name; or two agents run on one machine"
            yield Finding("warning", what, fix)


def slowness(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    slow = [
        (dial.round_trip_s, names[report.rank], names.get(dial.to, str(dial.to)))
        for report in reports
        for dial in report.dials
        if dial.round_trip_s is not None and dial.round_trip_s > SLOW_ROUND_TRIP_S
    ]
    if slow:
        worst_s, one, other = max(slow)
        pairs = "" if len(slow) == 1 else f", the slowest of {len(slow)} ways"
        what = f"a round trip from {one} to {other} takes {worst_s * 1000:.0f} ms{pairs}"
        yield Finding("warning", what, "are they in one place, and is the network busy?")


def clocks(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    first = reports[0].rank if reports else 0
    for dial in reports[0].dials if reports else ():
        if dial.round_trip_s is not None and abs(dial.clock_ahead_s) > CLOCK_APART_S:
            other = names.get(dial.to, str(dial.to))
            apart = f"{abs(dial.clock_ahead_s):.1f} s"
            which = "ahead of" if dial.clock_ahead_s > 0 else "behind"
            what = f"the clock of {other} is {apart} {which} that of {names[first]}"
            fix = "Holdfast compares no clocks, but logs and certificates are compared: use NTP"
            yield Finding("warning", what, fix, (other,))


def settings(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    known = {name for report in reports for name in report.facts.variables}
    for name in sorted(one for one in known if one.startswith(COMPARED_VARIABLES)):
        said = _differing(reports, names, lambda facts, n=name: facts.variables.get(n, "not set"))  # type: ignore[misc]
        if said:
            what = f"{name} differs between nodes: {said}"
            yield Finding("warning", what, "set it the same everywhere, unless it is meant")


def accelerators(reports: Sequence[Examined], names: dict[int, str]) -> Iterator[Finding]:
    said = _differing(reports, names, lambda facts: str(facts.accelerators))
    if said:
        what = f"the number of accelerators differs: {said}"
        yield Finding("warning", what, "look at nvidia-smi where there are fewer")
