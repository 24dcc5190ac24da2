"""When functions come from a zygote, and which calls may have the same one: by reading alone."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic.multiprocessing import zygote_pool
from holdfast.processes.stdlib_only import private_names

COMMAND = private_names.spawn_command(None, 5)
RANKS = {0: {"RANK": "0"}, 1: {"RANK": "1"}}


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that needs an installed package for one of its functions, and one that does not."""
    monkeypatch.delenv("HOLDFAST_NO_WARM", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_a_package.py").write_text("import pytest\ndef work(): pass\n")
    (tmp_path / "needs_nothing.py").write_text("import json\ndef work(): pass\n")
    names = ("needs_a_package", "needs_nothing")
    yield [importlib.import_module(name).work for name in names]
    for name in names:
        del sys.modules[name]


def plan(function: Callable[..., Any], **more: Any) -> zygote_pool.WarmPlan | None:
    return zygote_pool.plan(
        function, [(), ()], more.get("envs", RANKS), more.get("command", COMMAND)
    )


def key(function: Callable[..., Any]) -> tuple[object, ...]:
    found = plan(function)
    assert found is not None
    return found.key


def lower_a_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if soft != 1 else 0, hard))


def use_one_processor() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "a variable": lambda patch: patch.setenv("ANY", "value"),
    "the module path": lambda patch: patch.syspath_prepend("/anywhere"),
    "the folder": lambda patch: patch.chdir("/"),
    "the mask of files": lambda _: os.umask(0o77),
    "a limit": lambda _: lower_a_limit(),
    "the processors": lambda _: use_one_processor(),
}


@pytest.fixture
def as_before() -> Iterator[None]:
    """What a test changes of this process and nothing else sets back."""
    mask = os.umask(0o22)
    os.umask(mask)
    limit, processors = resource.getrlimit(resource.RLIMIT_CORE), os.sched_getaffinity(0)
    yield
    os.umask(mask)
    resource.setrlimit(resource.RLIMIT_CORE, limit)
    os.sched_setaffinity(0, processors)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("what", CHANGES)
def test_a_zygote_is_used_again_only_where_this_is_the_same(
    functions: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "the processors" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is only one")
    before = key(functions[0])
    assert key(functions[0]) == before
    CHANGES[what](monkeypatch)
    assert key(functions[0]) != before


@pytest.mark.parametrize("name", ["PYTHONOPTIMIZE", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"])
def test_what_is_read_unseen_must_not_differ_between_ranks(functions: Any, name: str) -> None:
    assert plan(functions[0], envs={0: {name: "1"}, 1: {name: "1"}}) is not None
    assert plan(functions[0], envs={0: {name: "1"}, 1: {name: "2"}}) is None


def test_another_interpreter_starts_workers_one_by_one(functions: Any) -> None:
    assert plan(functions[0], command=["/another/python", *COMMAND[1:]]) is None


def test_it_can_be_turned_off(functions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(functions[0]) is not None
    monkeypatch.setenv("HOLDFAST_NO_WARM", "1")
    assert plan(functions[0]) is None


def test_for_the_standard_library_a_fresh_interpreter_is_there_as_soon(
    functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main module here is pytest's, which would be imported."""
    monkeypatch.setattr(zygote_pool, "_main_source", lambda _: None)
    assert plan(functions[0]) is not None
    assert plan(functions[1]) is None
