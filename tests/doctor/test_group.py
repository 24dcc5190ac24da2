"""What is wrong between machines: reports go in, findings come out."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.doctor import group, sentences
from holdfast.doctor.facts import Interface, MachineFacts, Wanted
from holdfast.doctor.group import DialResult, Examined
from holdfast.doctor.page import lines, page_of, verdict
from holdfast.doctor.sentences import by_value

from .test_machine import WELL

TWO = Wanted(several_nodes=True)


def node(rank: int, **facts: object) -> Examined:
    name = f"node{rank + 1}"
    own = replace(WELL.names, host=name)
    here = (Interface("eth0", f"10.0.0.{rank + 1}"),)
    of = replace(WELL, names=own, interfaces=here, torch="2.13.0", python="3.12.1")
    others = tuple(DialResult(n, f"10.0.0.{n + 1}", 0.0002) for n in range(3) if n != rank)
    return Examined(rank, replace(of, **facts), others)


def found(*reports: Examined, size: int = 3) -> list[tuple[str, str, str]]:
    return [(one.level, one.what, one.fix) for one in group.judge(reports, TWO, size)]


def test_nothing_is_wrong_between_nodes_that_are_alike() -> None:
    reports = [node(0), node(1), node(2)]
    assert found(*reports) == []
    page = page_of(reports, [])
    assert page.well
    assert verdict(page).endswith(" 3 nodes")
    assert sum("PyTorch 2.13.0" in line for line in lines(page)) == 3


def test_versions_that_differ_are_named_the_many_first() -> None:
    said = found(node(0), node(1, torch="2.9.1"), node(2))
    values = by_value([("2.13.0", ["node1", "node3"]), ("2.9.1", ["node2"])])
    assert said == [("error", *sentences.versions_differ("PyTorch", values))]
    said = found(node(0), node(1, torch=""), node(2, python="3.11.7"))
    torch = by_value([("2.13.0", ["node1", "node3"]), ("none", ["node2"])])
    python = by_value([("3.12.1", ["node1", "node2"]), ("3.11.7", ["node3"])])
    assert said == [
        ("error", *sentences.versions_differ("PyTorch", torch)),
        ("warning", *sentences.versions_differ("Python", python)),
    ]


def test_who_cannot_be_reached_at_any_address_is_said_and_by_whom() -> None:
    deaf = (
        DialResult(0, "10.0.0.1", problem="timed out"),
        DialResult(0, "fd00::1", problem="no route"),
        DialResult(2, "192.168.0.3", problem="timed out"),
        DialResult(2, "10.0.0.3", 0.001),
    )
    said = found(node(0), replace(node(1), dials=deaf), node(2))
    tried = [("10.0.0.1", "timed out"), ("fd00::1", "no route")]
    assert said == [("error", *sentences.unreachable("node2", "node1", tried))]


def test_a_master_address_that_leads_nowhere_is_said_though_another_does() -> None:
    """The address that comes first is the one that all others are given."""
    astray = DialResult(0, "10.9.9.1", problem="timed out")
    dials = (astray, DialResult(0, "10.0.0.1", 0.001), DialResult(2, "10.0.0.3", 0.001))
    said = found(node(0), replace(node(1), dials=dials), node(2))
    assert said == [("error", *sentences.master_unreachable("node2", "10.9.9.1", "timed out"))]


def test_one_that_never_reported_is_missed() -> None:
    assert found(node(0), node(2)) == [("error", *sentences.missing(1, 3))]


def test_slow_ways_and_clocks_that_are_apart_are_warnings() -> None:
    far = (DialResult(1, "10.0.0.2", 0.08, 12.5), DialResult(2, "10.0.0.3", 0.0001, -0.2))
    said = found(replace(node(0), dials=far), node(1), node(2))
    assert said == [
        ("warning", *sentences.slow("node1", "node2", 0.08, 1)),
        ("warning", *sentences.clock_apart("node2", "node1", 12.5)),
    ]


def test_a_folder_that_is_not_shared_has_errors() -> None:
    said = found(node(0), replace(node(1), shared="a file is missing"), replace(node(2), shared=""))
    assert said == [("error", *sentences.not_shared("node2", "a file is missing"))]


def test_two_nodes_of_one_name_can_be_told_apart() -> None:
    twin = replace(WELL.names, host="node1")
    said = found(node(0), node(1, names=twin), node(2, torch=""))
    assert ("warning", *sentences.one_name(2, "node1")) in said
    values = by_value([("2.13.0", ["node1 (node 1)", "node1 (node 2)"]), ("none", ["node3"])])
    assert said[0] == ("error", *sentences.versions_differ("PyTorch", values))


def test_settings_and_accelerators_that_differ_are_said() -> None:
    other: MachineFacts = node(1, variables={"NCCL_IB_DISABLE": "1"}, accelerators=7).facts
    said = found(node(0), replace(node(1), facts=other), node(2))
    set_to = by_value([("not set", ["node1", "node3"]), ("1", ["node2"])])
    numbers = by_value([("8", ["node1", "node3"]), ("7", ["node2"])])
    assert said == [
        ("warning", *sentences.setting_differs("NCCL_IB_DISABLE", set_to)),
        ("warning", *sentences.accelerators_differ(numbers)),
    ]


def test_the_page_says_what_is_wrong_first_where_and_how_to_mend_it() -> None:
    reports = [node(0), node(1, memory_free_bytes=1 << 20), node(2)]
    page = page_of(reports, group.judge(reports, TWO, 3))
    text = "\n".join(lines(page))
    assert text.startswith("1 error on 3 nodes, the most serious first\n")
    assert " 1. error: node2: 1.0 MB of 64 GB of memory are free" in text
    assert "    fix: end what uses it" in text
    assert not page.well
