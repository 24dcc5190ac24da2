"""The nodes of `holdfast doctor --nnodes`: they meet, tell each other what they find, and end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig, Program, Rendezvous
from holdfast.doctor import probe, reading, sentences
from holdfast.doctor.facts import Wanted
from holdfast.doctor.group import Examined
from holdfast.doctor.page import DoctorPage
from holdfast.elastic.rendezvous.membership import Membership
from holdfast.elastic.rendezvous.store import CoordinatorStore
from holdfast.engine.secrets import Secrets, security_of

from ..free_ports import free_port

DEADLINE_S = 60.0
SECRETS = Secrets(token=b"a token that is long enough")
WANTED = Wanted(several_nodes=True)
Found = tuple[DoctorPage, bool]


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """The doctor's own process ends after it."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    place = Rendezvous("holdfast", f"127.0.0.1:{free_port()}")
    program = Program("function", "the doctor")
    job = JobConfig(run_id="examined", program=program, min_nodes=2, max_nodes=2, rendezvous=place)
    return replace(job, snapshot_dir=str(tmp_path / "record"))


@pytest.fixture
def join(config: JobConfig) -> Iterator[Callable[[], Membership]]:
    joined: list[Membership] = []

    def one() -> Membership:
        joined.append(Membership(config, SECRETS))
        return joined[-1]

    yield one
    for each in joined:
        each.leave(0.1)


def examined(config: JobConfig, shared: str = "") -> Found:
    return probe.examine(config, SECRETS, WANTED, shared, {})


def test_all_nodes_have_one_page_and_one_of_them_is_the_first(
    config: JobConfig, tmp_path: Path
) -> None:
    (folder := tmp_path / "shared").mkdir()
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(examined, config, str(folder)) for _ in range(2)]
        pages = {one.result(DEADLINE_S)[1]: one.result(DEADLINE_S)[0] for one in both}
    assert pages[True] == pages[False]
    assert [report.rank for report in pages[True].nodes] == [0, 1]
    assert all(any(dial.round_trip_s for dial in one.dials) for one in pages[True].nodes)
    assert {one.shared for one in pages[True].nodes} == {""}
    assert list(folder.iterdir()) == [], "what was written to see whether it is shared is gone"


@pytest.mark.parametrize("said", [None, b"nothing that can be read"])
def test_a_node_that_says_nothing_of_use_is_left_out(
    config: JobConfig,
    join: Callable[[], Membership],
    monkeypatch: pytest.MonkeyPatch,
    said: bytes | None,
) -> None:
    monkeypatch.setattr(probe, "MEETING_S", 1.0)
    monkeypatch.setattr(probe, "LAST_WORD_S", 0.1)
    config = replace(config, node_rank=0)
    with ThreadPoolExecutor() as pool:
        speaking = pool.submit(examined, config)
        seat = join().meet(DEADLINE_S)
        if said is not None:
            security = security_of(config, SECRETS.token)
            with CoordinatorStore(seat.store, config.run_id, security, seat.round) as store:
                store.set(f"peer/{seat.rank}", said)
        page, is_first = speaking.result(DEADLINE_S)
    assert is_first
    assert [report.rank for report in page.nodes] == [0]
    assert sentences.missing(1, 2)[0] in {one.what for one in page.findings}


def test_a_node_that_loses_the_others_has_a_page_that_says_so(
    config: JobConfig, join: Callable[[], Membership]
) -> None:
    first, second = join(), join()
    with ThreadPoolExecutor() as pool:
        seats = [pool.submit(one.meet, DEADLINE_S) for one in (first, second)]
        seat = seats[1].result(DEADLINE_S)
    for one in (first, second):
        one.fail("a test ends the round")
    for one in sorted((first, second), key=lambda one: one.is_hosting):
        one.leave(0.1)  # The coordinator last: it waits for the others.
    store = CoordinatorStore(seat.store, config.run_id, security_of(config, SECRETS.token))
    page = probe.Probe(seat, store, WANTED, "").run(Examined(seat.rank, reading.read({})))
    assert page.findings[0].what.startswith("the other nodes were lost: ")
    assert not page.well


def test_a_node_that_dials_and_says_nothing_keeps_none_waiting() -> None:
    with probe.Pongs() as pongs, ThreadPoolExecutor() as pool:
        serving = pool.submit(pongs.serve_forever, 0.01)
        peer = probe.Peer(1, ("127.0.0.1",), pongs.socket.getsockname()[1])
        with socket.create_connection(("127.0.0.1", peer.port)):
            assert probe._dial_all(peer)[-1].round_trip_s is not None
        pongs.shutdown()
        serving.result(DEADLINE_S)
