"""Where the nodes of a job meet, and what may be plugged in there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.options import parse_run
from holdfast.core.policy.config import JobConfig, Leases, Rendezvous
from holdfast.core.protocol.errors import UsageError

pytestmark = pytest.mark.usefixtures("plugins")

PLACE = ("--rdzv-endpoint", "node0")


def parse(*words: str, **environ: str) -> JobConfig:
    return parse_run((*words, "train.py"), environ).config


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
        (("--nnodes=2", "--rdzv-id=j", "--rdzv-backend=etcd", *PLACE), "etcd", "node0:2379"),
        (("--rdzv-backend=etcd-v2", "--rdzv-endpoint=a,b:1"), "etcd-v2", "a:2379,b:1"),
        (("--nnodes=2", "--master-addr", "node0"), "static", "node0:29400"),
        (("--nnodes=2", "--master-addr=a", *PLACE), "static", "node0:29300"),
        (("--nnodes=2", "--node-rank=1"), "static", "127.0.0.1:29400"),
        (("--nnodes=2", "--node-rank=1", *PLACE), "holdfast", "node0:29400"),
        (("--rdzv-backend=file", "--rdzv-endpoint=/shared/a:b,c"), "file", "/shared/a:b,c"),
        (
            ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/x"),
            "c10d",
            "/x",
        ),
        (("--rdzv-backend=blackboard", "--rdzv-endpoint=x://y"), "blackboard", "x://y"),
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
        (("--nnodes=2", "--master-port=7"), (0, "127.0.0.1", 7)),
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


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (("--master-addr=node0",), "node0:29400"),
        (("--master-addr=node0", "--master-port=29501"), "node0:29401"),
        (("--master-addr=fd00::1",), "[fd00::1]:29400"),
        (("--master-addr=node0", "--master-port=1124"), "node0:1024"),
        (("--master-addr=node0", "--master-port=1123"), "node0:1223"),
        (("--master-addr=node0", "--master-port=1"), "node0:101"),
        (("--master-addr=node0", "--rdzv-conf=coordinator_port=80"), "node0:80"),
        (("--rdzv-backend=static", "--rdzv-endpoint=node0:29600"), "node0:29500"),
    ],
)
def test_static_nodes_meet_beside_the_master_s_port(words: tuple[str, ...], endpoint: str) -> None:
    parsed = parse_run(("--nnodes=2", *words, "train.py"), {})
    assert parsed.config.rendezvous.endpoint == endpoint
    assert any(endpoint in note for note in parsed.notes), "another port than the one given"


def test_static_nodes_that_know_the_master_by_different_names_are_of_one_job() -> None:
    one = parse("--nnodes=2", "--master-addr=node0")
    assert one.run_id == parse("--nnodes=2", "--master-addr=10.0.0.1", "--node-rank=1").run_id
    assert one.run_id != parse("--nnodes=2", "--master-addr=node0", "--master-port=1234").run_id


@pytest.mark.parametrize("said", [(), ("--rdzv-conf=is_host=1",), ("--rdzv-conf=is_host=0",)])
def test_the_static_node_of_rank_0_carries_the_coordinator(said: tuple[str, ...]) -> None:
    assert parse("--nnodes=2", "--master-addr=node0", *said).is_host is True
    assert parse("--nnodes=2", "--master-addr=node0", "--node-rank=1", *said).is_host is False
    assert parse("--rdzv-backend=static").is_host is None, "nobody dials a node that is alone"


@pytest.mark.parametrize(
    "words",
    [
        ("--master-port=0",),
        ("--node-rank=2",),
        ("--node-rank=1", "--rdzv-conf=coordinator_port=29500"),
        ("--node-rank=1", "--rdzv-conf=coordinator_port=0"),
    ],
)
def test_static_nodes_that_could_not_meet_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse("--nnodes=2", *words)


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


# --- times of a job over several nodes ----------------------------------------------------

SEVERAL = ("--nnodes=1:4", *PLACE)


def test_settings_of_our_own_reach_their_fields() -> None:
    config = parse(
        *SEVERAL,
        "--rdzv-conf=lease=20,heartbeat=3,suspect=8,scale_up_delay=4,min_round_time=90,"
        "token_file=/run/token,close_timeout=7,is_host=0",
    )
    leases, timeouts = config.leases, config.timeouts
    assert (leases.lease_s, leases.heartbeat_s, leases.suspect_s) == (20, 3, 8)
    assert (timeouts.scale_up_delay_s, timeouts.min_round_s, timeouts.close_s) == (4, 90, 7)
    assert config.security.token_file == "/run/token"
    assert config.is_host is False
    assert parse().is_host is None


def test_an_option_wins_over_a_setting() -> None:
    config = parse(*SEVERAL, "--lease=30", "--rdzv-conf=lease=20,heartbeat=3", "--heartbeat=4")
    assert (config.leases.lease_s, config.leases.heartbeat_s) == (30, 4)


@pytest.mark.parametrize("lease", ["1", "4", "10", "60", "3600"])
def test_a_lease_alone_takes_the_other_times_along(lease: str) -> None:
    leases = parse(*SEVERAL, "--lease", lease).leases
    assert leases.lease_s == float(lease)
    assert leases.heartbeat_s == pytest.approx(float(lease) / 5)
    assert leases.suspect_s == pytest.approx(float(lease) / 2)
    assert parse(*SEVERAL, f"--rdzv-conf=lease={lease}").leases == leases


def test_no_lease_given_is_the_default_one() -> None:
    assert parse(*SEVERAL).leases == Leases()


def test_times_that_contradict_each_other_are_refused_for_several_nodes_only() -> None:
    words = ("--lease=4", "--heartbeat=3", "train.py")
    with pytest.raises(UsageError):
        parse(*SEVERAL, *words)
    assert parse_run(words, {}).config.leases.heartbeat_s == 3


def test_torch_s_words_for_heartbeat_and_silence_are_heard() -> None:
    leases = parse(*SEVERAL, "--rdzv-conf=keep_alive_interval=4,heartbeat_timeout=10").leases
    assert (leases.heartbeat_s, leases.suspect_s, leases.lease_s) == (4, 10, 20)
    ours = "--rdzv-conf=keep_alive_interval=4,heartbeat=1,heartbeat_timeout=3,suspect=2.5"
    leases = parse(*SEVERAL, ours).leases
    assert (leases.heartbeat_s, leases.suspect_s) == (1, 2.5)


positive = st.floats(0.01, 1e6).map(lambda number: f"{number:.4f}")


@given(st.none() | positive, st.none() | positive, st.none() | st.floats(1, 1e6))
def test_no_settings_of_torch_make_the_times_contradict_each_other(
    interval: str | None, silence: str | None, lease_s: float | None
) -> None:
    said = {"keep_alive_interval": interval, "heartbeat_timeout": silence}
    settings = ",".join(f"{key}={value}" for key, value in said.items() if value)
    words = [f"--lease={lease_s:.4f}"] if lease_s else []
    assert parse(*SEVERAL, f"--rdzv-conf={settings}", *words).max_nodes == 4


def test_a_short_join_timeout_is_mentioned() -> None:
    parsed = parse_run((*SEVERAL, "--join-timeout=9", "train.py"), {})
    assert "--join-timeout 9 may end the job" in parsed.notes[-1]
    assert parse_run(("--join-timeout=9", "train.py"), {}).notes == ()


def test_a_long_minimum_of_a_round_raises_its_limit() -> None:
    timeouts = parse(*SEVERAL, "--min-round-time=90").timeouts
    assert (timeouts.min_round_s, timeouts.min_round_max_s) == (90, 90)
    assert parse(*SEVERAL, "--min-round-time=9").timeouts.min_round_max_s == 60
