"""A register that holds what Holdfast did not write: refused in words, and never believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.engine.sentences import FOREIGN
from holdfast.registers.opening import open_register
from holdfast.registers.register import RegisterSettings

from ..etcd_cluster import EtcdCluster
from .test_registers import STATUS_NOBODY_REACHED, TwoAgents, two

__all__ = ["two"]

LEDGERS: dict[str, dict[str, object]] = {
    "a size below zero": {"round": 1, "size": -3},
    "a size beyond all": {"round": 1, "size": 10**13},
    "charges beyond all": {"round": 1, "charges": 10**13},
    "a seat that is none": {"round": 1, "size": 2, "done": [99]},
}


def forged(ledger: dict[str, object], epoch: int = 1) -> bytes:
    whole = {"instance": 1, "epoch": epoch, "counter": 1, "nonce": "x/1", "leader": ""}
    return msgspec.json.encode({**whole, "ledger": ledger})


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


Place = tuple[str, str]


@pytest.fixture(params=["etcd", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "etcd":
        return "etcd", request.getfixturevalue("etcd").endpoints
    (tmp_path / "registers").mkdir()
    return "file", str(tmp_path / "registers")


@pytest.fixture
def plant(two: TwoAgents, place: Place) -> Callable[[bytes], None]:
    """Writes something where the job's document belongs."""
    backend, endpoint = place

    def write(content: bytes) -> None:
        register = open_register(RegisterSettings(backend, endpoint, two.run_id))
        found = register.get_state()
        written = register.set_state(content, None if found is None else found[1])
        assert written is not None
        assert written[2]
        close = getattr(register, "close", None)
        if close is not None:
            close()

    return write


@pytest.mark.thorough(
    but=("etcd-a size beyond all", "file-charges beyond all", "file-a seat that is none")
)
@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
def test_a_document_that_cannot_be_true_ends_the_agents_in_words(
    two: TwoAgents, place: Place, plant: Callable[[bytes], None], ledger: dict[str, object]
) -> None:
    plant(forged(ledger))
    agents = [two.start(*place, "join_timeout=30") for _ in range(2)]
    two.finish()
    for agent in agents:
        assert agent.wait() == STATUS_NOBODY_REACHED, agent.stderr
        assert FOREIGN in agent.stderr
        assert "Traceback" not in agent.stderr
    assert two.newest(1) == 0


def test_an_epoch_beyond_all_ends_the_agents_in_words(
    two: TwoAgents, place: Place, plant: Callable[[bytes], None]
) -> None:
    plant(forged({}, epoch=2**64 - 1))
    agent = two.start(*place, "join_timeout=30")
    assert agent.wait() == STATUS_NOBODY_REACHED, agent.stderr
    assert FOREIGN in agent.stderr
    assert "Traceback" not in agent.stderr


def test_one_that_is_forged_while_the_job_runs_is_not_believed(
    two: TwoAgents, place: Place, plant: Callable[[bytes], None]
) -> None:
    """The round goes on; that it was is told; and the end of its workers is their own."""
    agent = two.start(*place)
    agent.until(lambda: two.newest(1), "a round")
    plant_over(plant, forged({"round": 1, "size": -3}, epoch=50))
    agent.until(lambda: FOREIGN in agent.stderr, "that the document is refused")
    assert agent.process.poll() is None
    assert "Traceback" not in agent.stderr


def plant_over(plant: Callable[[bytes], None], content: bytes) -> None:
    """The leader writes every second: once it fails to, the next try gets through."""
    for _ in range(50):
        try:
            plant(content)
        except AssertionError:
            continue
        return
    pytest.fail("it could not be written over")
