"""The events and the metrics of an agent, and its words for a failure.

All of it is worked out from what the agent knows. It is the agent that records it, in
methods which others may replace.
"""

from __future__ import annotations

import functools
import json
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.elastic.agent.server.worker_group import RunResult, Worker, WorkerGroup
from holdfast.elastic.events import Event, EventMetadataValue, EventSource
from holdfast.elastic.multiprocessing.errors import ProcessFailure

if TYPE_CHECKING:
    from holdfast.elastic.agent.server.api import SimpleElasticAgent


def event_of_state(
    agent: SimpleElasticAgent,
    state: str,
    source: EventSource,
    worker: Worker | None,
    end: Mapping[str, int | None],
    **said: EventMetadataValue,
) -> Event:
    """The agent or one of its workers is in this state; `end` is what is known of a worker's."""
    group = agent._worker_group
    details: dict[str, Any] = {
        "group_world_size": group.group_world_size,
        "entry_point": group.spec.get_entrypoint_name(),
    }
    if worker is not None:
        # Lists of one, since that is what those who read these events know.
        details["local_rank"] = [worker.local_rank]
        details["role_rank"] = [worker.role_rank]
        details["role_world_size"] = [worker.role_world_size]
        details.update((name, [value]) for name, value in end.items())
    return event(
        agent,
        f"torchelastic.worker.status.{state}",
        source,
        global_rank=None if worker is None else worker.global_rank,
        worker_id=None if worker is None else str(worker.id),
        state=state,
        metadata=json.dumps(details),
        **said,
    )


def event(
    agent: SimpleElasticAgent, name: str, source: EventSource, **said: EventMetadataValue
) -> Event:
    """An event with what all events of an agent have, and what is said besides."""
    group = agent._worker_group
    handler = group.spec.rdzv_handler
    metadata: dict[str, EventMetadataValue] = {
        "run_id": handler.get_run_id(),
        "group_rank": group.group_rank,
        "role": group.spec.role,
        "hostname": _get_fq_hostname(),
        "total_run_time": agent._total_execution_time,
        "rdzv_backend": handler.get_backend(),
        "agent_restarts": group.spec.max_restarts - agent._remaining_restarts,
        **said,
    }
    return Event(name, source, timestamp=int(time.time() * 1000), metadata=metadata)


def counts_of_run(agent: SimpleElasticAgent, result: RunResult) -> dict[str, int]:
    """Counters for the end of a run, with and without restarts: 1 for the one that it was."""
    was_restarted = agent._remaining_restarts != agent._worker_group.spec.max_restarts
    ended = "failed" if result.is_failed() else "success"
    tried = "with" if was_restarted else "no"
    counts = {"run_total": 1}
    for outcome in ("success", "failed"):
        for retries in ("with", "no"):
            is_it = (outcome, retries) == (ended, tried)
            counts[f"run_{outcome}_{retries}_retries"] = int(is_it)
    return counts


def flakiness(agent: SimpleElasticAgent, is_failed: bool) -> int:
    """In percent: all of it for a failed run, else the share of the restarts that was used."""
    left = 0.0 if is_failed else 100.0 * (agent._remaining_restarts + 1)
    return int(100.0 - left / (agent._worker_group.spec.max_restarts + 1))


def place_of(group: WorkerGroup) -> str:
    """The ranks of this agent and its workers after a rendezvous, in words."""
    first, last = group.workers[0], group.workers[-1]
    return (
        f"agent {group.group_rank} of {group.group_world_size} has ranks {first.global_rank} to "
        f"{last.global_rank} of {first.world_size}, with the master at "
        f"{group.master_addr}:{group.master_port}"
    )


def reason_of_failure(result: RunResult) -> str:
    """One line for the other agents: which worker failed first, and what it left."""
    found: Mapping[int, object] = result.failures  # Somebody else's processes may leave anything.
    known = {rank: one for rank, one in found.items() if isinstance(one, ProcessFailure)}
    if not known:
        return "its workers failed"
    rank, first = min(known.items(), key=lambda item: item[1].timestamp)
    message: Any = first.message
    if isinstance(message, dict):
        message = message.get("message", "")
    return f"rank {rank} failed with exit code {first.exitcode}: {message}".partition("\n")[0]


@functools.cache
def _get_fq_hostname() -> str:
    return socket.getfqdn(socket.gethostname())
