"""What the doctor tells, as functions of facts: a finding's words, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.policy.texts import listed

NAMED = 4
"""Nodes, or addresses, that are named one by one."""

Words = tuple[str, str]
"""What is wrong, and what to do."""


def some(nodes: Sequence[str]) -> str:
    """A few of them by name, and how many more."""
    if len(nodes) <= NAMED:
        return listed(nodes)
    return f"{', '.join(nodes[:NAMED])} and {len(nodes) - NAMED} more"


# Between nodes (`doctor.group`, `doctor.probe`).


def missing(without: int, size: int) -> Words:
    nodes = "1 node" if without == 1 else f"{without} nodes"
    what = f"{nodes} of {size} joined, and did not answer"
    return what, "look at what the doctor says there"


def unreachable(node: str, other: str, tried: Iterable[tuple[str, str]]) -> Words:
    """The addresses that were tried, each with what came of it."""
    each = ", ".join(f"{address}: {problem}" for address, problem in tried)
    return (
        f"{node} cannot reach {other} ({each})",
        (
            "look at firewalls and routes between the two; where only one of several networks "
            "connects them, name that address with --local-addr"
        ),
    )


def master_unreachable(node: str, address: str, problem: str) -> Words:
    where = f"the first node at its master address, {address}"
    fix = "give the first node the address by which the others reach it: --local-addr"
    return f"{node} cannot reach {where}: {problem}", fix


def not_shared(node: str, problem: str) -> Words:
    what = f"the shared folder is not shared: on {node} {problem}"
    return what, "mount the same file system at that path on all nodes"


def by_value(values: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Values that differ, each with the nodes that have it."""
    return "; ".join(f"{value} on {some(nodes)}" for value, nodes in values)


def versions_differ(package: str, values: str) -> Words:
    what = f"{package} differs between nodes: {values}"
    return what, "install the same everywhere: one environment, or one image, for all nodes"


def setting_differs(variable: str, values: str) -> Words:
    what = f"{variable} differs between nodes: {values}"
    return what, "set it the same everywhere, unless it is meant"


def accelerators_differ(values: str) -> Words:
    what = f"the number of accelerators differs: {values}"
    return what, "look at nvidia-smi where there are fewer"


def one_name(nodes: int, host: str) -> Words:
    what = f"{nodes} nodes are called {host}: logs and reports cannot tell them apart"
    return what, "give each its own host name; or two agents run on one machine"


def slow(node: str, other: str, round_trip_s: float, ways: int) -> Words:
    """The worst of so many slow ways."""
    pairs = "" if ways == 1 else f", the slowest of {ways} ways"
    what = f"a round trip from {node} to {other} takes {round_trip_s * 1000:.0f} ms{pairs}"
    return what, "are they in one place, and is the network busy?"


def clock_apart(node: str, first: str, ahead_s: float) -> Words:
    which = "ahead of" if ahead_s > 0 else "behind"
    what = f"the clock of {node} is {abs(ahead_s):.1f} s {which} that of {first}"
    return what, "Holdfast compares no clocks, but logs and certificates are compared: use NTP"
