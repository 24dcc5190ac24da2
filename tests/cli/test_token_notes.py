"""The job's token: where it is found, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.options import parse_run
from holdfast.cli.token_notes import token_notes
from holdfast.core.protocol.errors import UsageError
from holdfast.node.secret_sources import LENGTH_MAX, read_token

LONG = "0123456789abcdef0123"


def named(path: Path | None = None) -> str | None:
    """The file that a job's options name."""
    words = () if path is None else ("--token-file", str(path))
    return parse_run((*words, "train.py"), {}).config.security.token_file


def token_file(directory: Path, content: str, mode: int = 0o600) -> Path:
    path = directory / "token"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("environ", [{}, {"HOLDFAST_TOKEN": ""}, {"HOLDFAST_TOKEN": " "}])
def test_a_job_may_have_no_token(environ: dict[str, str]) -> None:
    assert read_token(named(), environ) is None
    assert token_notes(named(), environ) == ()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = named(token_file(tmp_path, "of the file, long enough\n"))
    assert read_token(path, {}) == b"of the file, long enough"
    assert read_token(path, {"HOLDFAST_TOKEN": f" {LONG}\n"}) == LONG.encode()


def test_a_token_need_not_be_text() -> None:
    assert read_token(named(), {"HOLDFAST_TOKEN": "\udcff" + LONG}) == b"\xff" + LONG.encode()


def test_a_token_is_in_no_configuration(tmp_path: Path) -> None:
    path = str(token_file(tmp_path, LONG))
    assert LONG not in repr(parse_run(("--token-file", path, "train.py"), {}).config)


def refusal(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_token(named(path), {})
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "missing").message
    assert "directory" in refusal(tmp_path).message


@pytest.mark.parametrize("content", ["", "\n", "  \n"])
def test_an_empty_file_is_a_mistake(tmp_path: Path, content: str) -> None:
    assert "is empty" in refusal(token_file(tmp_path, content)).message


def test_a_file_without_end_is_a_mistake() -> None:
    assert "too long" in refusal(Path("/dev/zero")).message


def test_the_longest_token_is_accepted(tmp_path: Path) -> None:
    assert read_token(named(token_file(tmp_path, "x" * LENGTH_MAX)), {}) == b"x" * LENGTH_MAX


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_can_read_is_mentioned(tmp_path: Path, mode: int) -> None:
    path = named(token_file(tmp_path, LONG, mode))
    assert "others on this machine can read" in token_notes(path, {})[0]
    assert token_notes(path, {"HOLDFAST_TOKEN": LONG}) == ()


def test_a_private_file_needs_no_words(tmp_path: Path) -> None:
    assert token_notes(named(token_file(tmp_path, LONG)), {}) == ()


def test_a_token_that_can_be_guessed_is_mentioned() -> None:
    assert "guessed" in token_notes(named(), {"HOLDFAST_TOKEN": "secret"})[0]
