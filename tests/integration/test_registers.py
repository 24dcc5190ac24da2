"""A job of two agents on one machine over each register, which loses its coordinator.

The stores are real ones. Workers are plain Python, so that an agent in which PyTorch is found
has imported it itself.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engine.sentences import LEADS

from ..etcd_cluster import EtcdCluster, EtcdOptions
from ..free_ports import free_port
from ..waiting import until
from .conftest import Job, StartJob

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
TIMES = "last_call_timeout=1"
STATUS_NOBODY_REACHED = 3
PASSWORD_NAME = "HOLDFAST_REGISTER_PASSWORD"
PASSWORD = "correct horse"
WRONG = "wrong battery staple"
# Says that it runs, and ends when it is told to.
PROGRAM = """
import os, sys, time
folder, names = sys.argv[1], ("HOLDFAST_ROUND", "WORLD_SIZE", "RANK")
open(os.path.join(folder, "worker." + ".".join(os.environ[n] for n in names)), "w").close()
while not os.path.exists(os.path.join(folder, "finish")):
    time.sleep(0.02)
"""
HOST_A_STORE = """
import sys
import torch.distributed
address, port = sys.argv[1].split(":")
store = torch.distributed.TCPStore(address, int(port), is_master=True, wait_for_workers=False)
print("serving", flush=True)
sys.stdin.read()
"""


class TwoAgents:
    """A job that meets in one place, and can do with one agent of two."""

    def __init__(self, start_job: StartJob, folder: Path) -> None:
        self._start_job = start_job
        self.run_id = uuid.uuid4().hex
        self.shared = folder / "shared"
        self.shared.mkdir()

    def start(self, backend: str, endpoint: str, options: str = "", **more: object) -> Job:
        conf = ",".join(filter(None, (TIMES, options)))
        return self._start_job(
            *(f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={conf}"),
            *(f"--rdzv-id={self.run_id}", "--nnodes=1:2", "--max-restarts=0", "--no-warm"),
            script=PROGRAM,
            args=(str(self.shared),),
            **more,
        )

    def newest(self, world: int) -> int:
        """The newest round, with a world of this size, all workers of which have begun; or 0."""
        begun = [path.name.split(".")[1:] for path in self.shared.glob("worker.*")]
        rounds = [int(number) for number, size, _ in begun if int(size) == world]
        return max((number for number in rounds if rounds.count(number) == world), default=0)

    def finish(self) -> None:
        (self.shared / "finish").touch()


@pytest.fixture
def two(start_job: StartJob, tmp_path: Path) -> TwoAgents:
    return TwoAgents(start_job, tmp_path)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One server, which speaks both versions of the API."""
    folder = tmp_path_factory.mktemp("etcd")
    with EtcdCluster(folder, options=EtcdOptions(enable_v2=True)) as cluster:
        yield cluster


@pytest.fixture
def tcp_store(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a store in a process that is none of the job's."""
    endpoint = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", HOST_A_STORE, endpoint]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        assert host.stdout.readline() == b"serving\n"
        yield endpoint
        host.stdin.close()


@pytest.fixture
def own_register(tmp_path: Path) -> dict[str, str]:
    """The example, in a package that offers it, as pip would have installed it."""
    info = tmp_path / "packages" / "own_register-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-register\nVersion: 1.0\n")
    entry = "[holdfast.registers]\nsqlite = own_register:SqliteRegister\n"
    (info / "entry_points.txt").write_text(entry)
    return {"PYTHONPATH": f"{info.parent}:{EXAMPLES}"}


Agents = Callable[[], Job]


@pytest.fixture(params=["etcd", "etcd-v2", "file", "c10d tcp", "c10d file", "own"])
def start_agent(
    request: pytest.FixtureRequest, two: TwoAgents, tmp_path: Path, etcd: EtcdCluster
) -> Agents:
    """Starts one agent of a job over each of the registers."""
    match request.param:
        case "etcd" | "etcd-v2":
            # Both are in the same server; neither sees the other's keys.
            return lambda: two.start(request.param, etcd.endpoints)
        case "file":
            (tmp_path / "registers").mkdir()
            return lambda: two.start("file", str(tmp_path / "registers"))
        case "c10d tcp":
            endpoint = request.getfixturevalue("tcp_store")
            return lambda: two.start("c10d", endpoint, "store_type=tcp,is_host=false")
        case "c10d file":
            return lambda: two.start("c10d", str(tmp_path / "store"), "store_type=file")
        case _:
            path, env = str(tmp_path / "registers.sqlite"), request.getfixturevalue("own_register")
            return lambda: two.start("sqlite", path, env=env)


def has_torch(job: Job) -> bool:
    return "libtorch" in Path(f"/proc/{job.process.pid}/maps").read_text()


