"""What exists on this node for a job, and how effects change it.

One object holds every resource of the node: the spawner, the console, the logs, the
channel, reserved ports, the streams of running workers. Each effect of the core has one
method here; what comes of it is posted back as an event. No decisions are made here, and
nothing here waits for a disk: see `runtime.disk`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from holdfast.core.node_io import (
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
    ModuleRejected,
    ModulesUnfit,
    NodeEffect,
    NodeEvent,
    ProcessesStuck,
    RecordSeat,
    Remember,
    RemoveLivenessLocks,
    ReserveEndpoint,
    SetDeadlines,
    ShowSaving,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    SpawnerReady,
    StartWorkers,
    StartZygote,
    StoreFailed,
    WorkerExited,
    WorkersLocated,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.model import Assignment, Endpoint, ErrorDetail, ExitStatus, Ranks
from holdfast.processes import environment
from holdfast.processes.channel_server import Answer, ChannelServer
from holdfast.processes.commands import (
    STORE_HOST,
    Launch,
    ProcessOrder,
    is_installed,
    launch_form,
    own_folders,
    plan_of,
    program_file,
    program_folder,
    to_execute,
    to_fork,
)
from holdfast.processes.failures import PATIENCE_S, with_details, with_evidence
from holdfast.processes.host.oom import OutOfMemoryWatch
from holdfast.processes.host.reserved_ports import ReservedPort, another_port
from holdfast.processes.monitoring.monitor import Monitor, WatchedRound, places_told
from holdfast.processes.monitoring.pages import StackMeans
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import Lane, close_file
from holdfast.processes.output.output import (
    PreparedStreams,
    RoundContext,
    RoundOutput,
    null_device,
    standard_input,
)
from holdfast.processes.output.recent import RecentOutput
from holdfast.processes.output.run_folders import JobLogs
from holdfast.processes.output.stream_plans import Layout, LogsRefused, layout_by_options
from holdfast.processes.process_group import GroupMember, ProcessGroup
from holdfast.processes.saving_page import SavingNews
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import linux
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.processes.stdlib_only.wire import ADMIN_SESSION, STORE
from holdfast.processes.zygote import learned_imports
from holdfast.processes.zygote.learned_imports import ImportsSeen
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.runtime.private_folder import own_folder
from holdfast.worker.draining import KEY

if TYPE_CHECKING:
    from holdfast.core.policy.worker_progress import WorkerProgress
    from holdfast.processes.channel_server import Later
    from holdfast.processes.lock_files import LockKeeper
    from holdfast.processes.monitoring.file_timer import FileTimer
    from holdfast.processes.monitoring.monitor import OnStacks
    from holdfast.processes.monitoring.stacks import StackSnapshot
    from holdfast.runtime.local_peer import LocalPeer


class Tethers:
    """Owns the descriptors that it is given."""

    def __init__(self, copied: Callable[[int], None], close_file: Callable[[int], None]) -> None:
        """Files are not closed on the loop: `copied` is told of each copy of one that is given
        away, and `close_file` closes it."""
        self._copied, self._close_file = copied, close_file
        self._own: int | None = None
        self._shared: list[int] = []
        self._lock: int | None = None

    def hold(self, descriptor: int) -> None:
        """This is the node's own one from now on."""
        if self._own is not None:
            os.close(self._own)
        self._own = descriptor

    def hold_lock(self, descriptor: int) -> None:
        """The node's note, from now on."""
        self._lock = descriptor

    def share(self, descriptors: list[int]) -> None:
        """These are the ones of other nodes, in place of those before."""
        for descriptor in self._shared:
            os.close(descriptor)
        self._shared = descriptors

    def for_worker(self) -> list[int]:
        """Copies for a worker."""
        copies = [] if self._own is None else [os.dup(self._own)]
        if self._lock is not None:
            copies.append(os.dup(self._lock))
            self._copied(copies[-1])
        return copies

    def for_spawner(self) -> list[int]:
        """Copies for the spawner."""
        return [*self.for_worker(), *map(os.dup, self._shared)]

    def close(self) -> None:
        if self._own is not None:
            os.close(self._own)
        if self._lock is not None:
            self._close_file(self._lock)
        self._own = self._lock = None
        self.share([])


