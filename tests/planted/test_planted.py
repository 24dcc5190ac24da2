"""Every planted failure is told as what it is: the right host, the right rank, the right kind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..integration.nodes.conftest import skip_without_hosts
from ..integration.nodes.hosts import Network
from .failures import PLANTED, THREE, Planted
from .playing import mistakes, played
from .surroundings import NotHere

EVERY_ONE = "TEST_PLANTED"
"""Set by `make test-planted`: PyTorch on three hosts as well, which takes a core a minute."""


def marks(row: Planted, nodes: int) -> list[pytest.MarkDecorator]:
    """On three hosts it says more of the same where one host can have it too."""
    repeats = row.thorough or (nodes == THREE and 1 in row.nodes)
    more = repeats and not os.environ.get(EVERY_ONE)
    return [pytest.mark.torch] * row.torch + [pytest.mark.thorough] * more


ROWS = [
    pytest.param(
        row,
        nodes,
        id=f"{row.name} ({nodes})",
        marks=marks(row, nodes),
    )
    for row in PLANTED
    for nodes in row.nodes
]


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Network]:
    """For all failures of this module: each has them to itself."""
    skip_without_hosts()
    network = Network(THREE)
    yield network
    network.close()


@pytest.mark.root
@pytest.mark.parametrize(("row", "nodes"), ROWS)
def test_the_culprit_is_named(
    row: Planted, nodes: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if row.torch and nodes == THREE and not os.environ.get(EVERY_ONE):
        pytest.skip("PyTorch on three hosts is for make test-planted")
    network = request.getfixturevalue("three_hosts") if nodes == THREE else None
    try:
        said = played(row, network, tmp_path)
    except NotHere as reason:
        pytest.skip(str(reason))
    where = "host2" if nodes == THREE else socket.gethostname()
    wrong = mistakes(row, said, where)
    assert not wrong, "\n".join([*wrong, said.text])
