"""Who may see a dashboard, and use it."""

from __future__ import annotations

import pytest

from holdfast.dashboard.auth import POLICY, SAFE_HEADERS, PageAuth, new_key
from holdfast.transport.http_model import PageRequest

KEY = "the-right-key"


def ask(method: str = "GET", **headers: str) -> int:
    """What is answered; 0 where it is let through."""
    guard = PageAuth(KEY, ["gpu-01", "gpu-01.cluster"])
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = guard.refusal(PageRequest(method, "/api/stream", headers=named))
    return 0 if refusal is None else refusal.status


def test_who_shows_the_key_is_let_in() -> None:
    assert ask(host="127.0.0.1:8470", authorization=f"Bearer {KEY}") == 0


@pytest.mark.parametrize(
    "shown", ["", KEY, "Bearer", "Bearer ", f"bearer {KEY}", f"Bearer {KEY}x", "Bearer ключ"]
)
def test_who_shows_another_is_not(shown: str) -> None:
    assert ask(host="127.0.0.1", authorization=shown) == 401


def test_a_request_without_the_header_is_refused() -> None:
    assert ask(host="127.0.0.1") == 401


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8470", "localhost:9000", "LOCALHOST", "[::1]:8470", "10.1.2.3:8470",
     "gpu-01:8470", "GPU-01.cluster"],
)  # fmt: skip
def test_addresses_and_the_machines_own_names_are_answered(host: str) -> None:
    assert ask(host=host, authorization=f"Bearer {KEY}") == 0


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "localhost.evil.example",
     "gpu-02", "", "[evil]:80", "127.0.0.1:80:90"],
)  # fmt: skip
def test_a_name_that_somebody_else_points_here_is_not(host: str) -> None:
    assert ask(host=host, authorization=f"Bearer {KEY}") == 421


def test_even_the_page_is_not_given_under_such_a_name() -> None:
    request = PageRequest("GET", "/", headers={"host": "evil.example"})
    refusal = PageAuth(KEY).refusal(request, open_to_all=True)
    assert refusal is not None
    assert refusal.status == 421


def test_the_page_itself_needs_no_key() -> None:
    request = PageRequest("GET", "/", headers={"host": "127.0.0.1"})
    assert PageAuth(KEY).refusal(request, open_to_all=True) is None


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
