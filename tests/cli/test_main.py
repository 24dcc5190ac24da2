"""The command itself: which verbs there are, and what it says to a word that is none."""

from __future__ import annotations

from importlib import import_module

import pytest

from holdfast.cli.main import USAGE, VERBS, main


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_is_listed_and_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"  holdfast {verb} " in USAGE
    assert callable(getattr(import_module(f"holdfast.cli.{VERBS[verb]}"), verb))
    assert main([verb, "--help"]) == 0
    assert f"holdfast {verb}" in capsys.readouterr().out


def test_a_word_that_is_no_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train.py"]) == 2
    assert "holdfast run train.py" in capsys.readouterr().err
