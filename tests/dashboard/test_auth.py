"""The key of a dashboard, and the headers of its answers."""

from __future__ import annotations

import pytest

from holdfast.dashboard.auth import POLICY, SAFE_HEADERS, fits, new_key
from holdfast.transport.http_model import PageRequest

KEY = "the-right-key"


def shows(**headers: str) -> bool:
    return fits(KEY, PageRequest("GET", "/api/stream", headers=headers))


def test_a_request_with_the_key_fits() -> None:
    assert shows(authorization=f"Bearer {KEY}")


@pytest.mark.parametrize(
    "shown", ["", KEY, "Bearer", "Bearer ", f"bearer {KEY}", f"Bearer {KEY}x", "Bearer ключ"]
)
def test_a_request_with_another_key_does_not(shown: str) -> None:
    assert not shows(authorization=shown)


def test_a_request_without_the_header_does_not() -> None:
    assert not shows(cookie=f"key={KEY}")


def test_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(map(len, keys)) >= 32


def test_nothing_from_elsewhere_is_loaded_and_nobody_frames_the_page() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["connect-src"] == rules["script-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert ("Content-Security-Policy", POLICY) in SAFE_HEADERS
