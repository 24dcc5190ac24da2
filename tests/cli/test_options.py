"""The command line of `holdfast run`: every row of the table, and who wins."""

from __future__ import annotations

import os
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import sentences
from holdfast.cli.options import HelpRequested, ParsedRun, parse_run
from holdfast.cli.table import BY_NAME, OPTIONS, UNCHANGED, Option
from holdfast.core.policy.config import DASHBOARD_PORT, DEFAULT_SIGNALS, JobConfig, Timeouts
from holdfast.core.protocol.errors import UsageError

pytestmark = pytest.mark.usefixtures("plugins")

PLACE = ("--rdzv-endpoint", "node0")

# One row for each option: a text, and what it makes of the fields that the option names.
SAMPLES: dict[str, tuple[str, tuple[object, ...]]] = {
    "nproc-per-node": ("4", (4,)),
    "nnodes": ("1:4", (1, 4)),
    "standalone": ("1", (True,)),
    "rdzv-endpoint": ("node0:1234", ("node0:1234",)),
    "rdzv-backend": ("etcd", ("etcd",)),
    "rdzv-conf": ("read_timeout=5,is_host=1", ({"read_timeout": "5", "is_host": "1"},)),
    "rdzv-id": ("night-run", ("night-run",)),
    "local-addr": ("10.0.0.7", ("10.0.0.7",)),
    "node-rank": ("3", (3,)),
    "role": ("trainer", ("trainer",)),
    "topology-key": ("rack7/host2", ("rack7/host2",)),
    "join-timeout": ("12.5", (12.5,)),
    "last-call": ("0", (0.0,)),
    "check": ("1", ("built in",)),
    "check-timeout": ("5", (5.0,)),
    "no-detect": ("1", ()),
    "module": ("1", ()),
    "no-python": ("1", ()),
    "run-path": ("1", ()),
    "virtual-local-rank": ("1", (True,)),
    "numa-binding": ("core-complex", ("core-complex",)),
    "keep-engine-variables": ("1", ()),
    "log-dir": ("/tmp/logs", ("/tmp/logs",)),
    "outcome-file": ("/tmp/outcome", ("/tmp/outcome",)),
    "redirects": ("0:3,12:1", (0, {0: 3, 12: 1})),
    "tee": ("2", (2, {})),
    "log-line-prefix-template": ("${hostname}: ", ("${hostname}: ",)),
    "local-ranks-filter": ("2,0", ((0, 2),)),
    "duplicate-stdout-filters": ("loss,a,,b", (("loss", "a,b"),)),
    "duplicate-stderr-filters": ("error", (("error",),)),
    "quiet": ("1", (True,)),
    "verbose": ("1", (True,)),
    "json": ("1", (True,)),
    "timestamps": ("1", (True,)),
    "max-restarts": ("3", (3,)),
    "shutdown-timeout": ("7.5", (7.5,)),
    "signals-to-handle": ("SIGTERM,sigusr1,USR2", (("SIGTERM", "SIGUSR1", "SIGUSR2"),)),
    "restart-window": ("3600", (3600.0,)),
    "restart-backoff": ("0.5", (0.5,)),
    "restart-backoff-max": ("5", (5.0,)),
    "same-cause-limit": ("0", (0,)),
    "quarantine-after": ("2", (2,)),
    "quarantine-time": ("60", (60.0,)),
    "progress-after": ("20", (20.0,)),
    "non-retryable-exit-codes": ("3,4", ((3, 4),)),
    "unkillable-timeout": ("2", (2.0,)),
    "hang": ("restart", ("restart",)),
    "hang-after": ("90", (90.0,)),
    "start-timeout": ("300", (300.0,)),
    "first-step-timeout": ("600", (600.0,)),
    "exit-timeout": ("90", (90.0,)),
    "straggler-after": ("30", (30.0,)),
    "run-timeout": ("86400", (86400.0,)),
    "file-timer": ("1", (True,)),
    "stuck-timeout": ("30", (30.0,)),
    "allow-chaos": ("1", (True,)),
    "no-stacks": ("1", (False,)),
    "lease": ("4", (4.0,)),
    "heartbeat": ("0.5", (0.5,)),
    "scale-up-delay": ("0", (0.0,)),
    "min-round-time": ("90", (90.0,)),
    "drain-timeout": ("3", (3.0,)),
    "drain-signals": ("TERM,usr1", (("SIGTERM", "SIGUSR1"),)),
    "drain-worker-signal": ("usr2", ("SIGUSR2",)),
    "save-timeout": ("12", (12.0,)),
    "notice": ("90", (90.0,)),
    "snapshot-dir": ("/var/lib/job", ("/var/lib/job",)),
    "token-file": ("/run/token", ("/run/token",)),
    "tls-cert": ("node.pem", ("node.pem",)),
    "tls-key": ("node.key", ("node.key",)),
    "tls-ca": ("ca.pem", ("ca.pem",)),
    "dashboard": ("9000", (9000,)),
    "dashboard-host": ("[::1]", ("::1",)),
    "health-port": ("8080", (8080,)),
    "health-host": ("[::1]", ("::1",)),
    "otel": ("1", (True,)),
    "no-warm": ("1", (False,)),
    "preload": ("numpy,torch.distributed", (("numpy", "torch.distributed"),)),
    "worker-store": ("1", (True,)),
    "preload-timeout": ("9", (9.0,)),
    "master-addr": ("[::1]", ("::1",)),
    "master-port": ("29501", (29501,)),
    "monitor-interval": ("5", (5.0,)),
    "start-method": ("fork", ("fork",)),
    "event-log-handler": ("console", ("console",)),
    "logs-specs": ("recorder", ("recorder",)),
}
COMPANIONS = {
    "nnodes": PLACE,
    "tls-cert": ("--tls-key", "node.key"),
    "tls-key": ("--tls-cert", "node.pem"),
}
"""What else must be on the command line for the option to make sense."""


