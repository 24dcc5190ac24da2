"""The errors of etcd's HTTP API are understood as each release spells them."""

from __future__ import annotations

import pytest

from holdfast.registers.etcd_gateway import (
    NotFound,
    RangeAnswer,
    _CallFailed,
    _final,
    _LeaseLine,
    _read,
)
from holdfast.registers.http import HttpAnswer, Unavailable
from holdfast.registers.register import RegisterRefused, RegisterUnreachable


def raised_by(status: int, body: bytes, kind: type = RangeAnswer) -> Exception:
    """What an answer is taken for; an error that all servers would give, for what it means."""
    with pytest.raises((OSError, RegisterRefused, _CallFailed)) as caught:
        _read(HttpAnswer(status, {}, body), kind)
    if isinstance(caught.value, _CallFailed):
        return _final(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "template",
    [
        b'{"error":"etcdserver: words","message":"etcdserver: words","code":%d}',  # 3.4, 3.5
        b'{"code":%d, "message":"etcdserver: words", "details":[]}',  # 3.6
        b'{"error":{"code":%d,"message":"etcdserver: words"}}',  # 3.6, of a stream
        b'{"error":{"grpc_code":%d,"http_code":400,"message":"etcdserver: words"}}',  # 3.4, 3.5
    ],
)
def test_a_code_means_the_same_in_every_release(template: bytes) -> None:
    for code, kind in (
        (5, NotFound),
        (7, RegisterRefused),
        (16, RegisterRefused),
        (3, RegisterRefused),
        (9, RegisterUnreachable),
        (14, Unavailable),
        (8, Unavailable),
        (4, Unavailable),
        (2, Unavailable),
    ):
        error = raised_by(503, template % code)
        assert type(error) is kind
        assert "etcdserver: words" in str(error)
        # A stream of answers may fail after it began well.
        if template.startswith(b'{"error":{'):
            assert type(raised_by(200, template % code, _LeaseLine)) is kind


def test_servers_in_front_of_etcd_are_understood_too() -> None:
    assert type(raised_by(404, b"404 page not found")) is RegisterRefused
    assert type(raised_by(421, b"the Host header was unrecognized")) is RegisterRefused
    assert type(raised_by(400, b"CommonName of client ... will be ignored")) is RegisterRefused
    assert type(raised_by(502, b"<html>Bad Gateway</html>")) is Unavailable
    assert type(raised_by(200, b"<html>Welcome</html>")) is Unavailable
    assert type(raised_by(200, b"\xff")) is Unavailable


def test_numbers_come_as_strings_and_zeros_not_at_all() -> None:
    body = b'{"header":{"revision":"7","raft_term":"2"},"kvs":[{"key":"YQ==","mod_revision":"6"}]}'
    answer = _read(HttpAnswer(200, {}, body), RangeAnswer)
    assert (answer.header.revision, answer.header.raft_term) == (7, 2)
    assert [(pair.key, pair.value, pair.mod_revision) for pair in answer.kvs] == [(b"a", b"", 6)]
    assert _read(HttpAnswer(200, {}, b"{}"), RangeAnswer) == RangeAnswer()
