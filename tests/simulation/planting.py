"""Bugs, planted one at a time: what each breaks, where it goes, what shows it.

A mutant replaces a piece of one function's source; the function's code is exchanged in place, so
that everybody who holds the function runs the mutated one. If the piece is not there any more,
the mutant does not apply, and has to be written anew.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    rule: str
    """Of the design: §3 forming, §4 leases and fencing, §5 the coordinator, §6 restarts,
    §7 who may say what, §8 leaving, §9 who is kept out, §10 standing still,
    §11 the end of the job."""
    target: str
    """module:function, or module:Class.method, below `holdfast`."""
    old: str
    new: str
    profile: str
    seeds: tuple[int, ...]
    """Some of the profile that show it, the shortest run first: one is enough."""
    also: tuple[tuple[str, str, str], ...] = ()
    """Further places, where one rule is kept by two."""
    shown_by: str = ""
    """The checker that has to see it, where the further places alone are seen by another."""
    cases: tuple[str, ...] = ()
    """Points of the protocol at which a lost leader shows it (`everywhere.Case`)."""


def _function(target: str) -> FunctionType:
    module_name, _, path = target.partition(":")
    found: object = importlib.import_module(f"holdfast.{module_name}")
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{target} is not a function"
    return found


def _mutated(target: str, old: str, new: str) -> tuple[FunctionType, CodeType]:
    function = _function(target)
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    assert old in source, f"{target} has changed: {old!r} is not in it"
    namespace: dict[str, object] = {}
    mutated = "from __future__ import annotations\n" + source.replace(old, new, 1)
    exec(compile(mutated, function.__code__.co_filename, "exec"), function.__globals__, namespace)
    replacement = namespace[function.__name__]
    assert isinstance(replacement, FunctionType)
    unknown = _globals_of(replacement.__code__) - {*function.__globals__, *vars(builtins)}
    assert not unknown, f"{target}: the bug names {unknown}, and would only crash"
    return function, replacement.__code__


def _globals_of(code: CodeType) -> set[str]:
    """The global names that some code looks up."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return found.union(*map(_globals_of, inner))


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Holdfast with the bug in it."""
    places = ((mutant.target, mutant.old, mutant.new), *mutant.also)
    exchanged = [_mutated(*place) for place in places]
    originals = [(function, function.__code__) for function, _ in exchanged]
    for function, code in exchanged:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in originals:
            function.__code__ = code