def parse(*words: str, **environ: str) -> JobConfig:
    return parse_run((*words, "train.py"), environ).config


CONFIGURING = [option for option in OPTIONS if option.name != "print-completion"]
"""All but the one that prints something instead of running a job."""


def outcome(option: Option, config: JobConfig) -> tuple[object, ...]:
    return tuple(attrgetter(field)(config) for field in option.fields)


# --- every row ----------------------------------------------------------------------------


def test_every_option_has_a_sample() -> None:
    assert list(SAMPLES) == [option.name for option in CONFIGURING]


def test_every_sample_differs_from_the_default() -> None:
    for option in CONFIGURING:
        if option.fields:
            assert outcome(option, UNCHANGED) != SAMPLES[option.name][1], option.name


def spellings(option: Option, text: str) -> list[list[str]]:
    dashed, underscored = f"--{option.name}", f"--{option.name.replace('-', '_')}"
    mixed = dashed[:2] + dashed[2:].replace("-", "_", 1)
    names = [dashed, underscored, mixed]
    if option.short:
        names.append(f"-{option.short}")
    if option.is_flag:
        return [[name] for name in names] + [[f"{dashed}=1"]]
    glued = [[f"-{option.short}{text}"]] if option.short else []
    return [[name, text] for name in names] + [[f"{name}={text}"] for name in names] + glued


@pytest.mark.parametrize("option", CONFIGURING, ids=lambda option: option.name)
def test_every_spelling_of_an_option_means_the_same(option: Option) -> None:
    text, expected = SAMPLES[option.name]
    for words in spellings(option, text):
        config = parse(*words, *COMPANIONS.get(option.name, ()))
        assert outcome(option, config) == expected, words
        assert config.program.target == "train.py"


@pytest.mark.parametrize("option", CONFIGURING, ids=lambda option: option.name)
@pytest.mark.parametrize("prefix", ["HOLDFAST_", "PET_"])
def test_every_option_can_come_from_the_environment(option: Option, prefix: str) -> None:
    text, expected = SAMPLES[option.name]
    variable = prefix + option.name.upper().replace("-", "_")
    config = parse(*COMPANIONS.get(option.name, ()), **{variable: text})
    assert outcome(option, config) == expected


