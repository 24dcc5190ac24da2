"""The spawner: parent of every worker, which leaves nothing behind.

Rules
1. Single-threaded, standard library only, never runs user code, never busy: it waits in
   one `select` and does what it is told, so that it can always be relied on to kill.
2. Every process of the job is below it. It is a subreaper: a grandchild whose parent died,
   and a daemon that forked twice, become its children and are reaped here.
3. When the agent's end of the socket closes, whatever the reason, everything below is
   killed and the spawner ends. When the spawner dies, the kernel kills the workers
   (`PR_SET_PDEATHSIG`), and the agent, a subreaper too, kills the rest; or a guardian does,
   where it serves a process that is no subreaper.
4. In a job of several nodes it keeps the lease: workers get SIGTERM at the one time it was
   told, everything gets SIGKILL at the other, and nothing starts between, whether or not the
   agent is awake. It also holds the node's tether, so that this ends when all of it has.
5. Exits are seen through SIGCHLD. A pid is only signalled while it cannot have been reused:
   it is our own unreaped child, or pinned by a pidfd and seen below us while pinned. A process
   of another user (after `sudo`) may not be signalled at all: it is named, and left.

The guardian is a process between a spawner and a caller that merely uses our library, and must not
be made a subreaper: it would get orphans that are none of ours. It only waits; when the spawner is
killed it cleans up, and ends as the spawner did. When it is killed itself, a pipe that only it
holds ends, by which the spawner ends too, with all that is below it.

    caller ── guardian ── spawner ── workers

It is started as a script (`spawner_entry.py`), so it imports nothing of Holdfast but its
other small processes. What it is asked and what it answers is in `private_messages.py`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket

from holdfast.processes.spawner import zygote_process
from holdfast.processes.stdlib_only import linux, wire
from holdfast.processes.stdlib_only import private_messages as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def fork_shielded() -> int:
    """Fork a child that no signal reaches before it has reset what we ignore.

    Else one that is sent right after the fork would be lost on it. It lifts the shield
    itself (`linux.reset_signals`), and what was sent meanwhile is delivered then.
    """
    before = linux.block_signals()
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            linux.unblock_signals(before)
    return pid


def become_command(request: messages.Execute, stdio: list[int], parent: int) -> None:
    """In the child: turn into the command. Never returns."""
    try:
        split = len(stdio) - len(request.keep)
        kept = linux.moved_above(stdio[split:], request.keep)
        linux.become_worker(parent, stdio[:split], request.cpus)
        linux.permit_agent(request.env)
        for descriptor, number in zip(kept, request.keep, strict=True):
            os.dup2(descriptor, number)
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        words = f"holdfast: cannot run {request.argv[0]}: {error.strerror}\n"
        os.write(2, words.encode("utf-8", "surrogateescape"))
        os._exit(code)
    finally:
        os._exit(125)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def run_under_guardian() -> int:
    """Go on as the child of a guardian; returns a descriptor that ends when it does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Else the kernel may reap, and not tell.
    linux.set_subreaper()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        return reading
    try:
        os.close(reading)  # First, so that one is free by which the others can be listed.
        guard(pid, writing)
    finally:
        os._exit(1)


