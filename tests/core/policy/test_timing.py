"""The times of a job over several nodes: which contradict each other, and what they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.policy import timing
from holdfast.core.policy.config import JobConfig, Leases, Program, Rendezvous, Timeouts
from holdfast.core.protocol.errors import UsageError

ONE = JobConfig("job", Program("script", "train.py"))
JOB = structs.replace(ONE, max_nodes=8, rendezvous=Rendezvous(endpoint="node0:29400"))


def with_leases(**changes: float) -> JobConfig:
    return structs.replace(JOB, leases=structs.replace(JOB.leases, **changes))


def with_timeouts(**changes: float) -> JobConfig:
    return structs.replace(JOB, timeouts=structs.replace(JOB.timeouts, **changes))


def is_accepted(config: JobConfig) -> bool:
    try:
        timing.check(config)
    except UsageError:
        return False
    assert hold_by_derivation(config.leases), config.leases
    return True


def hold_by_derivation(leases: Leases) -> bool:
    """The relations that no choice of a user can break (rules 1 to 5)."""
    lease, heartbeat, reserve = leases.lease_s, leases.heartbeat_s, leases.stop_reserve_s
    return (
        heartbeat < lease / 2
        and reserve + 2 * heartbeat < lease
        and leases.reconnect_s <= leases.suspect_s
        and leases.term_s * (1 + leases.drift) < leases.takeover_s
        and leases.hold_s >= lease
    )


REFUSED = {
    "no heartbeat at all": (with_leases(heartbeat_s=0.0), "every 0 s"),
    "a heartbeat of half the lease": (with_leases(heartbeat_s=5.0), "every 5 s does not fit"),
    "suspicion before the second heartbeat": (with_leases(suspect_s=3.9), "suspected after 3.9 s"),
    "suspicion at the end of the lease": (with_leases(suspect_s=10.0), "suspected after 10 s"),
    "a lease shorter than the tether": (with_leases(tether_s=10.0), "tether"),
    "a late takeover": (with_leases(takeover_s=5.0), "a takeover may last 8 s"),
    "a silence that is noticed late": (with_leases(heartbeat_s=2.4), "a takeover may last 8.2 s"),
}
BARELY_ACCEPTED = {
    "suspicion at the second heartbeat": with_leases(suspect_s=4.0),
    "suspicion just within the lease": with_leases(suspect_s=9.99),
    "a takeover that ends just in time": with_leases(takeover_s=4.99),
}


@pytest.mark.parametrize(("config", "complaint"), REFUSED.values(), ids=REFUSED)
def test_times_that_contradict_each_other_are_refused(config: JobConfig, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        config.validate()
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("config", BARELY_ACCEPTED.values(), ids=BARELY_ACCEPTED)
def test_times_that_barely_fit_are_accepted(config: JobConfig) -> None:
    assert config.validate() is config


def test_a_job_of_one_node_needs_no_lease() -> None:
    for config, _ in REFUSED.values():
        alone = structs.replace(config, max_nodes=1)
        assert alone.validate() is alone


# --- derived times ------------------------------------------------------------------------

choices = st.floats(1.0, 1e6)


def test_nothing_chosen_is_the_defaults() -> None:
    assert timing.derive(Leases(), {}) == Leases()


@given(choices)
def test_any_lease_alone_is_valid(lease_s: float) -> None:
    leases = timing.derive(Leases(), {"lease_s": lease_s})
    assert is_accepted(structs.replace(JOB, leases=leases))
    assert leases.lease_s == lease_s


@given(st.floats(0.001, 1e6), st.none() | st.floats(0.001, 1e6))
def test_any_heartbeat_is_valid_without_a_lease(heartbeat_s: float, more_s: float | None) -> None:
    chosen = {"heartbeat_s": heartbeat_s}
    if more_s is not None:
        chosen["suspect_s"] = 2 * heartbeat_s + more_s
    leases = timing.derive(Leases(), chosen)
    assert is_accepted(structs.replace(JOB, leases=leases)), leases
    assert leases.lease_s >= Leases().lease_s
    assert leases.heartbeat_s == heartbeat_s


@given(st.floats(0.001, 1e6))
def test_any_suspicion_is_valid_without_a_lease(suspect_s: float) -> None:
    leases = timing.derive(Leases(), {"suspect_s": suspect_s})
    assert is_accepted(structs.replace(JOB, leases=leases)), leases
    assert leases.suspect_s == suspect_s


@given(choices, st.floats(0.01, 0.23))
def test_a_heartbeat_up_to_0_23_of_the_lease_is_valid(lease_s: float, part: float) -> None:
    leases = timing.derive(Leases(), {"lease_s": lease_s, "heartbeat_s": part * lease_s})
    # Reconnecting takes a tenth of a short lease, and no more than a second of a long one.
    assert is_accepted(structs.replace(JOB, leases=leases)), leases


def test_what_was_chosen_is_kept_even_if_it_cannot_work() -> None:
    leases = timing.derive(Leases(), {"lease_s": 4.0, "heartbeat_s": 3.0})
    assert (leases.lease_s, leases.heartbeat_s) == (4.0, 3.0)
    assert not is_accepted(structs.replace(JOB, leases=leases))


def test_a_short_lease_shortens_what_goes_with_it_in_proportion() -> None:
    leases = timing.derive(Leases(), {"lease_s": 4.0})
    assert leases.heartbeat_s == pytest.approx(0.8)
    assert leases.stop_reserve_s == pytest.approx(0.8)
    assert leases.kill_margin_s == pytest.approx(0.8)
    assert leases.suspect_s == pytest.approx(2.0)
    assert (leases.tether_s, leases.drift) == (Leases().tether_s, Leases().drift)


def test_the_kernel_gets_its_time_to_kill_however_short_the_lease() -> None:
    assert timing.derive(Leases(), {"lease_s": 1.0}).kill_margin_s == 0.5


@pytest.mark.parametrize(
    ("lease_s", "backend", "longest_s"),
    [(60.0, "holdfast", 5.0), (60.0, "etcd", 2.0), (5.0, "holdfast", 2.0), (1.0, "etcd", 1.0)],
)
def test_two_attempts_to_reach_a_coordinator_fit_into_a_lease_unless_it_is_very_short(
    lease_s: float, backend: str, longest_s: float
) -> None:
    leases = timing.derive(Leases(), {"lease_s": lease_s})
    rendezvous = Rendezvous(backend=backend, endpoint="node0:2379")
    config = structs.replace(JOB, leases=leases, rendezvous=rendezvous)
    assert timing.one_dial_s(config) == longest_s


# --- what they mean -----------------------------------------------------------------------


def test_a_silent_machine_is_gone_when_its_own_spawner_has_surely_killed_its_workers() -> None:
    assert Leases().gone_after_s == pytest.approx(12.1)
    slow = Leases(lease_s=100.0, drift=0.02, kill_margin_s=3.0)
    assert slow.gone_after_s == pytest.approx(105.0)


def test_a_coordinator_in_a_register_of_its_own_is_replaced_without_waiting_for_a_lease() -> None:
    elsewhere = structs.replace(JOB, rendezvous=Rendezvous(backend="etcd", endpoint="a:2379"))
    assert "takes over within 7 s" in timing.describe(elsewhere)[-1]


def test_the_description_says_how_long_each_loss_takes_at_worst() -> None:
    worst, host = timing.describe(JOB)
    assert "0.3 s after all processes of a node die" in worst
    assert "12.1 s after a machine falls silent (lease 10 s)" in worst
    assert "up to 30 s more" in worst
    assert "node0:29400 dies, the job goes on at most 12.1 s after it is back" in host
    assert "600 s (--join-timeout)" in host


def test_a_join_timeout_below_the_loss_of_a_machine_is_worth_a_note() -> None:
    assert timing.notes(JOB) == ()
    short = with_timeouts(join_s=12.0)
    assert "--join-timeout 12 may end the job" in timing.notes(short)[0]
    assert timing.notes(structs.replace(short, max_nodes=1)) == ()
    assert short.validate() is short


def test_the_defaults_of_both_kinds_fit_together() -> None:
    assert is_accepted(structs.replace(JOB, leases=Leases(), timeouts=Timeouts()))


def within(notice_s: float, *chosen: str, **times: float) -> Timeouts:
    return timing.within_notice(Timeouts(notice_s=notice_s, **times), chosen)


def test_a_notice_is_split_between_saving_and_stopping() -> None:
    times = within(60.0)
    assert (times.save_s, times.shutdown_s, times.drain_s) == (40.0, 20.0, 5.0)
    times = within(300.0)
    assert (times.save_s, times.shutdown_s) == (270.0, 30.0), "no longer than the grace ever is"
    times = within(6.0)
    assert (times.save_s, times.shutdown_s, times.drain_s) == (4.0, 2.0, 4.0)


def test_what_was_chosen_beside_a_notice_stays() -> None:
    times = within(60.0, "shutdown_s", shutdown_s=50.0)
    assert (times.save_s, times.shutdown_s) == (10.0, 50.0)
    assert within(60.0, "save_s", save_s=5.0).save_s == 5.0


def test_without_a_notice_nothing_changes() -> None:
    assert timing.within_notice(Timeouts(), ()) == Timeouts()


@given(st.floats(0.01, 1e5))
def test_a_notice_alone_always_holds_the_rules(notice_s: float) -> None:
    structs.replace(ONE, timeouts=within(notice_s)).validate()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("option", "times"),
    [
        ("--save-timeout", {"save_s": 31.0}),
        ("--drain-timeout", {"save_s": 0.0, "drain_s": 40.0}),
    ],
)
def test_times_that_do_not_fit_into_a_notice_are_refused(
    option: str, times: dict[str, float], nodes: int
) -> None:
    timeouts = Timeouts(notice_s=60.0, shutdown_s=30.0, **times)
    with pytest.raises(UsageError, match=option) as refused:
        structs.replace(ONE, timeouts=timeouts, max_nodes=nodes).validate()
    assert "--notice" in refused.value.message
