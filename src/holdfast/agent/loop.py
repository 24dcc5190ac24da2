"""The agent's loop: inbox → step → effects, and again.

The machine of the core that lives here is the agent of this node. The coordinator is behind
its `Contact`: in this very process for a job of one node and on the host that carries it for
others, elsewhere otherwise. What it says arrives in the same inbox, and is journalled.

Nothing on the loop waits for a disk or a name server: heartbeats go out on it. See `agent.disk`.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from holdfast.agent.contact import Contact, LocalContact, NetworkContact, Owner, Secrets
from holdfast.agent.disk import Disk
from holdfast.agent.workplace import Workplace
from holdfast.core import agent
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    Dial,
    DropZygote,
    EndSpawner,
    Finish,
    HangUp,
    HoldLease,
    KillEverything,
    KillSpawner,
    KillZygote,
    ListStuck,
    Remember,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SignalWorkers,
    StartWorkers,
    StartZygote,
    WakeAgent,
)
from holdfast.core.agent_state import AgentState
from holdfast.core.bounds import clean
from holdfast.core.config import JobConfig
from holdfast.core.model import Outcome
from holdfast.observe.journal import SCHEMA, Header, Journal
from holdfast.observe.recoveries import recoveries
from holdfast.observe.report import render
from holdfast.workers import failures, linux
from holdfast.workers.console import Console
from holdfast.workers.event_loop import Cancellable, EventLoop, Inbox
from holdfast.workers.log_layout import JobLogs, create_job_logs
from holdfast.workers.spawner_process import SpawnerProcess

CONSOLE_PATIENCE_S = 10.0
"""How long the end waits for a reader of our output that does not read."""
JOURNAL_WAITING_BYTES = 32 << 20
"""How much of the journal waits in memory for its disk; then it ends."""


class Agent:
    """One node of one job."""

    def __init__(
        self,
        config: JobConfig,
        loop: EventLoop,
        *,
        secrets: Secrets | None = None,
        print_report: bool = True,
        echo: Callable[[bytes], None] | None = None,
    ) -> None:
        """`echo` gets every line of the journal, and must return at once."""
        self.config = config
        self.host = clean(socket.gethostname())
        self.node = f"{self.host}-{os.urandom(4).hex()}"
        self._loop = loop
        self._print_report = print_report
        self._agent = AgentState(config, self.node, self.host)
        self._inbox: Inbox[AgentEvent] = Inbox(self._take)
        self._timers: dict[str, Cancellable] = {}
        self._outcome: Outcome | None = None
        self._hurried = False
        """A signal came when all that was left was to wait for others."""
        self.console = Console(loop)
        self.logs: JobLogs = create_job_logs(config.output.log_dir, config.run_id)
        self._disk = Disk(loop, self._say)
        self.console.use_lane(self._disk.lane("console"))
        self.workplace = Workplace(config, self.logs, self.console, self._disk, self.post)
        self._journal_lane = self._disk.lane("journal", str(self.logs.root or ""))
        if config.event_log_handler == "console":
            echo = self._echo
        self._journal = Journal(self.logs.journal, self._header(), echo, self._write_journal)
        self._contact = self._make_contact(secrets or Secrets())

    def _make_contact(self, secrets: Secrets) -> Contact:
        owner = Owner(
            config=self.config,
            loop=self._loop,
            node=self.node,
            post=self.post,
            say=self._say,
            journal=self._journal,
            disk=self._disk,
            on_tether=self.workplace.hold_tether,
            share_tethers=self.workplace.share_tethers,
        )
        if self.config.max_nodes == 1:
            return LocalContact(owner)
        if self.config.rendezvous.is_embedded:
            return NetworkContact(owner, secrets.token)
        from holdfast.agent.register_contact import RegisterContact

        return RegisterContact(owner, secrets)

    def run(self, spawner: SpawnerProcess, started: AgentStarted) -> Outcome:
        """Live through the job. Whatever happens, nothing is left behind."""
        linux.set_subreaper()
        self.workplace.open(spawner, self._loop)
        for name in self.config.signals:
            number = signal.Signals[name]
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # Started by `nohup`: it is to go on without its terminal.
            self._loop.add_signal_handler(number, self.post, SignalReceived(number))
        try:
            self.post(started)
            self._loop.run_until(lambda: self._outcome is not None)
        finally:
            self.workplace.close()
        self._contact.leave()
        # The coordinator's host leaves last: the others learn the outcome from it.
        self._loop.run_until(lambda: self._hurried or not self._contact.is_needed)
        self._contact.close()
        assert self._outcome is not None
        self._take_leave(self._outcome)
        return self._outcome

    def post(self, event: AgentEvent) -> None:
        """Take an event, after those that came before it."""
        if self._outcome is not None and isinstance(event, SignalReceived):
            self._hurried = True
        self._inbox.put(event)

    def _take(self, event: AgentEvent) -> None:
        now = linux.now()
        effects = agent.step(self._agent, event, now)
        self._journal.agent(now, event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case ReserveEndpoint():
                self.workplace.reserve_endpoint(effect.store)
            case StartZygote():
                self.workplace.start_zygote(effect)
            case Remember():
                self.workplace.remember(effect)
            case KillZygote():
                self.workplace.kill_zygote()
            case DropZygote():
                self.workplace.drop_zygote()
            case StartWorkers():
                self.workplace.start_workers(effect)
            case SignalWorkers():
                self.workplace.signal_workers(effect.signal, effect.local_ranks)
            case KillEverything():
                self.workplace.kill_everything()
            case ListStuck():
                self.workplace.list_stuck()
            case EndSpawner():
                self.workplace.end_spawner()
            case KillSpawner():
                self.workplace.kill_spawner()
            case WakeAgent():
                self._wake(effect.name, effect.after_s, AgentTimerFired(effect.name))
            case Dial():
                self._contact.dial()
            case HangUp():
                self._contact.hang_up()
            case HoldLease():
                self.workplace.hold_lease(effect)
            case Report():
                self._contact.send(effect.message)
            case Say():
                self._say(effect.text)
            case Finish():
                self._outcome = effect.outcome

    def _wake(self, name: str, after_s: float, event: AgentEvent) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(after_s, self.post, event)

    def _echo(self, line: bytes) -> None:
        self.console.write(2, line)

    def _say(self, text: str) -> None:
        """Much of what is said comes from other machines: it stays one line of ours."""
        self.console.write(2, f"holdfast: {clean(text)}\n".encode("utf-8", "replace"))

    def _write_journal(
        self, work: Callable[[], str | None], then: Callable[[str], None], size: int
    ) -> None:
        def tell(problem: str) -> None:
            if not self._journal.problem:
                self._say(f"the journal ends here, and the job goes on: {problem}")
            then(problem)

        if self._journal_lane.waiting_bytes + size > JOURNAL_WAITING_BYTES:
            tell("its disk has not answered for too long")
        else:
            self._journal_lane.do(work, tell, size)

    def _take_leave(self, outcome: Outcome) -> None:
        """Report, pass the cause up, and leave no file that tells nothing."""
        for timer in self._timers.values():
            timer.cancel()
        self._journal.close()
        where = str(self.logs.journal) if self.logs.journal else None
        # Of several nodes each says how the job ended: nobody looks at all of them.
        quiet = self.config.max_nodes == 1
        report = render(outcome, recoveries(self._journal.steps), where, quiet)
        if self._print_report:
            self.console.write(2, report.encode("utf-8", "replace"))
        self._finish_files(outcome)
        self._loop.run_until(self._console_done(CONSOLE_PATIENCE_S))
        self.console.close()
        self._disk.close()
        # The outcome stands: a signal that comes before we have ended must not become our status.
        self._loop.close(then=signal.SIG_IGN)

    def _finish_files(self, outcome: Outcome) -> None:
        """Wait for what is not written yet; a signal ends the wait."""
        files = self.workplace.file_lane
        cause, upwards = outcome.cause, os.environ.get("TORCHELASTIC_ERROR_FILE")
        if cause is not None:
            files.do(lambda: failures.pass_up(cause, upwards) or None, self._say)
        self._hurried = False
        self._wait_for_disks()
        if outcome.verdict == "succeeded" and self.logs.temporary and not self._hurried:
            files.do(self.logs.remove_if_untouched)
            self._wait_for_disks()

    def _wait_for_disks(self) -> None:
        all_done = self._disk.all_done()
        self._loop.run_until(lambda: self._hurried or all_done())

    def _console_done(self, patience_s: float) -> Callable[[], bool]:
        """All that was written is out, or whoever should read it has not for too long."""
        given_up: list[bool] = []
        self._loop.call_later(patience_s, given_up.append, True)
        return lambda: bool(given_up) or not self.console.pending()

    def _header(self) -> Header:
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return Header(SCHEMA, self.config.run_id, self.node, self.host, started, self.config)
