"""Launchers and test suites that put something of their own in the place of a name."""

import os
import signal
import sys
from unittest import mock

import meeting
import torch.distributed.elastic.agent.server.local_elastic_agent as local_agent
import torch.distributed.elastic.rendezvous.registry as rdzv_registry
import torch.distributed.elastic.utils.store as store_util
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server.api import (
    _TERMINAL_STATE_SYNC_ID,
    RunResult,
    SimpleElasticAgent,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler, handler_registry


def config(**settings):
    return launcher.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="job",
        rdzv_backend="memory",
        monitor_interval=0.05,
        **settings,
    )


class WrappingAgent(launcher.LocalElasticAgent):
    """Starts its workers through another command, and waits in its own way at the end."""

    def _start_workers(self, worker_group):
        original = local_agent.start_processes

        def wrapped(name, entrypoint, args, **settings):
            args = {rank: ("WRAPPED=yes", entrypoint, *given) for rank, given in args.items()}
            return original(name=name, entrypoint="env", args=args, **settings)

        local_agent.start_processes = wrapped
        try:
            return super()._start_workers(worker_group)
        finally:
            local_agent.start_processes = original

    def _exit_barrier(self):
        group = self._worker_group
        print("barrier", group.group_rank, group.group_world_size, self._exit_barrier_timeout)
        store_util.barrier(
            store=self._store,
            world_size=group.group_world_size,
            key_prefix=_TERMINAL_STATE_SYNC_ID,
            barrier_timeout=self._exit_barrier_timeout,
        )
        print(sorted(key for key in self._store.values if "terminal" in key))


def in_the_launcher():
    original, launcher.LocalElasticAgent = launcher.LocalElasticAgent, WrappingAgent
    try:
        print(launcher.elastic_launch(config(), "sh")("-c", "test $WRAPPED = yes"))
    finally:
        launcher.LocalElasticAgent = original


def closed_once():
    contexts = []
    original = local_agent.start_processes

    def counting(**settings):
        context = original(**settings)
        close = context.close
        context.close = mock.Mock(side_effect=close)
        contexts.append(context)
        return context

    with mock.patch.object(local_agent, "start_processes", counting):
        launcher.elastic_launch(config(), "true")()
    print("closed", [context.close.call_count > 0 for context in contexts])


def with_mocks():
    """As the suites do it: a whole step is replaced, and the rest has to go on."""
    finished = RunResult(WorkerState.SUCCEEDED, return_values={0: "zero"})
    with mock.patch.object(launcher.LocalElasticAgent, "run", return_value=finished):
        print(launcher.elastic_launch(config(), "true")())
    failure = ProcessFailure(0, 123, 9, "<N/A>")
    failed = RunResult(WorkerState.FAILED, failures={0: failure})
    with mock.patch.object(launcher.LocalElasticAgent, "run", return_value=failed):
        try:
            launcher.elastic_launch(config(), "true")()
        except ChildFailedError as error:
            print(error.name, error.get_first_failure()[1].exitcode)
    before_any_rank = RunResult(WorkerState.SUCCEEDED, return_values={-1: "none yet"})
    replaced = {"_invoke_run": mock.Mock(return_value=before_any_rank)}
    with mock.patch.multiple(local_agent.LocalElasticAgent, **replaced):
        print(launcher.elastic_launch(config(), "true")())
    with mock.patch.object(SimpleElasticAgent, "_exit_barrier") as barrier:
        launcher.elastic_launch(config(), "true")()
        print("barriers", barrier.call_count)
    with mock.patch.object(store_util, "barrier", side_effect=RuntimeError) as barrier:
        print(launcher.elastic_launch(config(), "true")(), barrier.call_count)
    with mock.patch.object(rdzv_registry, "get_rendezvous_handler") as found:
        found.side_effect = meeting.OneNode
        print(launcher.elastic_launch(config(), "true")(), found.call_count)


def ended_by(error, made):
    """What is told and closed when the agent raises: after a signal, the others go on."""
    run = mock.patch.object(launcher.LocalElasticAgent, "run", side_effect=error)
    with run, mock.patch.object(events, "record") as recorded:
        try:
            launcher.elastic_launch(config(), "true")()
        except (RuntimeError, SignalException) as raised:
            sources = [one.args[0].source.name for one in recorded.call_args_list]
            print(type(raised).__name__, made[-1].told, sources)


def with_an_agent_of_nothing():
    with mock.patch.object(launcher, "LocalElasticAgent") as kind:
        kind.return_value.run.return_value = RunResult(WorkerState.SUCCEEDED, {3: "three"})
        print(launcher.elastic_launch(config(), "true")(), kind.call_count)


def through_the_registry():
    made = []

    def maker(params):
        made.append(meeting.OneNode(params))
        return made[-1]

    handler_registry.register("memory", maker)
    parameters = launcher.RendezvousParameters("memory", "", "job", 1, 1)
    print(get_rendezvous_handler(parameters).get_backend(), len(made))
    return made


if __name__ == "__main__":
    made = through_the_registry()
    in_the_launcher()
    print(made[-1].told, DefaultLogsSpecs(log_dir=sys.argv[1]).root_log_dir == sys.argv[1])
    closed_once()
    with_mocks()
    ended_by(SignalException("ended", signal.SIGTERM), made)
    ended_by(RuntimeError("broken"), made)
    with_an_agent_of_nothing()
    print(os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"])
