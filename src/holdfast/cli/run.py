"""`holdfast run`: parse, start the spawner, live through the job, exit with its status."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys

from holdfast.core.protocol import exit_status
from holdfast.processes.own_environment import take_secrets
from holdfast.processes.spawner_process import SpawnerProcess, fill_standard_streams, start_spawner

TYPE_CHECKING = False  # As in `typing`, which the spawner's start does not wait for.
if TYPE_CHECKING:
    from holdfast.core.node_io import NodeStarted
    from holdfast.core.policy.config import JobConfig
    from holdfast.engine.secrets import Secrets
    from holdfast.observe.event_handlers import EventLog
    from holdfast.processes.output.stream_plans import Layout

EXHAUSTED = (errno.EMFILE, errno.ENFILE)
"""Too many open files: each worker takes a few descriptors of the agent."""
COLD = ("--no-warm", "--no_warm", "--no-python", "--no_python")
"""Only a first guess, before the options are parsed: a needless zygote is dropped."""


def run(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    if any(word in ("-h", "--help") for word in words[:1]):
        return _print_help()
    fill_standard_streams()
    secrets = take_secrets()  # Processes started from here on must not find them.
    spawner = start_spawner(zygote=not any(word in COLD for word in words))
    # Imported while the spawner's interpreter starts: these take most of our own start. None of it
    # is garbage, and collecting again and again would take a tenth of that time.
    gc.disable()
    from holdfast.cli.light_imports import import_lightly

    import_lightly()
    from holdfast.cli import options
    from holdfast.core.protocol.errors import UsageError

    try:
        return _run_job(words, spawner, secrets)
    except options.CompletionRequested as asked:
        return _print_completion(asked.shell)
    except options.HelpRequested:
        return _print_help()
    except UsageError as error:
        from holdfast.cli.verbs import say_mistake

        return say_mistake(error)
    except KeyboardInterrupt:
        return exit_status.BY_SIGNAL + signal.SIGINT
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
        from holdfast.cli.sentences import out_of_descriptors

        problem, hint = out_of_descriptors(os.strerror(error.errno))
        print(f"holdfast: {problem}\nhint: {hint}", file=sys.stderr)
        return exit_status.FAILED
    finally:
        gc.enable()
        spawner.socket.close()


def _run_job(words: list[str], spawner: SpawnerProcess, secret: dict[str, str]) -> int:
    """`secret` are the variables that were removed from the environment."""
    from holdfast.cli import options, sentences
    from holdfast.cli.program import check_program

    parsed = options.parse_run(words, os.environ)
    config = parsed.config
    check_program(config.program)
    if config.otel:
        _check_otel()
    for note in parsed.notes:
        _print_note(config, note)
    if config.dashboard.port is not None:
        _print_about_dashboard(config)
    if config.max_nodes > 1:
        _print_about_several_nodes(config, secret)
    from holdfast.agent.agent import Agent
    from holdfast.processes.commands import how_to_start
    from holdfast.processes.stdlib_only import linux
    from holdfast.runtime.loop import EventLoop

    if config.slots > 1 and "OMP_NUM_THREADS" not in os.environ:
        _print_note(config, sentences.DEFAULT_OMP_THREADS)
    started = how_to_start(config)
    layout, events = _registered_layout(config), _registered_events(config)
    echo = events.take if events else None
    unfit = _why_unfit(config) if config.check else ""
    if unfit:
        if config.max_nodes == 1:
            print(f"holdfast: {sentences.unfit_node(unfit)}", file=sys.stderr)
            return exit_status.UNFIT
        config, started = _staying_out(config, unfit)
    loop, secrets = EventLoop(linux.boot_timer()), secrets_of(config, secret)
    agent = Agent(config, loop, secrets=secrets, print_report=not unfit, echo=echo)
    gc.freeze()
    gc.enable()
    if layout:
        agent.supervisor.layout = layout
    try:
        outcome = agent.run(spawner, started)
        return exit_status.of_node(outcome.exit_status, outcome.asked, parsed.scheduler)
    finally:
        if events:
            events.close()


def _why_unfit(config: JobConfig) -> str:
    """Check this node, as `--check` requests; return why it must not join, if so."""
    from holdfast.doctor.before_joining import examine

    found = examine(config, os.environ)
    for warning in found.warnings:
        print(f"holdfast: check: {warning}", file=sys.stderr)
    return found.problem


def _staying_out(config: JobConfig, reason: str) -> tuple[JobConfig, NodeStarted]:
    """The node tells the coordinator and leaves; it is no host, which the others would need."""
    from msgspec.structs import replace

    from holdfast.core.node_io import NodeStarted

    return replace(config, is_host=False), NodeStarted(unfit=reason)


def _check_otel() -> None:
    """Tracing needs packages that do not come with Holdfast."""
    from importlib.util import find_spec

    from holdfast.core.protocol.errors import UsageError

    # One by one: finding a module inside of a package imports the package.
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise UsageError("--otel: OpenTelemetry is not installed", "pip install 'holdfast[otel]'")


def _registered_layout(config: JobConfig) -> Layout | None:
    """The workers' output folders, if a registered class chooses them."""
    if config.logs_specs is None:
        return None
    from holdfast.processes.output.registered_logs import registered_layout

    return registered_layout(config).begin


def _registered_events(config: JobConfig) -> EventLog | None:
    """The handler of every event, if another package registered it."""
    from holdfast.cli.table import EVENT_HANDLERS

    if config.event_log_handler in EVENT_HANDLERS:
        return None
    from holdfast.observe.event_handlers import open_event_log

    return open_event_log(config.event_log_handler)


def secrets_of(config: JobConfig, secret: dict[str, str]) -> Secrets | None:
    """A job of one node needs no secrets, and does not wait for the modules that read them."""
    if config.max_nodes == 1:
        return None
    from holdfast.engine.secrets import read_secrets

    environ = {**os.environ, **secret}
    return read_secrets(config.security.token_file, config.rendezvous.options, environ)


def _print_about_several_nodes(config: JobConfig, secret: dict[str, str]) -> None:
    """How long each loss takes at worst, and notes on the job's protection."""
    from holdfast.cli.token_notes import security_notes
    from holdfast.core.policy import timing

    notes = security_notes(config, {**os.environ, **secret})
    for line in (*notes, *timing.describe(config)):
        _print_note(config, line)


def _print_about_dashboard(config: JobConfig) -> None:
    from holdfast.cli.token_notes import dashboard_notes

    for note in dashboard_notes(config):
        _print_note(config, note)


def _print_note(config: JobConfig, note: str) -> None:
    """A note for the user before the job starts."""
    from holdfast.processes.output.console import own_line

    if not config.output.quiet:
        print(own_line(config.output, note), end="", file=sys.stderr)


def _print_help() -> int:
    import shutil

    from holdfast.cli.help import render_run_help
    from holdfast.cli.verbs import ending_of

    width = min(shutil.get_terminal_size().columns, 100)
    text = render_run_help(width, color=sys.stdout.isatty())
    return ending_of(lambda: print(text, end=""))


def _print_completion(shell: str) -> int:
    from holdfast.cli.completion import script
    from holdfast.cli.verbs import ending_of

    return ending_of(lambda: print(script(shell), end=""))