def guard(spawner: int, writing: int) -> None:
    """Wait for the spawner's end, kill what it left, and end in the same way."""
    linux.set_title("holdfast-guard")
    linux.close_all_but(writing)  # The spawner's socket among them: its end must be seen.
    _, status = os.waitpid(spawner, 0)
    linux.kill_all_below(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    with contextlib.suppress(OSError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


class ZygoteChild:
    """A zygote, seen from its parent."""

    def __init__(self, connection: wire.PrivateConnection, pid: int) -> None:
        self.connection = connection
        self.pid: int | None = pid
        self.is_idle = True
        """It has not been told yet what to import."""
        self.is_ready = False


class Spawner:
    """State of the spawner: its children, by what they are."""

    def __init__(self, agent: socket.socket) -> None:
        self.agent = wire.PrivateConnection(agent)
        self.zygote: ZygoteChild | None = None
        self.next_zygote: ZygoteChild | None = None
        """Prepared beside the one that serves; takes its place when it is ready."""
        self.workers: dict[int, str] = {}
        self.unclaimed_exits: dict[int, int] = {}
        self.forks_pending: set[str] = set()
        self.signals_pending: dict[str, int] = {}
        """For workers that are being forked: they get them as soon as they are there."""
        self.groups: set[int] | None = None
        self.killing = False
        self.killed_for = 0
        """The round for which the agent asked last that all be killed, until that is answered."""
        self.ending = False
        self.grace = linux.CleanupGrace()
        self.stop_at: float | None = None
        self.kill_at = 0.0
        self.lease_ends = False
        self.lease_timer: linux.BootTimer | None = None
        self.tether: list[int] = []
        self.selector = selectors.DefaultSelector()

    # The loop.

    def run(self) -> None:
        self.selector.register(self.agent.socket, selectors.EVENT_READ, self.on_agent)
        wakeup, self.on_signal_fd = socket.socketpair()
        for end in (wakeup, self.on_signal_fd):
            end.setblocking(False)
        signal.set_wakeup_fd(self.on_signal_fd.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(wakeup, selectors.EVENT_READ, lambda: self.on_child(wakeup))
        is_subreaper, has_pidfd = linux.set_subreaper(), linux.has_pidfd()
        self.say(
            messages.SpawnerIsUp(pid=os.getpid(), is_subreaper=is_subreaper, has_pidfd=has_pidfd)
        )
        while True:
            left = [left for left in (self.lease_left(), self.grace.left()) if left is not None]
            for key, mask in self.selector.select(min(left, default=None)):
                if mask & selectors.EVENT_WRITE:
                    self.flush()
                if mask & selectors.EVENT_READ:
                    key.data()
            self.keep_lease()
            if self.grace.is_due():
                self.kill_below()

    def say(self, message: messages.Message) -> None:
        self.agent.queue(message)
        self.flush()

    def flush(self) -> None:
        try:
            done = self.agent.flush()
        except OSError:
            self.end()
        events = selectors.EVENT_READ if done else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self.selector.get_key(self.agent.socket).events != events:
            self.selector.modify(self.agent.socket, events, self.on_agent)

    # Requests.

    def on_agent(self) -> None:
        try:
            requests = self.agent.receive()
        except (EOFError, OSError):
            self.end()
        for request, descriptors in requests:
            self.do(request, descriptors)

    def do(self, request: messages.Message, descriptors: list[int]) -> None:
        match request:
            case messages.Execute():
                self.execute(request, descriptors)
            case messages.Preload():
                self.preload(request)
            case messages.Fork():
                self.fork(request, descriptors)
            case messages.CloseZygote():
                self.drop_zygotes()
            case messages.SigkillZygote():
                self.kill_zygote()
            case messages.Signal():
                self.send_signal(request)
            case messages.Kill():
                self.killing, self.killed_for = True, request.round
                self.kill_below()
            case messages.ReportStuck():
                self.list_stuck()
            case messages.Shutdown():
                self.end_when_all_is_gone()
            case messages.StopAndKillAt():
                self.begin_lease(request)
            case messages.HoldTethers():
                close_all(self.tether)
                self.tether = descriptors
            case _:
                raise AssertionError(f"nothing that a spawner does: {type(request).__name__}")

    def execute(self, request: messages.Execute, descriptors: list[int]) -> None:
        def become(parent: int) -> None:
            become_command(request, descriptors, parent)

        if not self.refuses_to_start([request.name], descriptors):
            self.fork_worker(request.name, become, descriptors)

    def fork_worker(self, name: str, become: Callable[[int], None], descriptors: list[int]) -> None:
        """Fork a worker, which becomes what it is to be, told its parent's pid; and say so."""
        parent = os.getpid()
        try:
            pid = fork_shielded()
        except OSError as error:
            self.say(messages.ForkFailed(name=name, error=str(error)))
        else:
            if pid == 0:
                become(parent)
            self.workers[pid] = name
            self.say(messages.Started(name=name, pid=pid))
        close_all(descriptors)

    def preload(self, request: messages.Preload) -> None:
        if request.beside:
            self.drop(self.next_zygote)
            self.next_zygote = self.started(request)
            self.send_to(self.next_zygote, request, [])
            return
        if self.zygote is None or not self.zygote.is_idle:
            self.drop_zygotes()
            self.zygote = self.started(request)
        self.zygote.is_idle = False
        self.send_to(self.zygote, request, [])

    def started(self, request: messages.Preload) -> ZygoteChild:
        """A fresh one; for functions, with the interpreter's options that they would have."""
        if request.options is None:
            return self.adopted(*zygote_process.start(request.interpreter))
        how = request.interpreter, request.options, request.env
        return self.adopted(*zygote_process.start(*how))

    def adopted(self, pid: int, descriptor: int) -> ZygoteChild:
        connection = wire.PrivateConnection(socket.socket(fileno=descriptor))
        self.selector.register(connection.socket, selectors.EVENT_READ, self.on_zygote)
        return ZygoteChild(connection, pid)

    def send_to(
        self, zygote: ZygoteChild, request: messages.Message, descriptors: list[int]
    ) -> None:
        """A zygote reads at once or is dead: a blocking send cannot wait for long."""
        zygote.connection.queue(request, descriptors)
        try:
            zygote.connection.flush_blocking()
        except OSError:
            self.lose(zygote, "it closed its connection")

    def drop(self, zygote: ZygoteChild | None) -> None:
        """Hang up on it and kill it, if it is there."""
        if zygote is None:
            return
        self.selector.unregister(zygote.connection.socket)
        zygote.connection.close()
        if zygote.pid is not None:
            os.kill(zygote.pid, signal.SIGKILL)
        if zygote is self.zygote:
            self.zygote = None
        else:
            self.next_zygote = None

    def drop_zygotes(self) -> None:
        self.drop(self.zygote)
        self.drop(self.next_zygote)

    def kill_zygote(self) -> None:
        """Its end is then told as any other: after the forks that it has told of."""
        if self.zygote is not None and self.zygote.pid is not None:
            os.kill(self.zygote.pid, signal.SIGKILL)

    def zygote_pids(self) -> tuple[int, ...]:
        zygotes = (self.zygote, self.next_zygote)
        return tuple(one.pid for one in zygotes if one is not None and one.pid is not None)

    def let_the_better_one_serve(self) -> None:
        """Unless the other one is just forking: then as soon as it has."""
        better = self.next_zygote
        if better is not None and better.is_ready and not self.forks_pending:
            self.drop(self.zygote)
            self.zygote, self.next_zygote = better, None

    def fork(self, request: messages.Fork, descriptors: list[int]) -> None:
        names = [worker.name for worker in request.workers]
        if self.refuses_to_start(names, descriptors):
            return
        if self.zygote is None:
            close_all(descriptors)
            self.say(messages.ZygoteEnded(reason="it had already ended"))
            return
        self.forks_pending.update(names)
        self.send_to(self.zygote, request, descriptors)

    def send_signal(self, request: messages.Signal) -> None:
        wanted = set(request.names)
        chosen = [pid for pid, worker in self.workers.items() if worker in wanted]
        self.signals_pending.update(dict.fromkeys(wanted & self.forks_pending, request.number))
        for pid in chosen:
            # Its group has its number, once it leads a session of its own.
            target = -pid if request.group and os.getpgid(pid) == pid else pid
            linux.send_signal(target, request.number)
            if request.wakes:
                linux.send_signal(target, signal.SIGCONT)
        if request.group:
            self.groups = {*(self.groups or ()), *chosen}
            self.tell_of_groups()

    def tell_of_groups(self) -> None:
        """Say once that nothing is left of the groups that were signalled."""
        if self.groups is None:
            return
        self.groups = {group for group in self.groups if linux.group_exists(group)}
        if not self.groups:
            self.groups = None
            self.say(messages.GroupsGone())

    def list_stuck(self) -> None:
        below = linux.descendants(os.getpid(), without=self.zygote_pids())
        named: dict[bool, list[str]] = {False: [], True: []}
        for process in below:
            if process.state != "Z":
                named[linux.is_forbidden(process.pid)].append(linux.described(process))
        self.say(messages.Stuck(processes=named[False], forbidden=named[True]))

    def end_when_all_is_gone(self) -> None:
        """Kill all of it, the zygote too, and go when nothing is left; listen meanwhile."""
        self.drop_zygotes()
        self.forks_pending.clear()
        self.ending = self.killing = True
        self.kill_below()

    # The lease.

    def begin_lease(self, request: messages.StopAndKillAt) -> None:
        if self.lease_timer is None:
            self.lease_timer = linux.boot_timer()
            if self.lease_timer is not None:
                self.selector.register(self.lease_timer, selectors.EVENT_READ, lambda: None)
        self.stop_at, self.kill_at = request.stop_at, request.kill_at
        self.lease_ends = False

    def lease_left(self) -> float | None:
        """How long to wait at most, for the lease's sake. A timer wakes us also after a suspend."""
        due = None if self.stop_at is None else self.kill_at if self.lease_ends else self.stop_at
        if self.lease_timer is not None:
            self.lease_timer.set(due)
            return None
        return None if due is None else max(0.0, due - linux.now())

    def keep_lease(self) -> None:
        if self.stop_at is None or linux.now() < self.stop_at:
            return
        if not self.lease_ends:
            self.lease_ends = True
            self.say(messages.LeaseOver())
            workers = [name for name in self.workers.values() if name != wire.STORE]
            self.send_signal(messages.Signal(number=signal.SIGTERM, names=workers))
        if linux.now() >= self.kill_at:
            self.stop_at = None
            self.killing = True
            self.kill_at_once()

    def refuses_to_start(self, names: list[str], descriptors: list[int]) -> bool:
        """Whether the lease is over, or about to be: then nothing may start any more."""
        over = self.lease_ends or (self.stop_at is not None and linux.now() >= self.stop_at)
        if over:
            close_all(descriptors)
            for name in names:
                self.say(messages.ForkFailed(name=name, error="the lease has run out"))
        return over

    # Children.

    def on_child(self, wakeup: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wakeup.recv(4096)
        self.on_zygote()  # A worker's start is always sent before its end.
        for pid, status in linux.reap():
            self.on_exit(pid, status)
        self.tell_of_groups()
        if self.killing:
            self.kill_below()

    def on_exit(self, pid: int, status: int) -> None:
        ended = [
            one for one in (self.zygote, self.next_zygote) if one is not None and one.pid == pid
        ]
        if ended:
            ended[0].pid = None
            self.lose(ended[0], f"it ended with status {os.waitstatus_to_exitcode(status)}")
        elif pid in self.workers:
            self.report_exit(self.workers.pop(pid), pid, status)
        elif self.forks_pending:
            self.unclaimed_exits[pid] = status

    def report_exit(self, worker: str, pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.say(messages.Exited(name=worker, pid=pid, status=code))

    def kill_at_once(self) -> None:
        self.grace.end()
        self.kill_below()

    def kill_below(self) -> None:
        """SIGKILL to all that is below, but the zygote; say so once nothing is left.

        Called again after every exit: children of the dead come up to us, and a process that
        forked between the look and the kill is caught the next time.
        """
        alive = []
        if linux.has_children():
            alive = linux.descendants(os.getpid(), without=self.zygote_pids())
        for process in alive:
            if process.state != "Z" and not self.grace.spares(process):
                linux.kill_if_below(process, os.getpid())
        if alive or self.forks_pending:
            return
        if self.ending:
            os._exit(0)
        self.killing = False
        self.grace = linux.CleanupGrace()
        self.stop_at = None  # Nothing is left that a lease would be needed for.
        self.say(messages.EverythingGone(round=self.killed_for))
        self.killed_for = 0

    # The zygote.

    def on_zygote(self) -> None:
        for zygote in (self.zygote, self.next_zygote):
            # It may have been read, lost or replaced since the selector looked.
            if zygote is None or not linux.readable(zygote.connection.socket):
                continue
            try:
                answers = zygote.connection.receive()
            except (EOFError, OSError):
                self.lose(zygote, "it closed its connection")
                continue
            for answer, _ in answers:
                self.on_zygote_said(zygote, answer)

    def on_zygote_said(self, zygote: ZygoteChild, answer: messages.Message) -> None:
        match answer:
            case messages.Forked():
                self.claim(answer.name, answer.pid)
            case messages.OfZygote():
                answer.beside = zygote is self.next_zygote
                self.say(answer)
                if answer.beside and isinstance(answer, messages.Preloaded):
                    zygote.is_ready = True
                    self.let_the_better_one_serve()
                elif answer.beside:
                    self.drop(zygote)  # It is of no use, and nobody will ask for its end.
            case _:
                raise AssertionError(f"nothing that a zygote says: {answer}")

    def claim(self, worker: str, pid: int) -> None:
        self.forks_pending.discard(worker)
        self.workers[pid] = worker
        self.say(messages.Started(name=worker, pid=pid))
        if pid in self.unclaimed_exits:
            del self.workers[pid]
            self.report_exit(worker, pid, self.unclaimed_exits.pop(pid))
        elif worker in self.signals_pending:
            linux.send_signal(pid, self.signals_pending.pop(worker))  # Not reaped yet.
        if not self.forks_pending:
            self.unclaimed_exits.clear()  # They were nobody's, and a pid may come again.
            self.signals_pending.clear()
            self.let_the_better_one_serve()
        if self.killing:
            self.kill_below()

    def lose(self, zygote: ZygoteChild, reason: str) -> None:
        """It ended by itself."""
        beside = zygote is self.next_zygote
        if zygote is not self.zygote and not beside:
            return
        self.drop(zygote)
        if not beside:
            self.forks_pending.clear()
        self.say(messages.ZygoteEnded(reason=reason, beside=beside))

    # The end.

    def end(self) -> None:
        """Nobody listens any more: kill everything below, reap it, and go."""
        signal.set_wakeup_fd(-1)
        linux.kill_all_below(os.getpid())
        os._exit(0)


def main(
    descriptor: int,
    zygote: tuple[int, int] | None,
    kind: type[Spawner] = Spawner,
    *,
    guarded: bool = False,
) -> None:
    """Be a spawner for the process at the other end of the socket. Never returns.

    `zygote` is what `zygote_process.start` gave, if one was started already.
    """
    # Whatever may be sent to all processes of a node at once is for the agent to take.
    for number in linux.FOR_THE_AGENT:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):
        os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    guard = run_under_guardian() if guarded else None
    linux.set_title("holdfast-spawn")
    spawner = kind(socket.socket(fileno=descriptor))
    if guard is not None:
        spawner.selector.register(guard, selectors.EVENT_READ, spawner.end)
    if zygote is not None:
        spawner.zygote = spawner.adopted(*zygote)
    spawner.run()
