"""Workers that are stuck in the kernel, where no signal reaches them, not even SIGKILL.

A worker is stuck when it was found in an uninterruptible sleep every time it was looked at, for
as long as is allowed. That is what the kernel shows and nothing can be waited for, so it is
looked at whenever the agent looks at its workers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from holdfast.elastic.agent.server.worker_group import Worker
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.utils import process_state
from holdfast.elastic.utils.logging import get_logger

logger = get_logger(__name__)


class StuckWorkers:
    """Since when which process has been in such a sleep. A `timeout_s` of 0 is for ever."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: dict[int, float] = {}

    def found_among(self, workers: Sequence[Worker]) -> dict[int, ProcessFailure]:
        """The workers that are stuck for too long, as failures by global rank."""
        if self._timeout_s <= 0:
            return {}
        now = time.monotonic()
        asleep = [worker for worker in workers if _is_asleep(worker.id)]
        self._since = {worker.id: self._since.get(worker.id, now) for worker in asleep}
        return {
            worker.global_rank: self._failure(worker, now - self._since[worker.id])
            for worker in asleep
            if now - self._since[worker.id] >= self._timeout_s
        }

    def _failure(self, worker: Worker, asleep_s: float) -> ProcessFailure:
        failure = ProcessFailure(worker.local_rank, worker.id, -signal.SIGKILL, "")
        failure.message = (
            f"Process {worker.id} has been in uninterruptible sleep for {asleep_s:.1f} s, and "
            f"{self._timeout_s:g} s are allowed; no signal can end it"
        )
        logger.error("%s", failure.message)
        return failure


def _is_asleep(pid: int) -> bool:
    return process_state.is_uninterruptible_state(process_state.read_proc_state(pid))
