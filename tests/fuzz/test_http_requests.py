"""Some scenes of the HTTP fuzzer, always the same ones (`python -m tests.fuzz --only http`)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from .http_requests import Scene, short_patience


@pytest.fixture
def patience() -> Iterator[None]:
    with short_patience():
        yield


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_others_are_answered(patience: None, seed: int) -> None:
    Scene(Random(seed)).play()
