"""What the doctor tells, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.doctor import sentences as said

WORDS: list[tuple[object, object]] = [
    (said.some(["a", "b"]), "a and b"),
    (said.some(["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more"),
    (
        said.missing(1, 3),
        ("1 node of 3 joined, and did not answer", "look at what the doctor says there"),
    ),
    (
        said.missing(2, 3),
        ("2 nodes of 3 joined, and did not answer", "look at what the doctor says there"),
    ),
    (
        said.unreachable("b", "a", [("10.0.0.1", "timed out"), ("fd00::1", "no route")]),
        (
            "b cannot reach a (10.0.0.1: timed out, fd00::1: no route)",
            (
                "look at firewalls and routes between the two; where only one of several networks "
                "connects them, name that address with --local-addr"
            ),
        ),
    ),
    (
        said.master_unreachable("b", "10.9.9.1", "timed out"),
        (
            "b cannot reach the first node at its master address, 10.9.9.1: timed out",
            "give the first node the address by which the others reach it: --local-addr",
        ),
    ),
    (
        said.not_shared("b", "a file is missing"),
        (
            "the shared folder is not shared: on b a file is missing",
            "mount the same file system at that path on all nodes",
        ),
    ),
    (said.by_value([("2.13.0", ["a", "c"]), ("none", ["b"])]), "2.13.0 on a and c; none on b"),
    (
        said.versions_differ("PyTorch", "2 on a; 1 on b"),
        (
            "PyTorch differs between nodes: 2 on a; 1 on b",
            "install the same everywhere: one environment, or one image, for all nodes",
        ),
    ),
    (
        said.setting_differs("NCCL_DEBUG", "2 on a; 1 on b"),
        (
            "NCCL_DEBUG differs between nodes: 2 on a; 1 on b",
            "set it the same everywhere, unless it is meant",
        ),
    ),
    (
        said.accelerators_differ("8 on a; 7 on b"),
        (
            "the number of accelerators differs: 8 on a; 7 on b",
            "look at nvidia-smi where there are fewer",
        ),
    ),
    (
        said.one_name(2, "a"),
        (
            "2 nodes are called a: logs and reports cannot tell them apart",
            "give each its own host name; or two agents run on one machine",
        ),
    ),
    (
        said.slow("a", "b", 0.08, 1),
        (
            "a round trip from a to b takes 80 ms",
            "are they in one place, and is the network busy?",
        ),
    ),
    (
        said.slow("a", "b", 0.08, 2)[0],
        "a round trip from a to b takes 80 ms, the slowest of 2 ways",
    ),
    (
        said.clock_apart("b", "a", 12.5),
        (
            "the clock of b is 12.5 s ahead of that of a",
            "Holdfast compares no clocks, but logs and certificates are compared: use NTP",
        ),
    ),
    (said.clock_apart("b", "a", -12.5)[0], "the clock of b is 12.5 s behind that of a"),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
