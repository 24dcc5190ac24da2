"""What stands at the border is of two machines at least: one asks, and another takes it."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from holdfast.core import border
from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent
from holdfast.core.election import ElectionEffect, ElectionEvent
from holdfast.core.node_io import NodeEffect, NodeEvent

MACHINES = {
    "node": {*get_args(NodeEvent), *get_args(NodeEffect)},
    "coordinator": {*get_args(CoordinatorEvent), *get_args(CoordinatorEffect)},
    "election": {*get_args(ElectionEvent), *get_args(ElectionEffect)},
}
TYPES = [
    kind
    for _, kind in inspect.getmembers(border, inspect.isclass)
    if kind.__module__ == border.__name__
]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_two_machines_know_each_type_of_the_border(kind: type) -> None:
    assert len([name for name, known in MACHINES.items() if kind in known]) > 1


def test_no_other_type_is_of_two_machines() -> None:
    for name, known in MACHINES.items():
        for other, others in MACHINES.items():
            assert name == other or known & others <= set(TYPES), f"{name} and {other}"
