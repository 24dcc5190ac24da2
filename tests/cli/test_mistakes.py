"""What `holdfast` says to a command line that it cannot accept: `mistakes.txt`, command by command.

Each command (`$ …`) is followed by the lines on stderr; it is given in the folder of the fixture
`programs`, which is shown as `/here`. After a change of wording,
`HOLDFAST_REWRITE=1 pytest tests/cli/test_mistakes.py` writes them anew; the difference is there to
be read. The words of a mistake are in no other test.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.options import parse_run
from holdfast.cli.program import check_program
from holdfast.cli.verbs import say_mistake
from holdfast.core.protocol.errors import UsageError

FILE = Path(__file__).parent / "mistakes.txt"
PROMPT = "$ "


def status_of(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give the command; `run` only as far as its options go. Returns the exit status."""
    variables, _, rest = command.partition("holdfast ")
    environ = dict(word.split("=", 1) for word in shlex.split(variables))
    words = shlex.split(rest)
    with monkeypatch.context() as patch:
        for name, text in ({"PATH": "/nowhere"} | environ).items():
            patch.setenv(name, text)
        if words[:1] != ["run"]:
            return main(words)
        with pytest.raises(UsageError) as refused:
            check_program(parse_run(words[1:], environ).config.program)
        return say_mistake(refused.value)


@pytest.mark.usefixtures("plugins")
def test_mistakes_are_told_as_they_are_written(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def retold(block: str) -> Iterator[str]:
        for line in block.splitlines():
            if line.startswith("#"):
                yield line
            elif line.startswith(PROMPT):
                assert status_of(line.removeprefix(PROMPT), monkeypatch) == 2, line
                said, complaints = capsys.readouterr()
                lines = complaints.replace(str(programs), "/here").splitlines()
                kinds = [each.partition(": ")[0] for each in lines]
                assert (said, kinds[:1], kinds[1:] or ["hint"]) == ("", ["holdfast"], ["hint"])
                yield from (line, *lines)

    written = FILE.read_text(encoding="utf-8")
    told = "\n\n".join("\n".join(retold(block)) for block in written.strip().split("\n\n")) + "\n"
    if os.environ.get("HOLDFAST_REWRITE") == "1":
        FILE.write_text(told, encoding="utf-8")
    assert told == FILE.read_text(encoding="utf-8")
