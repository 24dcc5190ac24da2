"""A spawner and its workers, as the core of an agent could meet them.

Rules
1. It works on while its agent sleeps: the deadlines of the lease are kept on the host's clock.
2. Past the lease's stop time it starts nobody, and what it has begun to stop stays stopped.
3. A worker that got SIGKILL executes nothing more; that it is reaped is told later.
4. When its agent dies it kills everything, within the kill margin, and ends.
"""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING

from tools.simulator.facts import (
    CheckpointWritten,
    LeaseEnded,
    StartedBeforeReaped,
    WorkerBegan,
    WorkerContinued,
    WorkerEnd,
    WorkerEnded,
    WorkerListened,
    WorkerReleased,
    WorkerSaved,
)
from tools.simulator.liveness_locks import SimulatedNotes
from tools.simulator.lockstep import STEP_S
from tools.simulator.stalls import SimulatedStall

from holdfast.core.features.saving import NodeSaving
from holdfast.core.node_io import (
    NO_STEP,
    AllGone,
    CloseRound,
    DropZygote,
    EndpointReserved,
    EndSpawner,
    HideSaving,
    KillEverything,
    KillSpawner,
    KillZygote,
    LeaseRanOut,
    ListStuck,
    LocateWorkers,
    LookAtUnexited,
    NodeEffect,
    NodeEvent,
    ProcessesStuck,
    RecordSeat,
    Remember,
    RemoveLivenessLocks,
    ReserveEndpoint,
    SaveAnswered,
    SavingAnswer,
    SetDeadlines,
    ShowSaving,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    StartWorkers,
    StartZygote,
    StepReported,
    Unexited,
    UnexitedFound,
    WorkerExited,
    WorkersLocated,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus

if TYPE_CHECKING:
    from tools.simulator.process import SimulatedProcess

LOST_PEER = ErrorDetail("RuntimeError: Connection reset by peer")
RAISED = ErrorDetail("ValueError: something is wrong")
NEVER_RETRY = ErrorDetail("Wrong: the data is bad", non_retryable=True)
STEP_EVERY_S = 2.0
REFUSED = 126
SLOWEST_READ_S = 0.5
"""How long a request waits for a slow spawner at most: less than agents wait for its answer."""


class SimulatedWorker:
    """One process of the user's program."""

    __slots__ = (
        "executes",
        "instance",
        "listens",
        "local_rank",
        "pid",
        "rank",
        "reaped",
        "round",
        "saved",
        "stopping",
        "suspended",
        "tether",
        "waited",
    )

    def __init__(self, round: int, local_rank: int, rank: int, instance: int, tether: int) -> None:
        self.round = round
        self.tether = tether
        """The one that it holds: its node's when it was started."""
        self.instance = instance
        self.local_rank = local_rank
        self.rank = rank
        self.pid = 0
        self.executes = False
        self.stopping = False
        self.reaped = False
        self.suspended = False
        self.listens = False
        self.saved = self.waited = 0
        """The serial of what it saved, or waited for, last."""


class SimulatedSpawner:
    """The parent of one agent's workers."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self.machine = process.machine
        self.cluster = process.machine.cluster
        self.workers: list[SimulatedWorker] = []
        self.alive = True
        self.zygote = False
        self.zygote_life = 0
        self.unforked: list[SimulatedWorker] = []
        self.stop_at: float | None = None
        self.kill_at = 0.0
        self.ran_out = False
        self.clearing = False
        self.killed_for = 0
        """The round for which its agent asked last that all be killed, until that is answered."""
        self.ending = False
        self.known: set[tuple[int, int]] = set()
        """Round and local rank of the workers that its agent has asked for and not forgotten."""
        self.reads_at = 0.0
        self.slowness = Random(f"spawner {self.cluster.plan.seed} {process.node}")
        self.number = 0
        """Of what its workers were last to save."""
        self.shown: ShowSaving | None = None
        """What its workers see of having to save."""
        self.tether = 0
        self.tethers: set[int] = set()
        """All that anything on this node still holds."""
        self.notes = SimulatedNotes(process)
        self.still = SimulatedStall(self)
        self.orphan: SimulatedWorker | None = None
        """A process of the user's that has outlived agent and spawner."""
        self.shared: frozenset[int] = frozenset()
        """Those of other nodes to this one that it holds too."""

    # As the processes of its agent's engine.

    def do(self, effect: NodeEffect) -> None:
        if isinstance(effect, ReserveEndpoint):
            self.machine.ports += 1
            self._tell(EndpointReserved(Endpoint(self.machine.name, self.machine.ports)))
        elif isinstance(effect, RecordSeat):
            self.notes.put(effect)
        elif isinstance(effect, RemoveLivenessLocks):
            self.notes.remove()
        elif isinstance(effect, CloseRound):
            self.known.clear()
        elif not isinstance(effect, Remember):
            if isinstance(effect, StartWorkers):
                self.known.update((effect.assignment.round, one) for one in effect.local_ranks)
            self.machine.after(self._read_delay(), self._do, effect)

    def _read_delay(self) -> float:
        """How long it takes to get to the next request: they are read in their order."""
        now, delay_s = self._now(), self.process.lag_s
        if self.machine.slow_spawner:
            delay_s += SLOWEST_READ_S * self.slowness.random()
        delay_s = max(delay_s, self.reads_at - now)
        self.reads_at = now + delay_s
        return delay_s

    def hold_tether(self, tether: int) -> None:
        """What runs already holds the one before, and so does nobody else from now on."""
        before, self.tether = self.tether, tether
        self.tethers.add(tether)
        self._let_go(before)

    def share_tethers(self, tethers: list[int]) -> None:
        self.shared = frozenset(tethers)

    def _let_go(self, tether: int) -> None:
        held = tether == self.tether or any(worker.tether == tether for worker in self.workers)
        if tether in self.tethers and not held:
            self.tethers.discard(tether)
            self.process.let_go_of_tether(tether)

    # Requests.

    def _do(self, request: NodeEffect) -> None:
        if not self.alive:
            return
        match request:
            case SetDeadlines():
                self._set_deadlines(request)
            case StartZygote():
                self._start_zygote()
            case DropZygote():
                self.zygote = False
            case KillZygote():
                self.lose_zygote("it was killed")
            case StartWorkers():
                self._start(request)
            case LocateWorkers():
                self._tell(WorkersLocated(request.round))
            case SignalWorkers():
                for worker in list(self.workers):
                    if worker.local_rank in request.local_ranks and request.stops:
                        self._signal(worker, request.signal)
            case ShowSaving():
                self._show(request)
            case HideSaving():
                self._hide()
            case KillEverything():
                self.clearing, self.killed_for = True, request.round
                self._kill_all("killed")
            case EndSpawner():
                self.clearing = self.ending = True
                self.unforked.clear()
                self._kill_all("killed")
            case KillSpawner():
                self.die("killed")
            case ListStuck():
                left = tuple(f"pid {worker.pid}" for worker in self.workers)
                self._tell(ProcessesStuck(left))
            case LookAtUnexited():
                running = tuple(Unexited(worker.local_rank) for worker in self.workers)
                self._tell(UnexitedFound(request.round, running, ends=request.ends))
            case _:
                raise AssertionError(f"nothing for a spawner: {request}")

    def _tell(self, event: NodeEvent) -> None:
        self.process.post(self._heard, event)

    def _heard(self, event: NodeEvent) -> None:
        """By the agent, which remembers of whom it may hear, as `processes.process_group` does."""
        if isinstance(event, WorkerStarted | WorkerExited):
            of = (event.round, event.local_rank)
            assert of in self.known, f"{event} is about nobody that we know"
        self.process.take(event)

    # The zygote.

    def _start_zygote(self) -> None:
        self.zygote_life += 1
        delay_s = self.machine.plan.preload_s * (0.8 + 0.4 * self.cluster.random.random())
        self.machine.after(delay_s, self._zygote_ready, self.zygote_life)

    def _zygote_ready(self, life: int) -> None:
        if self.alive and life == self.zygote_life:
            self.zygote = True
            self._tell(ZygoteReady(("import torch",), has_torch=True))

    def lose_zygote(self, reason: str) -> None:
        if self.alive and self.machine.plan.warm:
            self.zygote = False
            self.zygote_life += 1
            for worker in self.unforked:
                self.workers.remove(worker)
            self.unforked.clear()
            self._tell(ZygoteLost(reason))
            self._tell_if_gone()

    # Births.

    def _start(self, request: StartWorkers) -> None:
        ranks = {ranks.local_rank: ranks.rank for ranks in request.assignment.workers}
        instance = self.process.state.link.term.instance
        workers = [
            SimulatedWorker(request.assignment.round, local, ranks[local], instance, self.tether)
            for local in request.local_ranks
        ]
        if request.warm and not self.zygote:
            self._tell(ZygoteLost("it had already ended"))
            return
        if any(worker.round != request.assignment.round for worker in self.workers):
            round = request.assignment.round
            fact = StartedBeforeReaped(self._now(), self.machine.number, self._node(), round)
            self.cluster.note(fact)
        self.workers += workers
        for worker in workers:
            delay_s = self.machine.start_delay()
            if request.warm:
                self.unforked.append(worker)
            self.machine.after(delay_s, self._bear, worker)

    def _bear(self, worker: SimulatedWorker) -> None:
        if not self.alive or worker not in self.workers:
            return
        if worker in self.unforked:
            self.unforked.remove(worker)
        if self.ran_out or self._past_stop():
            self._run_out()
            self._reap(worker, ExitStatus(code=REFUSED), ErrorDetail())
            return
        if self.clearing:
            self._reap(worker, ExitStatus(signal=signal.SIGKILL), ErrorDetail())
            return
        self.machine.pids += 1
        worker.pid = self.machine.pids
        worker.executes = True
        self.cluster.note(
            WorkerBegan(
                self._now(),
                self.machine.number,
                self._node(),
                worker.round,
                worker.rank,
                worker.instance,
            )
        )
        self.cluster.tell_story(self.machine, f"rank {worker.rank} of round {worker.round} starts")
        self._tell(WorkerStarted(worker.round, worker.local_rank, worker.pid))
        if worker.local_rank == 0:
            self.machine.after(STEP_EVERY_S, self._step, worker)
        if self.cluster.plan.saves:
            self.machine.after(self._between_steps(), self._listen, worker)

    def _node(self) -> str:
        return self.process.node

    def _now(self) -> float:
        return self.cluster.timeline.now

    def _step(self, worker: SimulatedWorker) -> None:
        if not self.alive or not worker.executes or worker.stopping:
            return
        stands = self.still.round == worker.round
        if self.cluster.plan.reports_steps and self.cluster.whole(worker.round) and not stands:
            self.cluster.steps += 1
            self._tell(StepReported(worker.round, worker.local_rank, self.cluster.steps))
        self.machine.after(STEP_EVERY_S, self._step, worker)

    # Saving.

    def _listen(self, worker: SimulatedWorker) -> None:
        """It asks for the first time whether it is to save, some time after its birth."""
        if self.alive and worker.executes:
            worker.listens = True
            self._answer(worker, "listens")
            who = (self.machine.number, self._node(), worker.round, worker.rank)
            self.cluster.note(WorkerListened(self._now(), *who))
            everybody = self.cluster.workers(worker.round)
            if self.cluster.whole(worker.round) and all(one.listens for _, one in everybody):
                of = (worker.instance, worker.round)
                self.cluster.lockstep.began.setdefault(of, self._now())
            self._look(worker)

    def _show(self, shown: ShowSaving) -> None:
        self.shown = shown
        for worker in self.workers:
            if worker.listens:
                self.machine.after(self._between_steps(), self._look, worker)

    def _look(self, worker: SimulatedWorker) -> None:
        """As `holdfast.draining(step)` does: wait until it is known where, then save there."""
        shown = self.shown
        if not self.alive or not worker.executes or shown is None or worker.saved == shown.serial:
            return
        lockstep, of = self.cluster.lockstep, (worker.instance, worker.round)
        if shown.step is None:
            worker.waited, self.number = shown.serial, self._saving_number()
            self._answer(worker, "waits", lockstep.wait(of, worker.rank, self._now()))
            return
        worker.saved = shown.serial
        at = max(shown.step, lockstep.step_of(of, worker.rank, self._now()))
        who = (self.machine.number, self._node(), worker.round, worker.rank, worker.instance)
        self.cluster.note(WorkerSaved(self._now(), *who, at, self._saving_number()))
        self.cluster.tell_story(self.machine, f"rank {worker.rank} saves at step {at}")
        self._answer(worker, "told")
        self.machine.after(self._between_steps(), self._has_saved, worker, shown)

    def _has_saved(self, worker: SimulatedWorker, shown: ShowSaving) -> None:
        """It says so, and goes on; where the round ends, some programs end."""
        if not self.alive or not worker.executes:
            return
        written = CheckpointWritten(self._now(), self._node(), worker.round, worker.rank)
        self.cluster.note(written)
        if shown.leaves and self.cluster.plan.breaks and not worker.stopping:
            self._ends(worker, "stopped", ExitStatus(code=0), ErrorDetail())
            return
        self._answer(worker, "saved", serial=shown.serial)
        if not shown.leaves:
            self._goes_on(worker, shown)

    def _goes_on(self, worker: SimulatedWorker, shown: ShowSaving) -> None:
        self._answer(worker, "goes on", serial=shown.serial)
        self.cluster.lockstep.go_on((worker.instance, worker.round), worker.rank)

    def _saving_number(self) -> int:
        saving = self.process.state.feature(NodeSaving).now
        return saving.number if saving is not None else 0

    def _hide(self) -> None:
        shown, self.shown = self.shown, None
        for worker in self.workers:
            if shown is None or not worker.executes:
                continue
            if worker.saved == shown.serial:
                if shown.leaves:
                    self.machine.after(self._between_steps(), self._goes_on, worker, shown)
                continue
            self.cluster.lockstep.go_on((worker.instance, worker.round), worker.rank)
            if worker.waited == shown.serial:
                who = (self._node(), worker.round, worker.rank, worker.instance)
                self.cluster.note(WorkerReleased(self._now(), *who, self.number))

    def _between_steps(self) -> float:
        return STEP_S * self.cluster.pace.random()

    def _answer(
        self, worker: SimulatedWorker, answer: SavingAnswer, step: int = NO_STEP, serial: int = 0
    ) -> None:
        if self.alive and worker.executes:
            of = serial or (self.shown.serial if self.shown is not None else 0)
            self._tell(SaveAnswered(worker.round, worker.local_rank, answer, step, of))

    # Deaths.

    def _signal(self, worker: SimulatedWorker, number: int) -> None:
        if not worker.executes or worker.stopping:
            return
        if number == signal.SIGKILL:  # For what it did, and not to stop it: it has failed.
            self._ends(worker, "failed", ExitStatus(signal=number), ErrorDetail())
            return
        worker.stopping = True
        delay_s = self.machine.stop_delay()
        if delay_s is not None:
            status = ExitStatus(signal=number)
            self.machine.after(delay_s, self._ends, worker, "stopped", status, ErrorDetail())

    def die_of(self, worker: SimulatedWorker, number: int) -> None:
        """Somebody sends the worker itself a signal; one that asks whether to save is shielded."""
        if self.alive and not worker.stopping and not worker.listens:
            self._ends(worker, "stopped", ExitStatus(signal=number), ErrorDetail())

    def fail(self, worker: SimulatedWorker, how: WorkerEnd, error: ErrorDetail) -> None:
        """It ends on its own, unless it has ended already."""
        self._ends(worker, how, ExitStatus(code=1), error)

    def succeed(self, worker: SimulatedWorker) -> None:
        if self.alive and worker.executes and self.still.round == worker.round:
            self.machine.after(STEP_EVERY_S, self.succeed, worker)
        elif self.alive and worker.executes and not worker.stopping:
            self._ends(worker, "succeeded", ExitStatus(code=0), ErrorDetail())

    def _ends(
        self, worker: SimulatedWorker, how: WorkerEnd, status: ExitStatus, error: ErrorDetail
    ) -> None:
        if not worker.executes:
            return
        self._executes_no_more(worker, how)
        self.still.look()
        self._reap(worker, status, error)

    def _executes_no_more(self, worker: SimulatedWorker, how: WorkerEnd) -> None:
        worker.executes = False
        if worker.suspended:
            return
        self.cluster.note(self._ended(worker, how))
        self.cluster.tell_story(self.machine, f"rank {worker.rank} of round {worker.round}: {how}")
        if how in ("failed", "victim", "killed") or self.ran_out:
            self.cluster.peer_lost(self, worker)

    def _reap(self, worker: SimulatedWorker, status: ExitStatus, error: ErrorDetail) -> None:
        if worker.reaped:
            return
        worker.reaped = True
        if worker in self.workers:
            self.workers.remove(worker)
            self._let_go(worker.tether)
        if self.alive:
            self._tell(
                WorkerExited(worker.round, worker.local_rank, worker.pid, status, error=error)
            )
            self._tell_if_gone()

    def _kill_all(self, how: WorkerEnd) -> None:
        status = ExitStatus(signal=signal.SIGKILL)
        for worker in list(self.workers):
            if worker in self.unforked:
                continue
            if worker.executes:
                self._executes_no_more(worker, how)
            reap_s = 0.002 + 0.05 * self.cluster.random.random()
            self.machine.after(reap_s, self._reap, worker, status, ErrorDetail())
        self.still.look()
        self._tell_if_gone()

    def _tell_if_gone(self) -> None:
        if not self.clearing or self.workers:
            return
        if self.ending:
            self.alive = False
            self._tell(SpawnerEnded())
            self.process.part_ended()
            return
        self.clearing = self.ran_out = False
        self.stop_at = self.shown = None
        of, self.killed_for = self.killed_for, 0
        self._tell(AllGone(of))

    # The lease.

    def _set_deadlines(self, request: SetDeadlines) -> None:
        if self.ran_out:
            return
        self.stop_at, self.kill_at = request.stop_at, request.kill_at
        self._wake_at(self.stop_at)

    def _wake_at(self, reading: float) -> None:
        delay_s = (reading - self.machine.clock.now()) / self.machine.clock.rate
        self.machine.after(max(delay_s, 0.0), self.check_lease)

    def _past_stop(self) -> bool:
        return self.stop_at is not None and self.machine.clock.now() >= self.stop_at - 1e-9

    def check_lease(self) -> None:
        """Stop, or kill, what the lease no longer covers."""
        if not self.alive or not self.workers or self.stop_at is None:
            return
        if self._past_stop():
            self._run_out()
        if self.ran_out and self.machine.clock.now() >= self.kill_at - 1e-9:
            self.clearing = True
            self._kill_all("killed")

    def _run_out(self) -> None:
        if self.ran_out:
            return
        self.ran_out = True
        self.cluster.tell_story(self.machine, "the spawner stops the workers: the lease runs out")
        self._tell(LeaseRanOut())
        assignment = self.process.state.assignment
        well = [one for one in self.workers if one.executes and not one.stopping]
        if assignment is not None and len(well) == len(assignment.workers):
            self.cluster.note(LeaseEnded(self._now(), self._node(), assignment.round))
        for worker in self.workers:
            self._signal(worker, signal.SIGTERM)
        self._wake_at(self.kill_at)

    # Its own end, and what the machine does to it.

    def agent_died(self) -> None:
        self.machine.after(self.machine.kill_delay(), self.die, "killed")

    def die(self, how: WorkerEnd, orphan_s: float = 0.0) -> None:
        """It is gone, and everything below it; or all but one, for a while."""
        if not self.alive:
            return
        self.alive = False
        running = [worker for worker in self.workers if worker.executes]
        if orphan_s and running:
            self.orphan = running.pop()
            self.machine.after(orphan_s, self._orphan_ends)
        for worker in running:
            self._executes_no_more(worker, how)
        self.workers.clear()
        self.still.look()
        self.process.post_agent(SpawnerLost("was killed"))
        self.process.part_ended()

    def _orphan_ends(self) -> None:
        if self.orphan is not None:
            self._executes_no_more(self.orphan, "orphaned")
            self.orphan = None
            self.process.part_ended()

    def vanish(self, how: WorkerEnd) -> None:
        """The host has lost its power."""
        self.die(how)
        self._orphan_ends()

    def suspend(self) -> None:
        for worker in self.workers:
            if worker.executes:
                self.cluster.note(self._ended(worker, "suspended"))
                worker.suspended = True

    def _ended(self, worker: SimulatedWorker, how: WorkerEnd) -> WorkerEnded:
        number, node = self.machine.number, self._node()
        ranked = (worker.round, worker.rank)
        return WorkerEnded(self._now(), number, node, *ranked, how, worker.instance)

    def resume(self) -> None:
        """The deadlines come first: what should be dead executes nothing more."""
        overdue = self.stop_at is not None and self.machine.clock.now() >= self.kill_at - 1e-9
        overdue = overdue or not self.process.alive
        for worker in list(self.workers):
            if not worker.executes:
                continue
            if overdue:
                worker.executes = False
            else:
                worker.suspended = False
                ended = self._ended(worker, "suspended")
                where = (ended.host, ended.node, ended.round, ended.rank, ended.instance)
                self.cluster.note(WorkerContinued(ended.at, *where))
        self.check_lease()
