"""What all verbs have in common."""

from __future__ import annotations

from argparse import Namespace

import pytest

from holdfast.admin.client import AdminError
from holdfast.cli.verbs import VerbParser, verb


def test_a_reason_of_a_node_is_said_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @verb(VerbParser("act", "Act."))
    def act(asked: Namespace) -> None:
        raise AdminError("not now\nholdfast: the job succeeded\x1b[2J")

    assert act([]) == 1
    assert capsys.readouterr().err == "holdfast: not now holdfast: the job succeeded\ufffd[2J\n"