class Entry(Struct, eq=False):
    """An event, and whether it can be told."""

    event: NodeEvent
    is_complete: bool = True
    timer: Cancellable | None = None


class Outbox:
    """Takes events and tells them in order."""

    def __init__(self, tell: Callable[[NodeEvent], None]) -> None:
        self._tell = tell
        self._entries: deque[Entry] = deque()

    def put(self, event: NodeEvent) -> None:
        if self._entries:
            self._entries.append(Entry(event))
        else:
            self._tell(event)

    def put_incomplete(
        self, event: NodeEvent, loop: Loop, patience_s: float
    ) -> Callable[[NodeEvent], None]:
        """Keep its place; the answer takes the event as it is to be told, once it is known.

        After `patience_s` it is told as it was put in.
        """
        entry = Entry(event, is_complete=False)
        self._entries.append(entry)

        def complete(known: NodeEvent) -> None:
            if not entry.is_complete:
                entry.event, entry.is_complete = known, True
                if entry.timer is not None:
                    entry.timer.cancel()
                self._tell_complete()

        entry.timer = loop.call_later(patience_s, complete, event)
        return complete

    def _tell_complete(self) -> None:
        while self._entries and self._entries[0].is_complete:
            self._tell(self._entries.popleft().event)

    def close(self) -> None:
        """Tell nothing more."""
        for entry in self._entries:
            entry.is_complete = True
            if entry.timer is not None:
                entry.timer.cancel()
        self._entries.clear()


class PendingStart(Struct, eq=False):
    """What one order is about, and which of its workers are still wanted."""

    effect: StartWorkers
    output: RoundOutput
    local_ranks: set[int]


class PendingStarts:
    """`start` gets workers that are ready, `refuse` the local ranks of those that cannot be."""

    def __init__(
        self,
        lane: Lane,
        start: Callable[[StartWorkers, RoundOutput, list[PreparedStreams]], None],
        refuse: Callable[[int, list[int], LogsRefused], None],
    ) -> None:
        self._lane, self._start, self._refuse = lane, start, refuse
        self._pending: list[PendingStart] = []

    def begin(self, effect: StartWorkers, output: RoundOutput) -> None:
        """Make them ready; of two orders for the same worker the later one counts."""
        self.withdraw(effect.local_ranks)
        pending = PendingStart(effect, output, set(effect.local_ranks))
        self._pending.append(pending)
        workers = [effect.assignment.workers[local_rank] for local_rank in effect.local_ranks]
        self._lane.do(partial(output.prepare, workers), partial(self._on_ready, pending))

    def withdraw(self, local_ranks: tuple[int, ...] | None = None) -> list[tuple[int, int]]:
        """Make none of these, or none at all; returns round and local rank of each."""
        withdrawn = []
        for pending in self._pending:
            named = pending.local_ranks if local_ranks is None else set(local_ranks)
            gone = sorted(pending.local_ranks & named)
            pending.local_ranks -= named
            withdrawn += [(pending.effect.assignment.round, rank) for rank in gone]
        return withdrawn

    def _on_ready(self, pending: PendingStart, made: list[PreparedStreams] | LogsRefused) -> None:
        self._pending.remove(pending)
        if isinstance(made, LogsRefused):
            self._refuse(pending.effect.assignment.round, sorted(pending.local_ranks), made)
            return
        wanted = []
        for ready in made:
            if ready.ranks.local_rank in pending.local_ranks:
                wanted.append(ready)
            else:
                pending.output.discard(ready)
        if wanted:
            self._start(pending.effect, pending.output, wanted)


