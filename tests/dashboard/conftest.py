"""Dashboards of made-up jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import Served


@pytest.fixture
def serve() -> Iterator[Callable[[MadeUpJob], Served]]:
    """Serve a made-up job; all is closed at the end."""
    opened: list[Served] = []

    def open_one(job: MadeUpJob) -> Served:
        opened.append(Served(job))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