@pytest.mark.parametrize(
    ("flag", "kind"), [("module", "module"), ("no-python", "command"), ("run-path", "run_path")]
)
def test_a_flag_says_how_the_program_is_run(flag: str, kind: str) -> None:
    assert parse().program.kind == "script"
    assert parse(f"--{flag}").program.kind == kind
    assert parse(**{f"PET_{flag.upper().replace('-', '_')}": "1"}).program.kind == kind


def test_nothing_given_is_the_default_configuration() -> None:
    config = parse()
    assert config.program.interpreter == sys.executable
    assert config == JobConfig(run_id=config.run_id, program=config.program)


# --- who wins -----------------------------------------------------------------------------


def test_the_command_line_wins_over_holdfast_and_that_over_pet() -> None:
    environ = {"HOLDFAST_MAX_RESTARTS": "2", "PET_MAX_RESTARTS": "1"}
    assert parse("--max-restarts", "3", **environ).restarts.max_restarts == 3
    assert parse(**environ).restarts.max_restarts == 2
    assert parse(PET_MAX_RESTARTS="1").restarts.max_restarts == 1


@pytest.mark.parametrize(
    ("variable", "text", "field", "expected"),
    [
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "11", "timeouts.shutdown_s", 11.0),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "12", "oversight.stuck_s", 12.0),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1", "signals", ("SIGUSR1",)),
        ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${pid}", "output.prefix_template", "${pid}"),
    ],
)
def test_older_variables_come_last(variable: str, text: str, field: str, expected: object) -> None:
    option = next(option for option in OPTIONS if variable in option.also_from)
    pet = option.environment[1]
    assert attrgetter(field)(parse(**{variable: text})) == expected
    assert attrgetter(field)(parse(**{variable: text, pet: SAMPLES[option.name][0]})) != expected


def test_an_empty_variable_is_no_variable() -> None:
    assert parse(HOLDFAST_MAX_RESTARTS="", PET_MAX_RESTARTS="4").restarts.max_restarts == 4
    assert parse(PET_STANDALONE="").rendezvous.standalone is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("2", True), ("true", True), ("Yes", True), ("0", False), ("FALSE", False)],
)
def test_a_flag_in_the_environment_says_yes_or_no(text: str, expected: bool) -> None:
    assert parse(PET_VIRTUAL_LOCAL_RANK=text).virtual_local_rank is expected
    assert parse(PET_NO_WARM=text).warm.enabled is not expected


def test_a_flag_on_the_command_line_can_take_back_one_in_the_environment() -> None:
    assert parse("--no-warm=0", HOLDFAST_NO_WARM="1").warm.enabled
    assert parse("--no-warm", HOLDFAST_NO_WARM="0").warm.enabled is False


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (("-n", "4"), "slots", 4),
        (("-n4",), "slots", 4),
        (("--nproc", "4"), "slots", 4),
        (("--nproc_per=4",), "slots", 4),
        (("--max", "3"), "restarts.max_restarts", 3),
        (("--stand",), "rendezvous.standalone", True),
        (("--redirects", "3"), "output.redirects_default", 3),
    ],
)
def test_a_name_may_be_cut_short(words: tuple[str, ...], field: str, expected: object) -> None:
    assert attrgetter(field)(parse(*words)) == expected


def test_help_may_be_cut_short_too() -> None:
    with pytest.raises(HelpRequested):
        parse_run(["--hel", "train.py"], {})


def test_the_last_of_a_repeated_option_counts() -> None:
    assert parse("--max-restarts=1", "--max_restarts", "2").restarts.max_restarts == 2


# --- the program --------------------------------------------------------------------------


