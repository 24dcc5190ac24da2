"""The agent of `holdfast run`: an engine with the real world behind its ports.

Nothing on the loop waits for a disk or a name server: heartbeats go out on it. See `runtime.disk`.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.admin.server import AdminServer
from holdfast.agent import sentences
from holdfast.agent.console_messages import ClosingLine, ConsoleMessages, EventMessages
from holdfast.agent.progress import JobProgress
from holdfast.core.node_io import NodeEvent, NodeStarted, SignalReceived
from holdfast.core.policy.config import JobConfig
from holdfast.core.policy.signals import LastSignal, is_repeat
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.model import Outcome
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Ports
from holdfast.engine.secrets import Secrets
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import SCHEMA, Journal, JournalHeader, Step, read_clocks
from holdfast.observe.report import render
from holdfast.processes import failures
from holdfast.processes.output import run_folders
from holdfast.processes.output.console import Console
from holdfast.processes.output.run_folders import JobLogs, create_job_logs
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import linux
from holdfast.processes.supervisor import NodeSupervisor
from holdfast.runtime import descriptors, failing
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop

if TYPE_CHECKING:
    from holdfast.admin.dashboard import AgentDashboard
    from holdfast.agent.health_port import HealthPort
    from holdfast.agent.live_line import LiveLine
    from holdfast.agent.trace_export import TraceExport
    from holdfast.observe.summary import Summary
    from holdfast.transport.http_model import HttpResponse

CONSOLE_PATIENCE_S = 10.0
"""The wait, at the end, for a reader of our output that does not read."""
WATCHED_AFTER_S = 60.0
"""When the agent says by what workers are watched for hangs."""
JOURNAL_LAST_S = 2.0
"""The wait of a node that has failed for its journal."""
JOURNAL_WAITING_BYTES = 32 << 20
"""How much of the journal waits in memory for its disk; then it ends."""


def _messages(config: JobConfig, console: Console, node: str) -> ConsoleMessages:
    output = config.output
    tells = output.quiet or output.verbose or output.json
    return (EventMessages if tells else ConsoleMessages)(output, console, node)


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
        self._hurried = False
        """A signal came when all that was left was to wait for others."""
        self._last_signal: LastSignal | None = None
        self.console = Console(loop)
        self._messages = _messages(config, self.console, self.node)
        self.logs: JobLogs = create_job_logs(config.output.log_dir, config.run_id, self.host)
        self._kept = run_folders.keep(self.logs)
        self._disk = Disk(loop, self._messages.complain)
        self.console.use_lane(self._disk.lane("console"))
        self.supervisor = NodeSupervisor(config, self.logs, self.console, self._disk, self.post)
        self._journal_lane = self._disk.lane("journal", str(self.logs.root or ""))
        if config.event_log_handler == "console":
            echo = self._echo
        self._journal = Journal(
            self.logs.journal,
            self._header(),
            echo,
            self._write_journal,
            clocks=partial(read_clocks, loop.now),
        )
        self._messages.listen_to(self._journal)
        self._history = LiveHistory(self._journal.header)
        self._journal.listeners.append(self._follow)
        self._progress = self._follow_progress()
        if config.output.outcome_file:
            self._write_outcome_to(config.output.outcome_file)
        self._live_line = self._show_live_line() if print_report else None
        self._admin = AdminServer(loop, self._disk, self.supervisor, self._journal, self._history)
        self._engine = Engine(config, self.node, self.host, self._ports(secrets or Secrets()))
        self._admin.engine = self._engine
        self._dashboard: AgentDashboard | None = None
        self._health: HealthPort | None = None
        self._traces: TraceExport | None = None

    def _ports(self, secrets: Secrets) -> Ports:
        ports = Ports(
            clock=self._loop,
            processes=self.supervisor,
            journal=self._journal,
            say=self._messages.say,
            answer=self._admin.answer,
        )
        if self.config.max_nodes > 1:
            from holdfast.engine.network import Means, add_network

            means = Means(self._loop, self._disk, secrets)
            add_network(ports, self.config, self.node, means, self._admin)
        return ports

    def run(self, spawner: SpawnerProcess, started: NodeStarted) -> Outcome:
        """Live through the job. Whatever happens, nothing is left behind.

        What is raised here has ended this node: the process must end, too (`runtime.failing`).
        """
        try:
            return self._live(spawner, started)
        except BaseException as error:
            self._break_off(error, spawner)
            raise

    def _break_off(self, error: BaseException, spawner: SpawnerProcess) -> None:
        """The loop does not turn any more. Say why in the journal, and end all that is below."""
        failing.end_within(failing.LAST_S)
        let_go = (
            partial(self._journal.agent_failed, self._loop.now(), failing.words_of(error)),
            partial(self._journal_lane.flush, JOURNAL_LAST_S),
            self.supervisor.close,
            self._close_live_line,
            spawner.drop,  # It kills them, and ends when nothing is left.
        )
        failing.attempt(error, let_go)
        failing.go_on()

    def _close_live_line(self) -> None:
        if self._live_line is not None:
            self._live_line.close()

    def _live(self, spawner: SpawnerProcess, started: NodeStarted) -> Outcome:
        linux.set_subreaper()
        descriptors.provide(self.config.slots, self.config.max_nodes)
        self.supervisor.open(spawner, self._loop)
        if self.config.max_nodes > 1:  # A single node has no others that would wait for its lock.
            self.supervisor.keep_lock(self._disk, self.node)
            started = replace(started, locks=True)
        for name in self.config.caught_signals:
            number = signal.Signals[name]
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # Started by `nohup`: it is to go on without its terminal.
            self._loop.add_signal_handler(number, self.post, SignalReceived(number))
        if self.config.dashboard.port is not None:
            self._open_dashboard()
        self._open_health_port()
        self._open_traces()
        output = self.config.output
        if self.logs.temporary is not None and (output.redirects or output.redirects_default):
            self._messages.say(sentences.output_in_files(self.logs.root))
        if self.config.oversight.hang == "restart" and self._print_report:
            if self.config.program.kind == "command":
                self._messages.say(sentences.NOT_WATCHED)
            else:
                self._loop.call_later(WATCHED_AFTER_S, self._tell_what_is_watched)
        self.post(started)
        self._keep_journal_up()
        self._loop.run_until(lambda: self._engine.outcome is not None)
        known = self._progress.close()
        self.supervisor.close()
        self._close_live_line()
        outcome = self._engine.outcome
        assert outcome is not None, "the loop ended before the job"
        self._engine.leave()
        # The coordinator's host leaves last: the others learn the outcome from it.
        self._loop.run_until(lambda: self._hurried or not self._engine.is_needed)
        if self._dashboard is not None:
            self._dashboard.close(outcome)
        self._admin.close()
        self._engine.close()
        self._take_leave(outcome, known)
        return outcome

    def _open_dashboard(self) -> None:
        """Open the dashboard; its modules are loaded beside the loop, while the workers start."""

        def load() -> Mapping[str, HttpResponse]:
            from holdfast.admin import dashboard

            return dashboard.load()

        def then(files: Mapping[str, HttpResponse]) -> None:
            if self._engine.outcome is not None:
                return  # The job was shorter than that.
            from holdfast.admin.dashboard import AgentDashboard

            self._dashboard = AgentDashboard(
                self._engine, self._loop, self._messages.say, self._admin.answer
            )
            self._admin.dashboard = self._dashboard
            self._dashboard.open(self.config.dashboard, files)

        self._disk.lane("dashboard").do(load, then)

    def _write_outcome_to(self, path: str) -> None:
        from holdfast.agent.outcome_file import OutcomeFile

        file = OutcomeFile(path, self._disk.lane("outcome", path), self._messages.complain)
        self._journal.listeners.append(file.feed)

    def _open_health_port(self) -> None:
        if self.config.health.port is None:
            return
        from holdfast.agent.health_port import HealthPort

        self._health = HealthPort(
            self._engine, self.supervisor.worker_progress, self._loop, self._history
        )
        self._health.open(self.config.health, self._journal)

    def _open_traces(self) -> None:
        if self.config.otel:
            from holdfast.agent.trace_export import TraceExport

            lane = self._disk.lane("traces")
            self._traces = TraceExport(self._journal, lane, self._messages.complain)

    def post(self, event: NodeEvent) -> None:
        """Take an event, after those that came before it."""
        if isinstance(event, SignalReceived):
            self._note_signal(event.signal)
        self._engine.post(event)

    def _note_signal(self, number: int) -> None:
        now = self._loop.now()
        if is_repeat(number, now, self._last_signal):
            return
        self._last_signal = LastSignal(number, now)
        if self._engine.outcome is not None:
            self._hurried = True

    def _keep_journal_up(self) -> None:
        """However this agent ends: its journal tells until when it lived."""
        now = self._loop.now()
        if self._engine.outcome is None:
            self._loop.call_later(self._journal.keep_up(now) - now, self._keep_journal_up)

    def _tell_what_is_watched(self) -> None:
        """By what a hang would be noticed."""
        watched = self.supervisor.watched_by()
        if self._engine.outcome is None and watched != "steps":
            self._messages.say(sentences.WATCHED_BY_SIGNS if watched else sentences.NOT_WATCHED)

    def _echo(self, line: bytes) -> None:
        self.console.write(2, line)

    def _follow_progress(self) -> JobProgress:
        wanted = self._print_report and not self.config.output.quiet
        seen = self.console.outlet(2).is_terminal
        say = self._messages.say if wanted and not seen else None
        progress = JobProgress(self._loop, self._history, self._coordinates, say)
        progress.load(self._disk)
        self._journal.listeners.append(progress.take)
        return progress

    def _coordinates(self) -> bool:
        return self._engine.link.coordinating is not None

    def _follow(self, step: Step) -> None:
        recoveries = self._history.history.recoveries
        known = len(recoveries)
        self._history.feed(step)
        for recovery in recoveries[known:]:
            if self._print_report and self._coordinates():
                self._messages.recovered(recovery)

    def _show_live_line(self) -> LiveLine | None:
        """Show the live line below all output, where there is a terminal."""
        if not self.console.outlet(2).is_terminal:
            return None
        from holdfast.agent.live_line import LiveLine, is_wanted

        if not is_wanted(self.config, self.console, os.environ):
            return None
        return LiveLine(self._history, self.console, self._loop, self._disk)

    def _write_journal(
        self, work: Callable[[], str | None], then: Callable[[str], None], size: int
    ) -> None:
        def tell(problem: str) -> None:
            if not self._journal.problem:
                self._messages.complain(f"the journal ends here, and the job goes on: {problem}")
            then(problem)

        if self._journal_lane.waiting_bytes + size > JOURNAL_WAITING_BYTES:
            tell("its disk has not answered for too long")
        else:
            self._journal_lane.do(work, tell, size)

    def _take_leave(self, outcome: Outcome, known: Summary) -> None:
        """Report, pass the cause up, and leave no file that tells nothing."""
        self._journal.close()
        where = str(self.logs.journal) if self.logs.journal else None
        if self._print_report:
            self._messages.report(render(outcome, where), self._closing_line(outcome, known, where))
        if self._traces is not None:
            self._traces.finish(outcome)
        self._finish_files(outcome, known)
        if self._traces is not None:
            self._traces.say_if_given_up()
        self._loop.run_until(self._console_done(CONSOLE_PATIENCE_S))
        if self._health is not None:
            self._health.close()
        self.console.close()
        self._disk.close()
        # The outcome stands: a signal that comes before we have ended must not become our status.
        self._loop.close(then=signal.SIG_IGN)

    def _closing_line(self, outcome: Outcome, known: Summary, where: str | None) -> ClosingLine:
        from holdfast.observe.summary import as_event, closing

        kept = where is not None and not self._journal.problem
        words = closing(outcome, known, self.config.run_id if kept else "")
        return ClosingLine(words, as_event(outcome, known, where or ""))

    def _finish_files(self, outcome: Outcome, known: Summary) -> None:
        """Wait for what is not written yet; a signal ends the wait.

        The journals of the last runs are kept, but for a temporary one that was not shown.
        """
        files = self.supervisor.file_lane
        cause, upwards = outcome.cause, os.environ.get("TORCHELASTIC_ERROR_FILE")
        if cause is not None:
            files.do(lambda: failures.pass_up(cause, upwards) or None, self._messages.complain)
        self._hurried = False
        self._wait_for_disks()
        if self._kept is None or self._hurried:
            return
        tells_nothing = outcome.verdict == "succeeded" and not self._history.history.recoveries
        if tells_nothing and not self._print_report:
            files.do(self._kept.remove_if_untouched)
        else:
            last = self.supervisor.recent.the_last()
            files.do(partial(self._kept.end, self._record(outcome, known), last))
        self._wait_for_disks()

    def _record(self, outcome: Outcome, known: Summary) -> run_folders.RunRecord:
        last = self._engine.state.assignment
        return run_folders.RunRecord(
            job=self.config.run_id,
            node=self.node,
            host=self.host,
            started=time.time() - known.seconds,
            seconds=known.seconds,
            verdict=outcome.verdict,
            reason=outcome.reason,
            exit_status=outcome.exit_status,
            nodes=last.group_size if last is not None else 0,
            ranks=last.world_size if last is not None else 0,
            restarts=last.restart_count if last is not None else 0,
            steps=known.steps,
            goodput=known.goodput,
        )

    def _wait_for_disks(self) -> None:
        all_done = self._disk.all_done()
        self._loop.run_until(lambda: self._hurried or all_done())

    def _console_done(self, patience_s: float) -> Callable[[], bool]:
        """All that was written is out, or its reader has not read for too long."""
        given_up: list[bool] = []
        self._loop.call_later(patience_s, given_up.append, True)
        return lambda: bool(given_up) or not self.console.pending()

    def _header(self) -> JournalHeader:
        clock = read_clocks(self._loop.now)
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(clock.wall))
        job = self.config.run_id
        return JournalHeader(SCHEMA, job, self.node, self.host, started, self.config, clock)
