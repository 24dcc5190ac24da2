"""Agents in processes of their own, and what came of them.

Each is forked by a server that has PyTorch loaded already: nothing of the test process is in
it, and it costs no import. What an agent and its workers write is in a file of its folder, and
so is its `Ending`, unless it was killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from holdfast.elastic.launcher import LaunchConfig, launch_agent
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from holdfast.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from holdfast.elastic.rendezvous import RendezvousParameters, registry
from holdfast.elastic.utils import store as store_util

from ...waiting import until
from . import entrypoints

DEADLINE_S = 60.0
PRELOADED = ("torch.distributed.rpc", "pytest", __name__)
OWN_VARIABLES = ("HOLDFAST_", "PET_", "TORCHELASTIC_", "TORCH_NCCL_ASYNC")
LEADS = "this node is the coordinator"
FAILED = 1
Entrypoint = Callable[..., Any] | str


@dataclass
class Plan:
    """What an agent is to run, with whom, and how."""

    folder: Path
    rendezvous: dict[str, Any]
    entrypoint: Entrypoint
    args: tuple[Any, ...] = ()
    workers: int = 2
    nodes: tuple[int, int] = (1, 1)
    role: str = "trainer"
    max_restarts: int = 0
    is_launched: bool = False
    """By `launcher.launch_agent`; otherwise agent and handler are made and ended by hand."""
    spec: dict[str, Any] = field(default_factory=dict)
    """More for the `WorkerSpec`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """More for the `LocalElasticAgent`, or for the `LaunchConfig`."""
    tee: Std = Std.NONE
    environment: dict[str, str] = field(default_factory=dict)
    before: Callable[[Plan], None] | None = None
    """Called in the agent's process, first."""

    def parameters(self) -> RendezvousParameters:
        least, most = self.nodes
        return RendezvousParameters(min_nodes=least, max_nodes=most, **self.rendezvous)

    def logs_specs(self) -> DefaultLogsSpecs:
        return DefaultLogsSpecs(str(self.folder / "logs"), tee=self.tee)


@dataclass
class Ending:
    """How an agent ended, as far as it could say so itself."""

    result: RunResult | None = None
    raised: type[BaseException] | None = None
    first_failure: tuple[int, ProcessFailure] | None = None
    state: WorkerState | None = None
    """Of the group, as the two that follow; unknown of an agent that was launched."""
    remaining_restarts: int | None = None
    run_time_s: int | None = None
    ended_at: float = 0.0


class Agent:
    """One that runs. Its `wait` returns its exit status, and then `ending` is there."""

    def __init__(self, plan: Plan) -> None:
        self.folder = plan.folder
        plan.folder.mkdir()
        self._process = server().Process(target=main, args=(plan,))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def ending(self) -> Ending:
        with (self.folder / "ending").open("rb") as file:
            ending: Ending = pickle.load(file)
        return ending

    def values(self) -> dict[int, Any]:
        """What its workers returned, by global rank, once it has succeeded."""
        assert self.wait() == 0, self.output
        assert self.ending.result is not None
        assert self.ending.result.state == WorkerState.SUCCEEDED
        assert not self.ending.result.failures
        return self.ending.result.return_values

    def seen(self) -> list[Any]:
        """The values alone."""
        return list(self.values().values())

    def wait(self) -> int:
        self._process.join(DEADLINE_S)
        assert self._process.exitcode is not None, f"{self.pid} does not end: {self.output}"
        return self._process.exitcode

    def until_it_leads(self) -> None:
        until(lambda: LEADS in self.output, lambda: f"no coordinator: {self.output}")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


