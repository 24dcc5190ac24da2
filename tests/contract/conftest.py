"""Every register on its stage, which is built once and used by all tests in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .stages import SERVED, STAGES, ServedStage, Stage

_numbers = itertools.count(1)
_built: dict[str, Stage] = {}


def _stage(name: str, folders: pytest.TempPathFactory) -> Stage:
    if name not in _built:
        _built[name] = STAGES[name](folders.mktemp(name))
    return _built[name]


def _tear_down() -> None:
    while _built:
        _built.popitem()[1].close()


@pytest.fixture(scope="session", autouse=True)
def stages_torn_down() -> Iterator[None]:
    """However the tests end."""
    yield
    _tear_down()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """No server runs while tests of other folders do."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        _tear_down()


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.torch] if name == "tcp-store" else []


def _parameters(names: dict[str, type[Stage]]) -> list[object]:
    return [pytest.param(name, marks=_marks(name)) for name in names]


@pytest.fixture(params=_parameters(STAGES))
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Any register."""
    stage = _stage(request.param, tmp_path_factory)
    yield stage
    stage.close_registers()


@pytest.fixture(params=_parameters(dict(SERVED)))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedStage]:
    """A register with a server."""
    stage = _stage(request.param, tmp_path_factory)
    assert isinstance(stage, ServedStage)
    yield stage
    stage.proxy.forward()
    stage.close_registers()


@pytest.fixture
def run_id() -> str:
    """A document that no other test has."""
    return f"run/{next(_numbers)} of tests"


@pytest.fixture
def new_run_id() -> Callable[[], str]:
    return lambda: f"run/{next(_numbers)} of tests"