def zygote_event(message: messages.OfZygote) -> NodeEvent:
    match message:
        case messages.Preloaded():
            return _ready(message)
        case messages.StepRejected():
            return ModuleRejected(message.step, message.reason, message.cost_s, message.beside)
        case messages.LateUnfit():
            return ModulesUnfit(message.reasons, message.beside)
        case messages.Unsuitable() | messages.ZygoteEnded():
            return ZygoteLost(message.reason, message.beside)
        case _:
            raise AssertionError(f"nothing that becomes of a zygote: {message}")


def _ready(message: messages.Preloaded) -> ZygoteReady:
    return ZygoteReady(
        preloaded=message.steps,
        took_s=message.took_s,
        late=message.late,
        has_torch=message.has_torch,
        beside=message.beside,
    )


if TYPE_CHECKING:
    OnAdminRequest = Callable[[LocalPeer, dict[str, Any], Callable[[bytes | Answer], None]], None]
    """Called with the request, and the function that takes the answer."""

LOOPBACK = "127.0.0.1"
ADDRESS_TO_COME = ""
"""Which of its addresses a node's peers should use is known once it has reached the coordinator."""
NOT_MADE = 126
"""The exit code of a worker that never ran, as a shell has it."""
LOGS_WAIT = "training goes on, and output waits in memory; beyond 64 MiB workers wait too"
Post = Callable[[NodeEvent], None]


class Running(Struct):
    """A worker of the current round."""

    round: int
    ranks: Ranks
    error_file: Path | None