@pytest.mark.thorough(but=("c10d tcp", "etcd", "file"))
@pytest.mark.torch
def test_a_job_survives_its_coordinator_over(
    start_agent: Agents, two: TwoAgents, request: pytest.FixtureRequest
) -> None:
    first = start_agent()
    first.until(lambda: LEADS in first.stderr, "a coordinator")
    second = start_agent()
    second.until(lambda: two.newest(2), "a round of two")
    number = two.newest(2)
    uses_a_store = request.node.callspec.params["start_agent"].startswith("c10d")
    assert uses_a_store or not any(has_torch(job) for job in (first, second))
    first.process.kill()
    second.until(lambda: two.newest(1) > number, "the next round")
    assert LEADS in second.stderr
    two.finish()
    assert second.wait() == 0, second.stderr
    for job in (first, second):
        job.expect_nothing_left()


@pytest.mark.thorough
@pytest.mark.torch
def test_the_first_agent_serves_the_tcp_store_that_nobody_serves(two: TwoAgents) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    first = two.start("c10d", endpoint, "store_type=tcp")
    first.until(lambda: LEADS in first.stderr, "a coordinator")
    second = two.start("c10d", endpoint, "store_type=tcp")
    second.until(lambda: two.newest(2), "a round of two")
    assert (has_torch(first), has_torch(second)) == (True, False)
    two.finish()
    assert [job.wait() for job in (first, second)] == [0, 0], second.stderr


def test_without_a_store_type_c10d_needs_no_torch(two: TwoAgents) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    agents = [two.start("c10d", endpoint) for _ in range(2)]
    agents[0].until(lambda: two.newest(2), "a round of two")
    assert not any(has_torch(job) for job in agents)
    two.finish()
    assert [job.wait() for job in agents] == [0, 0]


def test_a_job_that_is_over_leaves_its_outcome_in_etcd_for_a_minute(
    two: TwoAgents, etcd: EtcdCluster
) -> None:
    before = leases_s(etcd)
    agents = [two.start("etcd", etcd.endpoints) for _ in range(2)]
    agents[0].until(lambda: two.newest(2), "a round of two")
    two.finish()
    assert [job.wait() for job in agents] == [0, 0]

    def left() -> list[int]:
        return [ttl for lease, ttl in leases_s(etcd).items() if lease not in before]

    # A server that is busy may be slow to let go of the others.
    until(lambda: left() == [60], "the end of all leases but one")


def leases_s(cluster: EtcdCluster) -> dict[str, int]:
    """All leases, and for how long they were granted."""
    ask = cluster.servers[0].ask
    found = [each["ID"] for each in ask("/v3/lease/leases", {}).get("leases", [])]
    answers = {lease: ask("/v3/lease/timetolive", {"ID": lease}) for lease in found}
    return {lease: int(answer.get("grantedTTL", 0)) for lease, answer in answers.items()}


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_a_wrong_password_ends_the_agent_in_words(
    two: TwoAgents, tmp_path: Path, backend: str
) -> None:
    options = EtcdOptions(enable_v2=backend == "etcd-v2", user="holdfast", password=PASSWORD)
    with EtcdCluster(tmp_path / "etcd", options=options) as cluster:
        secrets = {"HOLDFAST_REGISTER_USER": "holdfast", PASSWORD_NAME: WRONG}
        refused = two.start(backend, cluster.endpoints, env=secrets)
        assert refused.wait() == STATUS_NOBODY_REACHED, refused.stderr
        assert "password" in refused.stderr
        assert WRONG not in refused.stderr
        right = two.start(backend, cluster.endpoints, env={**secrets, PASSWORD_NAME: PASSWORD})
        right.until(lambda: two.newest(1), "a round of the one who may")
        two.finish()
        assert right.wait() == 0, right.stderr
    assert WRONG not in "".join(p.read_text() for p in tmp_path.rglob("journal.jsonl"))


def test_an_etcd_that_is_not_there_is_named(two: TwoAgents) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    job = two.start("etcd", endpoint, "join_timeout=4")
    assert job.wait() == STATUS_NOBODY_REACHED, job.stderr
    assert endpoint in job.stderr


def test_a_folder_that_cannot_be_written_is_named(two: TwoAgents, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    job = two.start("file", str(tmp_path / "file" / "registers"), "join_timeout=4")
    assert job.wait() == STATUS_NOBODY_REACHED, job.stderr
    assert str(tmp_path / "file") in job.stderr


def test_a_server_that_comes_later_is_waited_for(two: TwoAgents, tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path / "etcd")
    try:
        job = two.start("etcd", cluster.endpoints)
        job.until(lambda: "the register cannot be reached" in job.stderr, "that it is said")
        cluster.start()
        job.until(lambda: two.newest(1), "a round")
        two.finish()
        assert job.wait() == 0, job.stderr
    finally:
        cluster.close()
    until(lambda: not cluster.servers[0].is_running, "the end of the server")
