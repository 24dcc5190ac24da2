"""The secrets of a job: shown nowhere, and used for what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.policy.config import SecuritySettings
from holdfast.core.protocol.errors import UsageError
from holdfast.engine.secrets import PASSWORD, USER, Secrets, read_secrets, security_of
from holdfast.transport.auth import OPEN

from .by_hand import job


def test_secrets_are_not_shown() -> None:
    shown = f"{Secrets(b'the token', 'user', 'the password')!r}"
    assert "the token" not in shown
    assert "the password" not in shown


def test_the_password_of_a_register_is_in_the_environment_or_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the file\n")
    settings = {"user": "reader", "password_file": str(tmp_path / "password")}
    assert read_secrets(None, settings, {}) == Secrets(None, "reader", "of the file")
    variables = {USER: "writer", PASSWORD: "of the environment"}
    found = read_secrets(None, settings, variables)
    assert found == Secrets(None, "writer", "of the environment")


def test_a_password_without_a_user_is_refused() -> None:
    with pytest.raises(UsageError, match="no user"):
        read_secrets(None, {}, {PASSWORD: "x"})


def test_a_job_with_nothing_set_is_open_and_one_with_files_has_tls() -> None:
    assert security_of(job(), None) == OPEN
    files = SecuritySettings(tls_certificate="c.pem", tls_key="k.pem", tls_authority="a.pem")
    security = security_of(job(security=files), b"token")
    assert security.token == b"token"
    assert security.tls is not None
    assert (security.tls.certificate, security.tls.authority) == ("c.pem", "a.pem")