def test_everything_after_the_script_belongs_to_it() -> None:
    words = ("--nproc-per-node", "2", "train.py", "--max-restarts", "9", "-h", "--", "--help", "")
    config = parse_run(words, {}).config
    assert config.slots == 2
    assert config.restarts.max_restarts == 0
    assert config.program.arguments == ("--max-restarts", "9", "-h", "--", "--help", "")


def test_two_dashes_end_the_options() -> None:
    config = parse_run(("--no-python", "--", "--odd-name", "x"), {}).config
    assert (config.program.target, config.program.arguments) == ("--odd-name", ("x",))


def test_a_single_dash_is_a_program() -> None:
    assert parse_run(("-",), {}).config.program.target == "-"


def test_a_module_may_follow_its_flag_later() -> None:
    config = parse_run(("-m", "--nproc-per-node=2", "package.train", "-m"), {}).config
    assert config.program.kind == "module"
    assert config.program.target == "package.train"
    assert config.program.arguments == ("-m",)


def test_python_exec_replaces_the_interpreter() -> None:
    for flags in ((), ("-m",), ("--run-path",)):
        assert parse(*flags, PYTHON_EXEC="/opt/python").program.interpreter == "/opt/python"
    assert parse("--no-python", PYTHON_EXEC="/opt/python").program.interpreter == ""


def test_the_prefix_template_comes_from_the_environment() -> None:
    template = "[${role_name}${local_rank}]"
    config = parse("-t", "3", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template)
    assert config.output.prefix_template == template
    assert config.output.tee_default == 3


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_asked_for_before_the_script_only(word: str) -> None:
    with pytest.raises(HelpRequested):
        parse_run(("--max-restarts", "not checked yet", word), {})
    assert parse_run(("train.py", word), {}).config.program.arguments == (word,)


def test_a_run_without_a_name_gets_one_of_its_own() -> None:
    names = {parse_run(("dir/train.py",), {}).config.run_id for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"train-[0-9a-f]{8}", name) for name in names)
    assert parse_run(("-m", "a.b"), {}).config.run_id.startswith("b-")
    assert parse_run(("--no-python", "/"), {}).config.run_id.startswith("job-")


# --- workers ------------------------------------------------------------------------------


def test_a_plain_number_of_workers_needs_no_explanation() -> None:
    assert parse_run(("--nproc-per-node", "3", "train.py"), {}).notes == ()


@pytest.mark.parametrize("word", ["cpu", "auto"])
def test_counted_workers_are_explained(word: str) -> None:
    if word == "auto" and (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
        pytest.skip("this machine has an accelerator")
    parsed = parse_run(("--nproc-per-node", word, "train.py"), {})
    cpus = len(os.sched_getaffinity(0))
    assert parsed.config.slots == cpus
    assert parsed.notes[0].startswith(f"--nproc-per-node {word}: {cpus} worker")


def test_a_filter_that_shows_nobody_is_mentioned() -> None:
    parsed = parse_run(("--nproc-per-node=2", "--local-ranks-filter=2,5", "train.py"), {})
    assert parsed.notes == (sentences.nobody_shown(2),)
    parsed = parse_run(("--nproc-per-node=2", "--local-ranks-filter=1,5", "train.py"), {})
    assert parsed.notes == ()


def test_empty_lists_filter_nothing() -> None:
    config = parse(
        "--local-ranks-filter=", "--duplicate-stdout-filters=", "--rdzv-conf=", "--log-dir="
    )
    assert config == JobConfig(run_id=config.run_id, program=config.program)


# --- what other packages register -----------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ("--rdzv-backend", ("etcd", "blackboard")),
        ("--event-log-handler", ("null", "parchment")),
        ("--logs-specs", ("recorder",)),
    ],
)
def test_a_name_that_is_not_registered_is_answered_with_those_that_are(
    option: str, known: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        parse(option, "unheard-of")
    assert "'unheard-of'" in refused.value.message
    assert all(name in refused.value.hint for name in known)


def test_a_handler_for_torchrun_is_no_backend() -> None:
    with pytest.raises(UsageError) as refused:
        parse("--rdzv-backend=carrier-pigeon")
    assert "holdfast.registers" in refused.value.hint


def test_a_name_that_cannot_be_shown_is_refused() -> None:
    with pytest.raises(UsageError):
        parse("--role=a\nb")


# --- anything at all ----------------------------------------------------------------------

NAMES = [f"--{name}" for name in BY_NAME] + ["-m", "-r", "-t", "--", "-h", "train.py", "-"]
PLAIN = ["0", "-1", "1", "2:3", "0:3", "a=b", "a,b", ",,", "=", "auto", "gpu", "nan", "[::1]:5", ""]
words = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(PLAIN),
    st.text(max_size=8),
    st.builds("=".join, st.tuples(st.sampled_from(NAMES), st.text(max_size=6))),
)