def server() -> multiprocessing.context.ForkServerContext:
    """What agents are forked by. The first call decides what is loaded in it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


# --- in the agent's process ---------------------------------------------------------------


def main(plan: Plan) -> None:
    """Run an agent; the status is 0, 1 where it or its workers failed, 128+n after a signal."""
    _write_to(plan.folder / "output")
    os.chdir(plan.folder)  # By which everything that descends from this process is known.
    for name in [name for name in os.environ if name.startswith(OWN_VARIABLES)]:
        del os.environ[name]
    os.environ.update(plan.environment)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if plan.before is not None:
        plan.before(plan)
    ending, status = Ending(), FAILED
    try:
        (_launched if plan.is_launched else _run)(plan, ending)
        assert ending.result is not None
        status = FAILED if ending.result.is_failed() else 0
    except SignalException as error:
        ending.raised, status = SignalException, 128 + error.sigval
    except Exception as error:
        logging.info("the agent raised", exc_info=True)
        ending.raised = type(error)
        if isinstance(error, ChildFailedError):
            ending.first_failure = error.get_first_failure()
    ending.ended_at = time.time()
    with (plan.folder / "ending").open("wb") as file:
        pickle.dump(ending, file)
    sys.exit(status)


def _write_to(path: Path) -> None:
    with path.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    # The server may have been started while a test's own streams were captured.
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115


def _run(plan: Plan, ending: Ending) -> None:
    handler = registry.get_rendezvous_handler(plan.parameters())
    spec = WorkerSpec(
        plan.role,
        plan.workers,
        handler,
        entrypoint=plan.entrypoint,
        args=plan.args,
        max_restarts=plan.max_restarts,
        **plan.spec,
    )
    settings = {"start_method": "fork", **plan.settings}
    agent = LocalElasticAgent(spec, plan.logs_specs(), **settings)
    try:
        ending.result = agent.run()
    finally:
        ending.state = agent.get_worker_group().state
        ending.remaining_restarts = agent._remaining_restarts
        ending.run_time_s = agent._total_execution_time
        entrypoints.tell(str(plan.folder / "ran"))
        if not isinstance(sys.exc_info()[1], SignalException):
            handler.shutdown()


@record
def _launched(plan: Plan, ending: Ending) -> None:
    parameters = plan.parameters()
    config = LaunchConfig(
        *plan.nodes,
        plan.workers,
        plan.logs_specs(),
        run_id=parameters.run_id,
        role=plan.role,
        rdzv_backend=parameters.backend,
        rdzv_endpoint=parameters.endpoint,
        rdzv_configs=parameters.config,
        max_restarts=plan.max_restarts,
        start_method="fork",
        **plan.settings,
    )
    values = launch_agent(config, plan.entrypoint, list(plan.args))
    ending.result = RunResult(WorkerState.SUCCEEDED, values)


# --- what is done to an agent before it runs ----------------------------------------------


def note_the_barrier(plan: Plan) -> None:
    """Say when the agent is in the exit barrier, and whom it met there."""
    barrier = store_util.barrier

    def noted(**settings: Any) -> None:
        entrypoints.tell(str(plan.folder / "in_barrier"), str(settings["barrier_timeout"]))
        barrier(**settings)
        there = sorted(path.parent.name for path in plan.folder.parent.glob("*/in_barrier"))
        entrypoints.tell(str(plan.folder / "met_in_barrier"), " ".join(there))

    store_util.barrier = noted  # type: ignore[assignment]


def break_the_barrier(plan: Plan) -> None:
    """Nobody comes through the exit barrier."""

    def broken(**settings: Any) -> None:
        entrypoints.tell(str(plan.folder / "in_barrier"))
        raise RuntimeError("the barrier is broken")

    store_util.barrier = broken  # type: ignore[assignment]


def note_every_close(plan: Plan) -> None:
    """Say what becomes of whatever `start_processes` returned."""
    from holdfast.elastic.agent.server import local_elastic_agent

    start: Any = vars(local_elastic_agent)["start_processes"]
    log = plan.folder / "closes"

    class Noted:
        """What was started, of which nothing is hidden but its class."""

        def __init__(self, **settings: Any) -> None:
            self._context = start(**settings)
            with log.open("a") as file:
                file.write("started\n")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        def close(self, *args: Any, **settings: Any) -> None:
            with log.open("a") as file:
                file.write("closed\n")
            self._context.close(*args, **settings)

    vars(local_elastic_agent)["start_processes"] = Noted
