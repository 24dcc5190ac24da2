"""What steps bring, told from their text."""

from __future__ import annotations

from holdfast.core.protocol.preload_steps import brought_by


def test_with_a_module_come_the_packages_above_it() -> None:
    assert brought_by(("import a.b.c",)) == {"a", "a.b", "a.b.c"}


def test_a_plain_name_is_a_module() -> None:
    assert brought_by(("torch._dynamo",)) == {"torch", "torch._dynamo"}


def test_a_name_that_is_taken_may_be_a_module() -> None:
    assert brought_by(("from a.b import c, d",)) == {"a", "a.b", "a.b.c", "a.b.d"}


def test_variables_and_folders_bring_nothing() -> None:
    assert brought_by(("environ A=b", "path 0 /job/lib")) == frozenset()