@given(st.lists(words, max_size=8))
def test_any_words_are_a_job_or_a_usage_error(argv: list[str]) -> None:
    try:
        parsed = parse_run(argv, {})
    except (UsageError, HelpRequested):
        return
    assert isinstance(parsed, ParsedRun)


@given(st.sampled_from(OPTIONS), st.text(alphabet=st.characters(exclude_categories=())))
def test_any_value_is_accepted_or_a_usage_error(option: Option, text: str) -> None:
    try:
        parsed = parse_run([f"--{option.name}={text}", "train.py"], {})
    except UsageError:
        return
    assert parsed.config == parsed.config.validate()


def test_defaults_are_those_of_the_configuration() -> None:
    assert BY_NAME["shutdown-timeout"].default == f"{Timeouts().shutdown_s:g}"
    assert BY_NAME["signals-to-handle"].default == ",".join(DEFAULT_SIGNALS)
    assert BY_NAME["nproc-per-node"].default == "1"
    assert BY_NAME["max-restarts"].default == "0"
    assert BY_NAME["preload"].default == ""
    assert BY_NAME["no-warm"].default == ""
    assert BY_NAME["restart-window"].default == ""


def test_a_notice_brings_the_times_that_fit_into_it() -> None:
    times = parse_run(["--notice", "60", "--drain-timeout=7", "x"], {}).config.timeouts
    assert (times.notice_s, times.save_s, times.shutdown_s, times.drain_s) == (60, 40, 20, 7)
    times = parse_run(["--notice=60", "x"], {"HOLDFAST_SHUTDOWN_TIMEOUT": "10"}).config.timeouts
    assert (times.save_s, times.shutdown_s) == (50, 10)


@pytest.mark.parametrize(
    ("words", "caught"),
    [
        ((), ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")),
        (("--drain-signals=none",), ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")),
        (("--signals-to-handle=INT", "--drain-signals=TERM,USR1"), ("SIGINT", "SIGUSR1")),
        (("--signals-to-handle=USR1", "--drain-signals=none"), ("SIGUSR1",)),
    ],
)
def test_which_signals_the_agent_listens_to(
    words: tuple[str, ...], caught: tuple[str, ...]
) -> None:
    assert parse_run([*words, "x"], {}).config.caught_signals == caught


def test_no_signal_tells_workers_to_save_unless_one_is_named() -> None:
    assert parse_run(["x"], {}).config.drain_worker_signal is None
    assert parse_run(["--drain-worker-signal=none", "x"], {}).config.drain_worker_signal is None


# --- a value that may be left out ---------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (("--dashboard",), DASHBOARD_PORT),
        (("--dashboard", "9000"), 9000),
        (("--dashboard=0",), 0),
        (("--dashboard", "--standalone"), DASHBOARD_PORT),
        ((), None),
    ],
)
def test_a_dashboard_needs_no_port(words: tuple[str, ...], port: int | None) -> None:
    parsed = parse(*words)
    assert parsed.dashboard.port == port
    assert parsed.program.target == "train.py"


@pytest.mark.parametrize("word", ["--dashboard=65536", "--dashboard=x", "--dashboard-host=gpu-01"])
def test_a_dashboard_that_cannot_be_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--dashboard"):
        parse(word)
