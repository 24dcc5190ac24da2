"""The job's token: where it is found, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import sentences
from holdfast.cli.options import parse_run
from holdfast.cli.token_notes import dashboard_notes, security_notes
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import UsageError
from holdfast.engine.secrets import LENGTH_MAX, MAKE_ONE, read_token, who_reaches

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


def test_a_job_may_have_no_token() -> None:
    assert read_token(named(), {}) is None


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_token_is_a_mistake(tmp_path: Path, blank: str) -> None:
    """As of `$(cat FILE)` where there is no such file: nobody means to have an open job by that."""
    for path in (named(), named(token_file(tmp_path, LONG))):
        with pytest.raises(UsageError, match="HOLDFAST_TOKEN"):
            read_token(path, {"HOLDFAST_TOKEN": blank})


TOKEN = {"HOLDFAST_TOKEN": LONG}


def parsed(*words: str) -> JobConfig:
    several = ("--nnodes=2", "--rdzv-endpoint=10.0.0.1:29400")
    return parse_run((*several, *words, "train.py"), {}).config


def notes(*words: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    return security_notes(parsed(*words), environ or {})


def test_a_job_that_others_reach_and_that_has_no_token_is_mentioned() -> None:
    on_disk = ("--rdzv-backend=file", "--rdzv-id=a", "--rdzv-endpoint=/shared/meet")
    for words in ((), ("--rdzv-endpoint=127.0.0.1:29400",), on_disk):
        (note,) = notes(*words)
        who = who_reaches(parsed(*words))
        assert note == sentences.no_token(who, "HOLDFAST_TOKEN", MAKE_ONE)
    assert notes(environ=TOKEN) == ()


def test_nodes_that_show_certificates_to_each_other_need_no_token(tmp_path: Path) -> None:
    key = token_file(tmp_path, "a key")
    files = ("--tls-cert=c.pem", f"--tls-key={key}")
    assert len(notes(*files)) == 1
    assert notes(*files, "--tls-ca=a.pem") == ()


def test_a_key_that_others_can_read_is_mentioned(tmp_path: Path) -> None:
    key = token_file(tmp_path, "a key", 0o644)
    (note,) = notes("--tls-cert=c.pem", f"--tls-key={key}", environ=TOKEN)
    assert note == sentences.open_file(["read"], "TLS key", str(key))
    key.chmod(0o600)
    assert notes("--tls-cert=c.pem", f"--tls-key={key}", environ=TOKEN) == ()
    assert notes("--tls-cert=c.pem", "--tls-key=missing.pem", environ=TOKEN) == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5"])
def test_a_dashboard_that_other_hosts_can_open_is_mentioned(host: str) -> None:
    words = ("--dashboard=0", f"--dashboard-host={host}", "train.py")
    found = dashboard_notes(parse_run(words, {}).config)
    assert found == (sentences.reachable_dashboard(host),)


@pytest.mark.parametrize("words", [(), ("--dashboard=0",), ("--dashboard-host=0.0.0.0",)])
def test_a_dashboard_of_this_machine_alone_needs_no_words(words: tuple[str, ...]) -> None:
    assert dashboard_notes(parse_run((*words, "train.py"), {}).config) == ()


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
    refusal(tmp_path / "missing")
    refusal(tmp_path)


@pytest.mark.parametrize("content", ["", "\n", "  \n"])
def test_an_empty_file_is_a_mistake(tmp_path: Path, content: str) -> None:
    refusal(token_file(tmp_path, content))


def test_a_file_without_end_is_a_mistake() -> None:
    refusal(Path("/dev/zero"))


def test_the_longest_token_is_accepted(tmp_path: Path) -> None:
    assert read_token(named(token_file(tmp_path, "x" * LENGTH_MAX)), {}) == b"x" * LENGTH_MAX


@pytest.mark.parametrize(("mode", "others"), [(0o640, "read"), (0o604, "read"), (0o622, "change")])
def test_a_file_that_others_can_read_or_change_is_mentioned(
    tmp_path: Path, mode: int, others: str
) -> None:
    path = token_file(tmp_path, LONG, mode)
    assert notes(f"--token-file={path}") == (sentences.open_file([others], "token", str(path)),)
    assert notes(f"--token-file={path}", environ=TOKEN) == ()


def test_a_private_file_needs_no_words(tmp_path: Path) -> None:
    assert notes(f"--token-file={token_file(tmp_path, LONG)}") == ()


def test_a_token_that_can_be_guessed_is_mentioned() -> None:
    found = notes(environ={"HOLDFAST_TOKEN": "secret"})
    assert found == (sentences.short_token(MAKE_ONE),)
