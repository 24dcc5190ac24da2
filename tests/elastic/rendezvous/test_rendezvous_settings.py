"""Settings mean the same in `--rdzv-conf` and in the API, and mistakes are told alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.options import parse_run
from holdfast.core.policy.config import JobConfig
from holdfast.core.policy.rendezvous_settings import SETTINGS
from holdfast.core.protocol.errors import UsageError
from holdfast.elastic.rendezvous import RendezvousParameters
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler


def by_api(backend: str, endpoint: str, **settings: Any) -> Any:
    params = RendezvousParameters(backend, endpoint, "job", 2, 2, **settings)
    return get_rendezvous_handler(params)


def by_command(backend: str, endpoint: str, **settings: Any) -> JobConfig:
    said = ",".join(f"{key}={value}" for key, value in settings.items())
    words = (f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job")
    return parse_run((*words, "--nnodes=2", f"--rdzv-conf={said}", "train.py"), {}).config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"timeout": 900},
        {"timeout": 900, "join_timeout": 2.5, "last_call_timeout": 1, "close_timeout": "7"},
        {"lease": 20, "heartbeat": 3, "suspect": 8},
        {"keep_alive_interval": 4, "heartbeat_timeout": 10},
        {"keep_alive_interval": 5},
        {"heartbeat_timeout": 10, "lease": 30},
        {"scale_up_delay": 0, "min_round_time": 90},
        {"is_host": True, "token_file": "TOKEN"},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["holdfast", "etcd", "static"])
def test_a_setting_has_the_same_effect(
    backend: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("the token of the job\n")
    settings = {key: token if said == "TOKEN" else said for key, said in settings.items()}
    rank = {"rank": 0} if backend == "static" else {}
    handler = by_api(backend, "node0:29600", **settings, **rank)
    one, other = handler._config, by_command(backend, "node0:29600", **settings)
    assert (one.timeouts, one.leases) == (other.timeouts, other.leases)
    assert (one.is_host, one.security) == (other.is_host, other.security)
    assert one.rendezvous.endpoint == other.rendezvous.endpoint
    assert handler._secrets.token == (b"the token of the job" if "token_file" in settings else None)


@pytest.mark.parametrize(
    ("backend", "endpoint", "expected"),
    [
        ("holdfast", "node0", "node0:29400"),
        ("c10d", " [::1] ", "[::1]:29400"),
        ("etcd", "a,b:1", "a:2379,b:1"),
        ("file", "/shared/a:b", "/shared/a:b"),
    ],
)
def test_an_endpoint_is_the_same_place(backend: str, endpoint: str, expected: str) -> None:
    assert by_api(backend, endpoint)._config.rendezvous.endpoint == expected
    assert by_command(backend, endpoint).rendezvous.endpoint == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("join_timeout", "soon"),
        ("last_call_timeout", "0"),
        ("keep_alive_max_attempt", "1.5"),
        ("is_host", "maybe"),
        ("coordinator_port", "65536"),
        ("protocol", "gopher"),
        ("store_type", "ram"),
        ("lease", "nan"),
        ("cas_backoff_max_seconds", "nan"),
        ("cas_backoff_max_seconds", "-1"),
        ("jion_timeout", "3"),
    ],
)
def test_a_mistake_is_told_in_the_same_words(key: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        by_command("holdfast", "node0", **{key: value})
    with pytest.raises(ValueError, match=key) as told:
        by_api("holdfast", "node0", **{key: value})
    ours = f"{caught.value.message}; {caught.value.hint}"
    assert str(told.value) == ours.replace("--rdzv-conf", "rdzv_configs")


def test_a_setting_of_somebody_else_is_left_alone_but_for_our_own_backend() -> None:
    assert by_api("c10d", "node0", chalk="white")._config.rendezvous.options == {"chalk": "white"}
    with pytest.raises(ValueError, match="chalk"):
        by_api("holdfast", "node0", chalk="white")


def test_nothing_is_no_setting() -> None:
    assert by_api("holdfast", "node0", join_timeout=None, cert="")._config.rendezvous.options == {}


def test_a_word_may_be_in_capitals() -> None:
    settings = {"store_type": "FILE", "protocol": "HTTPS"}
    assert by_api("c10d", "/a/path", **settings)._config.rendezvous.endpoint == "/a/path"
    assert by_command("c10d", "/a/path", **settings).rendezvous.endpoint == "/a/path"


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_refuses_what_is_empty(key: str) -> None:
    with pytest.raises(UsageError):
        SETTINGS[key].parse(" ")


@pytest.mark.parametrize(("given", "known"), [({}, 0.0), ({"cas_backoff_max_seconds": "0.5"}, 0.5)])
def test_the_backoff_of_writers_is_known_and_changes_nothing(
    given: dict[str, str], known: float
) -> None:
    handler = by_api("holdfast", "node0", **given)
    assert handler.settings.cas_backoff_max_seconds == known
    assert by_command("holdfast", "node0", **given).leases == by_command("holdfast", "node0").leases


@pytest.mark.parametrize("seconds", [-0.1, float("inf"), float("nan")])
def test_a_backoff_that_cannot_be_is_refused(seconds: float) -> None:
    one = by_api("holdfast", "node0")
    settings = dataclasses.replace(one.settings, cas_backoff_max_seconds=seconds)
    with pytest.raises(ValueError, match="cas_backoff_max_seconds"):
        type(one)(settings, "holdfast", one._config)
