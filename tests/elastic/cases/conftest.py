"""The cases of the elastic API, on every backend: real agents, workers, stores, etcd.

A test has a `job`: agents that meet in one place, with a folder for what they tell each other
and the test. After it nothing may be left of them, their workers or what those started.

The backends are those that `holdfast run` knows:

- `embedded`: the first agent carries the coordinator, at the endpoint.
- `etcd`, `etcd-v2`: in one server; any agent may carry the coordinator.
- `tcpstore`: in PyTorch's own TCPStore, served by the first agent that comes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...etcd_cluster import EtcdCluster, EtcdOptions
from ...free_ports import free_port
from ...waiting import until
from . import entrypoints
from .agents import Agent, Plan, server

BACKENDS = {
    "embedded": ("holdfast", {}),
    "etcd": ("etcd", {}),
    "etcd-v2": ("etcd-v2", {}),
    "tcpstore": ("c10d", {"store_type": "tcp"}),
}
"""By the names of tests: the name that a user says, and the settings."""
LAST_CALL_S = 60


def needs(backend: str) -> list[pytest.MarkDecorator]:
    """What must be installed for a backend, as markers."""
    return [pytest.mark.torch] if backend == "tcpstore" else []


LOSSES = [
    pytest.param(name, place, id=f"{name}-{kind}", marks=needs(name))
    for name in BACKENDS
    for place, kind in enumerate(("the_coordinator", "the_other"))
    if place or name.startswith("etcd")
]
"""Which of two agents may be lost, on each backend: elsewhere than in etcd what the agents meet
in is in the first of them."""


ALONE = pytest.mark.parametrize("backend", ["embedded"], indirect=True)
"""For cases about what one agent does with its workers, once it has met nobody. That it does meet
nobody on each of the backends is seen in one case of values and one of failures."""


class Job:
    """Agents that meet. All that a `Plan` has may be said of each."""

    def __init__(self, rendezvous: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self.agents: list[Agent] = []
        self._rendezvous = {**rendezvous, "run_id": uuid.uuid4().hex}

    @property
    def run_id(self) -> str:
        return str(self._rendezvous["run_id"])

    def start(self, entrypoint: Callable[..., Any] | str, *args: Any, **plan: Any) -> Agent:
        folder = self.folder / f"agent{len(self.agents)}"
        agent = Agent(Plan(folder, self._rendezvous, entrypoint, args, **plan))
        self.agents.append(agent)
        return agent

    def path(self, name: str) -> Path:
        return self.folder / name

    def until_there_is(self, name: str) -> str:
        """Wait for a file of this name; what is in it."""
        until(self.path(name).exists, lambda: f"no {name}: {self.outputs()}")
        return self.path(name).read_text()

    def newest_round(self, world_size: int) -> int:
        """The newest, of a world of this size, all workers of which have begun; or 0."""
        begun = [path.name.split(".")[1:] for path in self.folder.glob("runs.*")]
        rounds = [int(number) for number, size, _ in begun if int(size) == world_size]
        complete = (number for number in rounds if rounds.count(number) == world_size)
        return max(complete, default=0)

    def until_round(self, world_size: int, after: int = 0) -> int:
        """Wait for a round after this one with a world of this size; its number."""
        until(
            lambda: self.newest_round(world_size) > after,
            lambda: f"no round of {world_size} after {after}: {self.outputs()}",
        )
        return self.newest_round(world_size)

    def processes(self) -> dict[int, str]:
        """What runs of the agents and all that descends from them: pids and command lines."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(process / "cwd")).is_relative_to(self.folder):
                    found[int(process.name)] = (process / "cmdline").read_text()
            except OSError:
                pass  # It has ended.
        return found

    def outputs(self) -> str:
        """What all agents wrote."""
        return "\n".join(f"{agent.folder.name}:\n{agent.output}" for agent in self.agents)


@pytest.fixture(params=[pytest.param(name, marks=needs(name)) for name in BACKENDS])
def backend(request: pytest.FixtureRequest) -> str:
    """Each of the four."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def etcd_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all, which speaks both versions of the API."""
    folder = tmp_path_factory.mktemp("etcd")
    with EtcdCluster(folder, options=EtcdOptions(enable_v2=True)) as cluster:
        yield cluster.endpoints


@pytest.fixture(scope="session")
def warm_server() -> None:
    """PyTorch is loaded before anybody waits for an agent."""
    first = server().Process(target=entrypoints.nothing)
    first.start()
    first.join()


@pytest.fixture
def job(
    backend: str, tmp_path: Path, warm_server: None, request: pytest.FixtureRequest
) -> Iterator[Job]:
    name, config = BACKENDS[backend]
    if name.startswith("etcd"):
        endpoint = request.getfixturevalue("etcd_endpoint")
    else:
        endpoint = f"127.0.0.1:{free_port()}"
    # Else a first agent that could run alone would, where the second takes long to start.
    settings = {"last_call_timeout": LAST_CALL_S, **config}
    job = Job({"backend": name, "endpoint": endpoint, **settings}, tmp_path)
    yield job
    for agent in job.agents:
        agent.end()
    until(lambda: not job.processes(), lambda: f"left behind: {job.processes()}")
