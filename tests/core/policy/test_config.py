"""The configuration: what it refuses, and what it promises."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.policy.config import (
    JobConfig,
    Leases,
    Output,
    Program,
    Rendezvous,
    RestartPolicy,
    SecuritySettings,
    Timeouts,
)
from holdfast.core.protocol.errors import UsageError

JOB = JobConfig("job", Program("script", "train.py"))


def with_restarts(**changes: object) -> JobConfig:
    return structs.replace(JOB, restarts=structs.replace(JOB.restarts, **changes))


REFUSED = {
    "no workers": (structs.replace(JOB, slots=0), "workers per node"),
    "a negative number of workers": (structs.replace(JOB, slots=-1), "workers per node"),
    "no nodes": (structs.replace(JOB, min_nodes=0), "at least 1"),
    "fewer at most than at least": (structs.replace(JOB, min_nodes=3, max_nodes=2), "maximum of 2"),
    "a negative budget": (with_restarts(max_restarts=-1), "negative"),
    "a role without a name": (structs.replace(JOB, role=""), "role"),
    "a certificate without its key": (
        structs.replace(JOB, security=SecuritySettings(tls_certificate="node.pem")),
        "go together",
    ),
    "a key without its certificate": (
        structs.replace(JOB, security=SecuritySettings(tls_key="node.key")),
        "go together",
    ),
}


@pytest.mark.parametrize(("config", "complaint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_with_a_sentence_and_a_hint(
    config: JobConfig, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        config.validate()
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("rendezvous", "embedded"),
    [
        (Rendezvous(), True),
        (Rendezvous(backend="c10d"), True),
        (Rendezvous(backend="c10d", options={"store_type": "file"}), False),
        (Rendezvous(backend="etcd"), False),
        (Rendezvous(backend="static"), True),
    ],
)
def test_the_endpoint_s_host_carries_the_coordinator_where_nothing_else_does(
    rendezvous: Rendezvous, embedded: bool
) -> None:
    assert rendezvous.is_embedded == embedded


def test_only_several_static_nodes_have_fixed_ranks() -> None:
    several = structs.replace(JOB, max_nodes=2, min_nodes=2)
    static = Rendezvous(backend="static")
    assert structs.replace(several, rendezvous=static).has_fixed_ranks
    assert not structs.replace(JOB, rendezvous=static).has_fixed_ranks
    assert not several.has_fixed_ranks


durations = st.floats(0, 1e9)


@given(
    slots=st.integers(1, 1000),
    min_nodes=st.integers(1, 100),
    more_nodes=st.integers(0, 100),
    max_restarts=st.integers(0, 100),
    port=st.none() | st.integers(0, 65535),
    shutdown_s=durations,
    window_s=st.none() | durations,
)
def test_what_can_work_is_accepted_as_it_is(
    slots: int,
    min_nodes: int,
    more_nodes: int,
    max_restarts: int,
    port: int | None,
    shutdown_s: float,
    window_s: float | None,
) -> None:
    config = structs.replace(
        JOB,
        slots=slots,
        min_nodes=min_nodes,
        max_nodes=min_nodes + more_nodes,
        master_port=port,
        restarts=RestartPolicy(max_restarts=max_restarts, window_s=window_s),
        timeouts=Timeouts(shutdown_s=shutdown_s),
    )
    assert config.validate() is config


def test_the_defaults_are_those_of_torchrun_where_it_has_any() -> None:
    config = JOB.validate()
    assert (config.slots, config.min_nodes, config.max_nodes) == (1, 1, 1)
    assert config.restarts.max_restarts == 0
    assert config.role == "default"
    assert config.monitor_interval_s == 0.1
    assert config.start_method == "spawn"
    assert config.timeouts.shutdown_s == 30.0
    assert config.signals == ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    assert (config.output.redirects_default, config.output.tee_default) == (0, 0)


def test_streams_are_set_for_all_ranks_or_for_each() -> None:
    output = Output(redirects={12: 1}, redirects_default=3, tee={0: 2})
    assert [output.redirected(rank) for rank in (0, 1, 12)] == [3, 3, 1]
    assert [output.teed(rank) for rank in (0, 1)] == [2, 0]


def test_a_configuration_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        JOB.slots = 2  # type: ignore[misc]


def test_a_configuration_survives_the_way_through_a_file() -> None:
    config = structs.replace(
        JOB,
        output=Output(redirects={0: 3, 12: 1}, local_ranks_filter=(0,)),
        restarts=RestartPolicy(non_retryable_exit_codes=(3, 4), window_s=60.0),
        leases=Leases(lease_s=20.0),
        security=SecuritySettings(token_file="/run/token"),
        is_host=False,
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=JobConfig) == config
