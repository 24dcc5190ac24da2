"""Forking the processes of one context from a zygote.

Rules
1. A zygote is a help, never a condition: one that is late, unfit or lost means that processes
   are started one by one, those that are there already left as they are.
2. A step that cannot be done ahead is left out, and the rest is tried again, so many times.
3. What was found out is remembered for the next zygote of that kind.

All of it happens on the loop of the context (`started_processes.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

from holdfast.core.protocol.preload_steps import module_of, without
from holdfast.elastic.multiprocessing.warm_plan import WarmPlan
from holdfast.elastic.multiprocessing.zygote_pool import PooledSpawner
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.runtime.loop import Cancellable, EventLoop

MOST_ATTEMPTS = 8
LONGEST_S = 120.0
"""The wait for a zygote before workers are started without."""
WORKERS_PER_REQUEST = 60
DESCRIPTORS_PER_REQUEST = 240

logger = logging.getLogger(__name__)


class Warming:
    """Has a zygote prepared where it is not yet, then `fork`s; or else `execute`s."""

    def __init__(
        self,
        pooled: PooledSpawner,
        request: Callable[[messages.Message], None],
        fork: Callable[[PooledSpawner], None],
        execute: Callable[[], None],
    ) -> None:
        self.pooled = pooled
        self._request = request
        self._fork = fork
        self._execute = execute
        self._attempts = 0
        self._is_pending = True
        self._is_lost = False
        self._timer: Cancellable | None = None

    @property
    def is_worth_keeping(self) -> bool:
        return self.pooled.is_ready and not self._is_pending and not self._is_lost

    def begin(self, loop: EventLoop) -> None:
        if self.pooled.is_ready:
            self._go()
        else:
            self._timer = loop.call_later(LONGEST_S, self._fail, "it takes too long")
            self._prepare()

    def give_up(self) -> bool:
        """The context is being closed; whether that comes before there were any processes."""
        was_pending = self._is_pending
        self._settle()
        self._is_lost = self._is_lost or was_pending
        return was_pending

    def said(self, message: messages.Message) -> None:
        """Take a message of the spawner that is about no process."""
        if isinstance(message, messages.SpawnerIsUp):
            self.pooled.spawner_pid = message.pid
        elif isinstance(message, messages.OfZygote) and not self._is_lost:
            self._on_zygote(message)

    def _on_zygote(self, message: messages.OfZygote) -> None:
        findings = self.pooled.findings
        match message:
            case messages.Preloaded() if self._is_pending:
                self.pooled.is_ready = True
                self._go()
            case messages.StepRejected(step=step, reason=reason) if self._is_pending:
                rest = without(findings.steps, step)
                findings.avoid.setdefault(module_of(step) or step, reason)
                if rest == findings.steps:
                    self._fail(f"there is no doing without {step}: {reason}")
                else:
                    findings.steps = rest
                    self._prepare()
            case messages.LateUnfit() if self._is_pending:
                findings.avoid.update(message.reasons)
                self._prepare()
            case messages.Unsuitable():
                self._fail(message.reason)
            case _:
                self._lose(message.reason)

    def _prepare(self) -> None:
        self._attempts += 1
        if self._attempts > MOST_ATTEMPTS:
            self._fail("too much of it cannot be imported ahead")
            return
        self._request(_to_prepare(self.pooled))

    def _go(self) -> None:
        self._settle()
        self._fork(self.pooled)

    def _fail(self, reason: str) -> None:
        """It is of no use, now or later."""
        self.pooled.findings.why_cold = reason
        if self._is_pending:
            self._request(messages.CloseZygote())
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        logger.info("workers are started one by one: no zygote, since %s", reason)
        self._settle()
        self._is_lost = True
        self._execute()

    def _settle(self) -> None:
        self._is_pending = False
        if self._timer is not None:
            self._timer.cancel()


def _to_prepare(pooled: PooledSpawner) -> messages.Preload:
    plan, findings = pooled.plan, pooled.findings
    return messages.Preload(
        interpreter=plan.interpreter,
        options=plan.options,
        env=plan.environment,
        steps=findings.steps,
        late=plan.late,
        avoid=tuple(findings.avoid),
        under={},
        sets=plan.sets,
        trusted=(),
        per_worker_names=plan.per_worker,
        always_set=plan.always_set,
        program_folder=None,
        sys_path=plan.sys_path,
        own_folders=list(plan.own_folders),
        not_own=("holdfast",),
    )


# Orders to the zygote.


def to_fork(pooled: PooledSpawner, workers: list[messages.WarmWorker]) -> messages.Fork:
    plan = pooled.plan
    return messages.Fork(
        common=messages.InCommon(
            shared_env=plan.environment,
            spawner=pooled.spawner_pid,
        ),
        workers=workers,
    )


def forked(plan: WarmPlan, cold: messages.Execute, descriptors: list[int]) -> messages.WarmWorker:
    """The worker that would be started by the request `cold` otherwise."""
    command = [os.fsdecode(word) for word in cold.argv[1:]]
    code = command.index("-c") + 1
    shared = plan.environment
    return messages.WarmWorker(
        name=cold.name,
        kind="code",
        target=command[code],
        interpreter=(plan.interpreter,),
        command=command,
        argv=["-c", *command[code + 1 :]],
        env={key: text for key, text in cold.env.items() if shared.get(key) != text},
        learns=False,
        descriptors=len(descriptors),
        cpus=cold.cpus,
        keep=cold.keep,
    )


def in_parts(workers: list[messages.WarmWorker]) -> Iterator[list[messages.WarmWorker]]:
    """As many as one request can carry at once."""
    part: list[messages.WarmWorker] = []
    for worker in workers:
        attached = sum(one.descriptors for one in (*part, worker))
        if part and (attached > DESCRIPTORS_PER_REQUEST or len(part) == WORKERS_PER_REQUEST):
            yield part
            part = []
        part.append(worker)
    if part:
        yield part
