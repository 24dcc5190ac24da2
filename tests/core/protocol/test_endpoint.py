"""How endpoints are written, wherever somebody writes one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol.endpoint import Endpoint, host
from holdfast.core.protocol.errors import UsageError


def refusal(text: str, default_port: int | None = 7, **how: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        Endpoint.parse(text, default_port, **how)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", Endpoint("host", 7)),
        (" host.name-1:2 ", Endpoint("host.name-1", 2)),
        ("10.0.0.1:0", Endpoint("10.0.0.1", 0)),
        ("[::1]", Endpoint("::1", 7)),
        ("[fe80::1%eth0]:65535", Endpoint("fe80::1%eth0", 65535)),
    ],
)
def test_what_is_an_endpoint(text: str, expected: Endpoint) -> None:
    assert Endpoint.parse(text, 7) == expected
    assert Endpoint.parse(text, 7, bare_ipv6=True) == expected


@pytest.mark.parametrize(
    "text", ["", ":1", "[]:1", "a:", "a:b", "a:-1", "a:65536", "a b", "a/b", "[a]:1", "a:1:2"]
)
@pytest.mark.parametrize("bare_ipv6", [False, True])
def test_what_is_none(text: str, bare_ipv6: bool) -> None:
    assert refusal(text, bare_ipv6=bare_ipv6).hint


def test_ipv6_without_brackets_is_taken_with_a_port_and_where_pytorch_takes_it() -> None:
    text = "2001:db8::1:29400"
    assert Endpoint.parse(text, 7, bare_ipv6=True) == Endpoint("2001:db8::1", 29400)
    assert "too many colons" in refusal(text).message
    assert "[::1]" in refusal("::1").hint
    assert "[::1]" in refusal("::1", bare_ipv6=True).hint


def test_without_a_default_a_port_has_to_be_there() -> None:
    assert Endpoint.parse("a:1") == Endpoint("a", 1)
    assert refusal("a", None).message == "'a' has no port"


def test_a_password_is_not_repeated() -> None:
    error = refusal("me:secret@host:1")
    assert "secret" not in error.message + error.hint


def test_a_server_has_a_port_above_0() -> None:
    assert refusal("a:0", least=1).hint == "ports go from 1 to 65535"


def test_a_list_has_each_server_once_and_one_at_least() -> None:
    found = Endpoint.parse_list("a, b:1,,a,[::1]", 7)
    assert found == [Endpoint("a", 7), Endpoint("b", 1), Endpoint("::1", 7)]
    for nothing in ("", " , "):
        with pytest.raises(UsageError, match="no endpoint of a server"):
            Endpoint.parse_list(nothing, 7)


def test_a_host_has_no_port() -> None:
    assert (host("[::1]"), host("::1"), host(" a ")) == ("::1", "::1", "a")
    with pytest.raises(UsageError):
        host("a:1")


@given(st.ip_addresses(), st.integers(0, 65535))
def test_what_is_written_is_read_again(address: object, port: int) -> None:
    place = Endpoint(str(address), port)
    assert Endpoint.parse(str(place)) == place