class NodeSupervisor:
    """The node's resources. `post` takes the events that come of using them."""

    def __init__(
        self, config: JobConfig, logs: JobLogs, console: Console, disk: Disk, post: Post
    ) -> None:
        self.config = config
        self.logs = logs
        self.console = console
        self._outbox = Outbox(post)
        self._post = self._outbox.put
        place = str(logs.root or "the logs")
        self._log_lane = disk.lane("logs", place, LOGS_WAIT)
        self.file_lane = disk.lane("files", place, LOGS_WAIT)
        """For what is opened before a round and read after a worker's end: not behind its output,
        of which much may wait."""
        self._import_lane = disk.lane("imports")
        self._process_lane = disk.lane("processes")
        self._starts = PendingStarts(self.file_lane, self._start, self._post_refusal)
        self._launch: Launch = launch_form(config.program)
        self._program_folder = program_folder(config.program)
        self._shared_environment = environment.shared(config, os.environ)
        self._shared_environment[environment.SIGNALS] = ",".join(config.signals)
        self._workers: dict[str, Running] = {}
        self._by_pid: dict[int, Running] = {}
        self.layout: Layout = partial(layout_by_options, config.output)
        """Where workers write; another one may be put here before the job starts."""
        self.on_admin_request: OnAdminRequest | None = None
        """Called with each connection of a client of the admin server."""
        self._output: RoundOutput | None = None
        self._monitor: Monitor | None = None
        self._run_began = 0.0
        self._file_timer: FileTimer | None = None
        self._port: ReservedPort | None = None
        self._memory = OutOfMemoryWatch()
        self._processor_sets = _processor_sets(config)
        self._store_started = False
        self._killing = False
        self._ending = False
        self._tethers = Tethers(self._copied, self._close_file)
        self._locks: LockKeeper | None = None
        self._saving = SavingNews(self._post, config.drain_signals)
        self._is_closed = False

    def open(self, process: SpawnerProcess, loop: Loop) -> None:
        """Start serving the spawner and the workers' channel."""
        self._loop = loop
        self.recent = RecentOutput(loop)
        self._channel = ChannelServer(loop, self._on_channel)
        self._shared_environment["HOLDFAST_CHANNEL"] = self._channel.name
        installed = partial(is_installed, self._program_folder)
        self._imports = ImportsSeen(loop, self._import_lane, self._post, installed)
        if self.config.oversight.file_timer:
            self._serve_file_timer()
        self._group = ProcessGroup(process, self, self._log_lane)
        self._group.attach(loop)

    def _serve_file_timer(self) -> None:
        from holdfast.processes.monitoring.file_timer import VARIABLE, FileTimer, chosen_path

        path = chosen_path(os.environ.get(VARIABLE))
        self._shared_environment[VARIABLE] = path
        self._file_timer = FileTimer(path, self._loop, self.file_lane, self._on_timer_over)

    def keep_lock(self, disk: Disk, node: str) -> None:
        """Have this machine know, whatever happens to this node, when all of it has ended."""
        from holdfast.processes.lock_files import LockKeeper

        given = self.config.snapshot_dir
        folders = (*([Path(given)] if given else []), own_folder())
        self._locks = LockKeeper(disk, folders, self._post)
        self._locks.open(self.config.run_id, node, self._channel.name, self._hold_lock)

    def _copied(self, descriptor: int) -> None:
        self._group.is_file(descriptor)

    def _close_file(self, descriptor: int) -> None:
        self.file_lane.do(partial(close_file, descriptor))

    def _hold_lock(self, descriptor: int) -> None:
        self._tethers.hold_lock(descriptor)
        self._hand_tethers_over()

    def close(self) -> None:
        """Let go of everything; what is left below the spawner is killed by it."""
        self._close_round()
        self._outbox.close()
        if self._file_timer is not None:
            self._file_timer.close()
        self._group.close()
        self._imports.close()
        self._channel.close()
        if self._port is not None:
            self._port.release()
        self._is_closed = True
        if self._locks is not None:
            self._locks.close()
        self._tethers.close()
        self._saving.close()

    # Effects.

    def do(self, effect: NodeEffect) -> None:
        """Carry out what the node's core asks for."""
        match effect:
            case ReserveEndpoint():
                self._reserve_endpoint(effect.store)
            case StartZygote():
                self._start_zygote(effect)
            case Remember():
                self._remember(effect)
            case KillZygote():
                self._group.request(messages.SigkillZygote())
            case DropZygote():
                self._group.request(messages.CloseZygote())
            case RecordSeat():
                if self._locks is not None:
                    self._locks.put(effect)
            case RemoveLivenessLocks():
                if self._locks is not None:
                    self._locks.remove()
            case StartWorkers():
                self._start_workers(effect)
            case LocateWorkers():
                self._locate_workers(effect.round)
            case SignalWorkers():
                self._signal_workers(effect)
            case ShowSaving():
                self._show_saving(effect)
            case HideSaving():
                self._saving.hide(self._channel)
            case KillEverything():
                self._kill_everything(effect.round)
            case CloseRound():
                self._killing = False
                self._close_round()
            case LookAtUnexited():
                if self._monitor is not None:
                    self._monitor.find_unexited(ends=effect.ends)
            case ListStuck():
                self._group.request(messages.ReportStuck())
            case EndSpawner():
                self._end_spawner()
            case KillSpawner():
                self._group.kill_spawner()
            case SetDeadlines():
                lease = messages.StopAndKillAt(stop_at=effect.stop_at, kill_at=effect.kill_at)
                self._group.request(lease)
            case _:
                raise AssertionError(f"nothing that a supervisor does: {effect}")

    def _show_saving(self, effect: ShowSaving) -> None:
        """Show it first, and look then: a process that has not seen it has noted where it asked."""
        self._saving.show(effect, self._channel)
        asks = {} if self._monitor is None or effect.step is not None else self._monitor.next_asks()
        for worker in self._workers.values():
            local_rank = worker.ranks.local_rank
            if local_rank in asks:
                said = {KEY: "waits", "step": asks[local_rank], "serial": effect.serial}
                self._saving.take(worker.round, local_rank, said)

    def _reserve_endpoint(self, store: bool) -> None:
        """Hold a fresh port, unless the user has named one."""
        before, self._port = self._port, None
        if before is not None:
            before.release()
        several = self.config.max_nodes > 1
        address = self.config.master_address or (ADDRESS_TO_COME if several else LOOPBACK)
        port = self.config.master_port
        if not port:
            self._port = another_port(before, LOOPBACK if store and not several else None)
            port = self._port.number
            if store:
                self._port.listen()
        self._post(EndpointReserved(Endpoint(address, port, serves_store=store)))

    def hold_tether(self, descriptor: int) -> None:
        """Everything on this node holds it: its end means that nothing of it is left."""
        self._tethers.hold(descriptor)
        self._hand_tethers_over()

    def share_tethers(self, descriptors: list[int]) -> None:
        """The spawner holds these too, in place of those before: tethers of other nodes to us."""
        self._tethers.share(descriptors)
        if not self._is_closed:
            self._hand_tethers_over()

    def _hand_tethers_over(self) -> None:
        self._group.request(messages.HoldTethers(), self._tethers.for_spawner())

    def _start_zygote(self, effect: StartZygote) -> None:
        names = environment.per_worker(self.config)
        folder = self._program_folder
        plan = plan_of(self.config.program, self.config.warm.preload)
        self._group.request(
            messages.Preload(
                interpreter=self._launch.interpreter[0],
                env=self._shared_environment,
                steps=effect.steps,
                late=effect.late,
                avoid=effect.avoid,
                under=effect.under,
                beside=effect.beside,
                trusted=self.config.warm.preload,
                per_worker_names=names,
                always_set=tuple(n for n in names if n not in environment.NOT_ALWAYS_SET),
                program_folder=folder,
                own_folders=own_folders(effect.steps, folder),
                sets=plan.sets if effect.late else (),
                in_order=plan.in_order,
                files=plan.files,
            )
        )

    def _remember(self, effect: Remember) -> None:
        """Where a disk may be slow, and nobody waits for it."""
        memory = learned_imports.WarmMemory(effect.late, effect.avoid, effect.under)
        self._import_lane.do(partial(_keep, self.config.program, memory))

    def _start_workers(self, effect: StartWorkers) -> None:
        """Have their files made ready, which may take a disk a while, and then the workers."""
        self._memory.snapshot()
        self._starts.begin(effect, self._output_of(effect.assignment))

    def _start(
        self, effect: StartWorkers, output: RoundOutput, workers: list[PreparedStreams]
    ) -> None:
        """Open the streams, then have the workers made, all of them in one go if warm."""
        assignment = effect.assignment
        orders = [self._order(assignment.round, ready, output) for ready in workers]
        serves = assignment.master.serves_store and assignment.group_rank == 0
        if serves and not self._store_started:
            orders.insert(0, self._store_order(assignment.master))
        requests: Sequence[tuple[messages.Message, list[int]]]
        if effect.warm:
            requests = list(to_fork(orders, self._shared_environment, self._group.spawner_pid))
        else:
            requests = [to_execute(order) for order in orders]
        for request, descriptors in requests:
            self._group.request(request, descriptors)

    def _signal_workers(self, effect: SignalWorkers) -> None:
        number, local_ranks = effect.signal, effect.local_ranks
        if effect.stops:
            for round_number, local_rank in self._starts.withdraw(local_ranks):
                # It would be born to be sent it at once.
                self._post(WorkerExited(round_number, local_rank, 0, ExitStatus(signal=number)))
        told = {n: one for n, one in self._workers.items() if one.ranks.local_rank in local_ranks}
        shielded = self._shielded(number, told) if effect.stops else []
        others = [name for name in told if name not in shielded]
        self._group.signal(number, others, wakes=effect.stops)
        if shielded:
            self._group.signal(signal.SIGKILL, shielded)

    def _shielded(self, number: int, workers: Mapping[str, Running]) -> list[str]:
        """Those of them that only SIGKILL ends at once (`worker.shield`)."""
        pids = {name: self._group.members[name].pid for name in workers}
        return [
            name
            for name, worker in workers.items()
            if self._monitor is not None
            and (pid := pids[name]) is not None
            and self._monitor.is_shielded(worker.ranks.local_rank, pid, number)
        ]

    def _kill_everything(self, round_number: int) -> None:
        self._killing = True
        self._starts.withdraw()
        self._group.request(messages.Kill(round=round_number))

    def _end_spawner(self) -> None:
        self._ending = self._killing = True
        self._starts.withdraw()
        self._group.request(messages.Shutdown())

    # Starting.

    def _output_of(self, assignment: Assignment) -> RoundOutput:
        """Decided with the first workers of a round; the others may start later, and cold."""
        if self._output is None or self._output.round != assignment.round:
            self._close_output()
            self._monitor = self._open_monitor(assignment)
            self._output = self._open_output(assignment, self._monitor)
        return self._output

    def _open_monitor(self, assignment: Assignment) -> Monitor:
        watched = WatchedRound(
            assignment.round,
            len(assignment.workers),
            self.config.leases.heartbeat_s,
            self.config.oversight,
            self.logs.attempt(assignment.restart_count),
            self._run_left_s(),
            assignment.master.port,
        )
        means = StackMeans(
            self._loop,
            self.file_lane,
            self._process_lane,
            self._group.spawner_pid,
            environ=self._shared_environment,
            debugs=self.config.oversight.stacks,
            is_python=self._launch.kind != "command",
        )
        return Monitor(watched, means, self._post)

    def worker_progress(self) -> list[WorkerProgress]:
        """How far each worker of this node is, and how fast; none while no round runs."""
        return [] if self._monitor is None else self._monitor.worker_progress()

    def finished(self) -> list[WorkerProgress]:
        """The workers of this node that have ended while their round goes on."""
        return [] if self._monitor is None else self._monitor.finished()

    def watched_by(self) -> Literal["", "steps", "signs"]:
        """By what the workers of this node are seen to move, so far."""
        return "" if self._monitor is None else self._monitor.watched_by()

    def _run_left_s(self) -> float | None:
        """Of the time for the whole run, which begins with the first round here."""
        now = time.monotonic()
        self._run_began = self._run_began or now
        limit_s = self.config.oversight.run_s
        return None if limit_s is None else self._run_began + limit_s - now

    def _on_timer_over(self, pid: int, scope: str) -> None:
        if self._monitor is not None:
            self._monitor.scope_over(pid, scope)

    def take_stacks(self, reason: str, then: OnStacks) -> None:
        """Where all workers of this node are; `then` is told in a second or two, on the loop."""
        if self._monitor is None:
            then(None)
        else:
            self._monitor.take_stacks(reason, then)

    def _locate_workers(self, round_number: int) -> None:
        def tell(snapshot: StackSnapshot | None) -> None:
            groups, file = ((), "") if snapshot is None else (snapshot.groups(), snapshot.file)
            self._post(WorkersLocated(round_number, places_told(groups), file))

        self.take_stacks("a collective timed out", tell)

    def _open_output(self, assignment: Assignment, monitor: Monitor) -> RoundOutput:
        common = self._shared_environment
        environments = {
            ranks.local_rank: environment.of_worker(self.config, common, assignment, ranks)
            | monitor.variables(ranks.local_rank)
            for ranks in assignment.workers
        }
        begin = partial(self.layout, self.logs, assignment.restart_count, environments)
        shared = RoundContext(self.config, self.console, self._loop, self._log_lane, self.recent)
        return RoundOutput(assignment.round, begin, environments, shared)

    def _post_refusal(
        self, round_number: int, local_ranks: list[int], refusal: LogsRefused
    ) -> None:
        """None of them can be made, and all for the same reason."""
        error = ErrorDetail(refusal.message, refusal.traceback, non_retryable=refusal.is_permanent)
        for local_rank in local_ranks:
            self._post_not_made(round_number, local_rank, error)

    def _order(
        self, round_number: int, ready: PreparedStreams, output: RoundOutput
    ) -> ProcessOrder:
        """What it takes to start a worker."""
        ranks, local_rank = ready.ranks, ready.ranks.local_rank
        name = f"{round_number}:{local_rank}"
        opened = output.open(ready)
        self._workers[name] = Running(round_number, ranks, ready.error_file)
        streams = self._group.add(name, opened)
        descriptors = [standard_input(local_rank), *streams, *self._tethers.for_worker()]
        return ProcessOrder(
            name=name,
            launch=self._launch,
            arguments=environment.arguments(self.config, ranks),
            environment=ready.variables,
            descriptors=descriptors,
            cpus=self._processor_sets[local_rank] if self._processor_sets else None,
            learns=True,
        )

    def _store_order(self, endpoint: Endpoint) -> ProcessOrder:
        """Hand the socket, on which workers can already knock, to a process that answers."""
        assert self._port is not None, "a store was announced without a socket"
        self._store_started = True
        return ProcessOrder(
            name=STORE,
            launch=Launch(self._launch.interpreter, "script", STORE_HOST),
            arguments=[endpoint.address, str(endpoint.port)],
            environment=self._shared_environment,
            descriptors=[
                self._port.duplicate(),
                null_device(os.O_WRONLY),
                null_device(os.O_WRONLY),
                *self._tethers.for_worker(),
            ],
        )

    # What the group tells.

    def spawner_said(self, message: messages.Message) -> None:
        match message:
            case messages.SpawnerIsUp():
                self._post(SpawnerReady(message.pid, message.is_subreaper, message.has_pidfd))
            case messages.OfWorker():
                assert message.name == STORE, f"{message} is about nobody that we know"
                self._on_store(message)
            case messages.OfZygote():
                self._post(zygote_event(message))
            case messages.EverythingGone():
                self._channel.take_all()  # Before the next round, to which it does not belong.
                self._post(AllGone(message.round))
            case messages.LeaseOver():
                self._killing = True  # It ends by our doing, and the store with it.
                self._starts.withdraw()
                shielded = self._shielded(signal.SIGTERM, self._workers)
                self._group.signal(signal.SIGKILL, shielded)
                self._post(LeaseRanOut())
            case messages.Stuck():
                named = tuple(message.processes), tuple(message.forbidden)
                self._post(ProcessesStuck(*named))
            case _:
                raise AssertionError(f"nothing that a supervisor is told: {message}")

    def member_started(self, member: GroupMember) -> None:
        assert member.pid is not None
        worker = self._workers[member.name]
        self._by_pid[member.pid] = worker
        if self._monitor is not None:
            self._monitor.started(worker.ranks, member.pid)
        self._post(WorkerStarted(worker.round, worker.ranks.local_rank, member.pid))

    def member_exited(self, member: GroupMember, status: int) -> None:
        assert member.pid is not None
        worker = self._workers[member.name]
        self._channel.take_all()  # The last word comes before the end.
        if self._monitor is not None:
            self._monitor.ended(worker.ranks.local_rank)
        if self._file_timer is not None:
            self._file_timer.forget({member.pid})
        ended = ExitStatus.from_wait_status(status)
        event = WorkerExited(worker.round, worker.ranks.local_rank, member.pid, ended)
        if ended.succeeded:
            self._post(event)
            return
        stack = ""
        if self._monitor is not None:
            self._monitor.keep_flight_record(worker.ranks.local_rank)
            stack = self._monitor.last_words(worker.ranks.local_rank)
        event = with_evidence(event, self._memory, stack)
        complete = self._outbox.put_incomplete(event, self._loop, PATIENCE_S)
        read_stderr = member.streams.stderr_reader()
        versions = self._versions if self.config.max_nodes > 1 else None
        left = (worker.error_file, read_stderr, self.config.program, versions)
        self.file_lane.do(partial(with_details, event, *left), complete)

    def _versions(self) -> str:
        """In a lane: packages and arguments of workers here, to be compared with other nodes."""
        from holdfast.processes.host.versions import of_workers

        return of_workers(os.environ, self._program_folder, self.config.program.arguments)

    def _on_store(self, message: messages.OfWorker) -> None:
        match message:
            case messages.Started():
                if self._port is not None:
                    self._port.release()  # The process has it now, and takes it along.
            case messages.Exited():
                status = ExitStatus.from_wait_status(message.status)
                self._on_store_lost(f"ended with {status}")
            case messages.ForkFailed():
                self._on_store_lost(f"could not be made: {message.error}")

    def _on_store_lost(self, how: str) -> None:
        if not self._killing:
            self._post(StoreFailed(how))

    def member_failed(self, member: GroupMember, error: str) -> None:
        worker = self._workers[member.name]
        detail = ErrorDetail(message=f"the process could not be made: {error}")
        self._post_not_made(worker.round, worker.ranks.local_rank, detail)

    def _post_not_made(self, round_number: int, local_rank: int, error: ErrorDetail) -> None:
        status = ExitStatus(code=NOT_MADE)
        self._post(WorkerExited(round_number, local_rank, 0, status, error=error))

    def spawner_ended(self, how: str) -> None:
        # Also when it was asked to: it may have been killed before it had done all of it. What it
        # leaves comes up to this process, a subreaper too.
        then = partial(self._on_nothing_left, how)
        if linux.has_children():
            self._process_lane.do(partial(linux.kill_all_below, os.getpid()), then)
        else:
            then([])

    def _on_nothing_left(self, how: str, left: list[linux.ProcessEntry]) -> None:
        self._close_round()
        lost = SpawnerLost(how, tuple(map(linux.described, left)))
        self._post(SpawnerEnded() if self._ending else lost)

    def _on_channel(
        self, peer: LocalPeer, message: dict[str, Any]
    ) -> bytes | Answer | Later | None:
        """Take what a worker says; what it, or another program of this user, asks is answered."""
        if ADMIN_SESSION in message and self.on_admin_request is not None:
            return partial(self.on_admin_request, peer, message)
        pid = peer.pid
        if "imported" in message:
            self._imports.take(message["imported"], message.get("changed"))
        elif "imported_too_early" in message:
            self._imports.take_too_early(message["imported_too_early"], message.get("changed"))
        worker = self._by_pid.get(pid) or self._by_local_rank(message.get("local_rank"))
        reported = message.get("progress")
        if worker is not None and self._monitor is not None and type(reported) is int:
            self._monitor.heard(worker.ranks.local_rank, reported)
        if "deadlines" in message and self._monitor is not None:
            self._monitor.has_deadlines()
        if worker is not None and KEY in message:
            at = (worker.round, worker.ranks.local_rank)
            return self._saving.take(*at, message)
        return None

    def _by_local_rank(self, local_rank: object) -> Running | None:
        """A child of a worker speaks for it."""
        for worker in self._workers.values():
            if worker.ranks.local_rank == local_rank:
                return worker
        return None

    def _close_round(self) -> None:
        """Nothing of the round is left: take the last of its output and close its files."""
        self._starts.withdraw()
        self._group.dismiss()
        self._workers.clear()
        self._by_pid.clear()
        self._store_started = False
        self._saving.clear()
        self._close_output()

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


def _keep(program: Program, memory: learned_imports.WarmMemory) -> None:
    file = program_file(program)
    if file is not None:
        learned_imports.keep(file, memory)


def _processor_sets(config: JobConfig) -> tuple[tuple[int, ...], ...]:
    if config.numa_binding is None:
        return ()
    from holdfast.processes.host import numa

    devices = numa.cuda_devices(os.environ)
    return numa.plan(config.numa_binding, config.slots, devices=devices)
