"""Where the nodes of a job meet, and what may be plugged in there."""

from __future__ import annotations

import pytest

from holdfast.cli.options import parse_run
from holdfast.core.config import JobConfig, Rendezvous
from holdfast.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("plugins")

PLACE = ("--rdzv-endpoint", "node0")


def parse(*words: str, **environ: str) -> JobConfig:
    return parse_run((*words, "train.py"), environ).config


def refusal(*words: str, **environ: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_run(words, environ)
    return caught.value


@pytest.mark.parametrize(
    ("words", "backend", "endpoint"),
    [
        ((), "holdfast", ""),
        (("--rdzv-endpoint", "localhost:0"), "holdfast", "localhost:0"),
        (("--master-port", "1"), "holdfast", ""),
        (("--nnodes=2", *PLACE), "holdfast", "node0:29400"),
        (("--nnodes=1:2", "--rdzv-endpoint=[fe80::1%eth0]:7"), "holdfast", "[fe80::1%eth0]:7"),
        (("--nnodes=2", "--rdzv-endpoint=[::1]"), "holdfast", "[::1]:29400"),
        (("--nnodes=2", "--rdzv-backend=c10d"), "c10d", "localhost:29400"),
        (("--nnodes=2", "--rdzv-backend=etcd", *PLACE), "etcd", "node0:2379"),
        (("--rdzv-backend=etcd-v2", "--rdzv-endpoint=a,b:1"), "etcd-v2", "a:2379,b:1"),
        (("--nnodes=2", "--master-addr", "node0"), "static", ""),
        (("--nnodes=2", "--master-addr=a", *PLACE), "static", "node0:29400"),
        (("--nnodes=2", "--node-rank=1"), "static", ""),
        (("--nnodes=2", "--node-rank=1", *PLACE), "holdfast", "node0:29400"),
        (("--rdzv-backend=file", "--rdzv-endpoint=/shared/a:b,c"), "file", "/shared/a:b,c"),
        (
            ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/x"),
            "c10d",
            "/x",
        ),
        (("--rdzv-backend=blackboard", "--rdzv-endpoint=x://y"), "blackboard", "x://y"),
        (("--rdzv-backend=carrier-pigeon",), "carrier-pigeon", ""),
    ],
)
def test_where_the_nodes_meet(words: tuple[str, ...], backend: str, endpoint: str) -> None:
    rendezvous = parse(*words).rendezvous
    assert (rendezvous.backend, rendezvous.endpoint) == (backend, endpoint)


@pytest.mark.parametrize(
    ("words", "master"),
    [
        (("--nnodes=2", "--node-rank=1"), (1, "127.0.0.1", 29500)),
        (("--nnodes=2", "--master-addr=a"), (0, "a", 29500)),
        (("--nnodes=2", "--master-port=0"), (0, "127.0.0.1", 0)),
        (("--rdzv-backend=static", "--nnodes=2", "--rdzv-endpoint=b:9"), (0, "b", 9)),
        (("--rdzv-backend=static",), (None, None, None)),
        (("--master-port=7",), (None, None, 7)),
    ],
)
def test_static_nodes_know_their_master(
    words: tuple[str, ...], master: tuple[int | None, str | None, int | None]
) -> None:
    config = parse(*words)
    assert (config.node_rank, config.master_address, config.master_port) == master


def test_standalone_sets_aside_what_speaks_of_other_nodes() -> None:
    words = ("--standalone", "--nnodes=1:4", "--rdzv-backend=etcd", *PLACE, "train.py")
    parsed = parse_run(words, {})
    assert parsed.config.max_nodes == 1
    assert parsed.config.rendezvous == Rendezvous(endpoint="localhost:0", standalone=True)
    assert len(parsed.notes) == 3
    assert all("--standalone" in note for note in parsed.notes)


def test_settings_of_the_backend_reach_the_timeouts() -> None:
    config = parse("--rdzv-conf", "join_timeout=60, last_call_timeout=1,timeout=9")
    assert (config.timeouts.join_s, config.timeouts.last_call_s) == (60, 1)
    assert config.rendezvous.options["timeout"] == "9"
    assert parse("--rdzv-conf=timeout=9").timeouts.join_s == 9
    both = parse("--rdzv-conf=join_timeout=60", HOLDFAST_JOIN_TIMEOUT="5")
    assert both.timeouts.join_s == 5


def test_a_registered_backend_has_settings_of_its_own() -> None:
    config = parse("--rdzv-backend=blackboard", "--rdzv-conf=chalk=white")
    assert config.rendezvous.options == {"chalk": "white"}
