"""What `holdfast run` says to a command line that it cannot accept."""

from __future__ import annotations

import pytest

from holdfast.cli.options import parse_run
from holdfast.core.protocol.errors import UsageError

pytestmark = pytest.mark.usefixtures("plugins")


def refusal(*words: str, **environ: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_run(words, environ)
    return caught.value


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ((), "nothing to run", "holdfast run train.py"),
        (("",), "program is empty", "variable"),
        (("--nporc-per-node", "2", "x"), "no option --nporc-per-node", "--nproc-per-node?"),
        (("--nproc-pre-node=2", "x"), "no option --nproc-pre-node", "--nproc-per-node?"),
        (("--max=2", "--t=1", "x"), "--t is short for several", "--tls-key or --tls-ca"),
        (("--n", "2", "x"), "--n is short for several", "--nproc-per-node, --nnodes, "),
        (("--zzz", "x"), "no option --zzz", "--help lists"),
        (("-z", "x"), "no option -z", "--help lists"),
        (("-mpackage", "x"), "no option -mpackage", "-"),
        (("-=3", "x"), "no option -", "--help lists"),
        (("--max-restarts",), "--max-restarts needs a value", "--max-restarts=N"),
        (("--log_dir", "--tee", "3", "x"), "--log_dir needs a value", "--log_dir=DIR"),
        (("-r",), "-r needs a value", "-r=WHICH"),
        (("--max-restarts", "three", "x"), "--max-restarts: 'three' is not a whole", "0 or more"),
        (("--max-restarts", "-1", "x"), "--max-restarts: -1 is out of range", "0 or more"),
        (("--max-restarts", "1.5", "x"), "'1.5' is not a whole number", "0 or more"),
        (("--nproc-per-node", "four", "x"), "'four' is not a number of workers", "auto"),
        (("--nproc-per-node", "", "x"), "'' is not a number of workers", "auto"),
        (("--nproc-per-node", "0", "x"), "0 workers cannot", "positive"),
        (("--nproc-per-node", "9" * 99, "x"), "cannot be started", "positive"),
        (("--nnodes", "2:1", "x"), "'2:1' has the larger number first", "smaller one first"),
        (("--nnodes", "0", "x"), "0 is not a number of nodes", "at least 1"),
        (("--nnodes", "1:2:3", "x"), "neither N nor MIN:MAX", "1:4"),
        (("--nnodes", "2", "x"), "2 nodes need a place to meet", "--rdzv-endpoint HOST:29400"),
        (("--nnodes=2", "--rdzv-endpoint=a:0", "x"), "port 0 picks", "29400"),
        (("--rdzv-endpoint", "a:b", "x"), "--rdzv-endpoint: 'b' is not a port", "0 to 65535"),
        (("--rdzv-endpoint", "a:65536", "x"), "'65536' is not a port", "0 to 65535"),
        (("--rdzv-endpoint", "::1", "x"), "too many colons", "[::1]"),
        (("--rdzv-endpoint", "a:1:2", "x"), "too many colons", "HOST:PORT"),
        (("--rdzv-endpoint", "[a]:1", "x"), "'[a]' is not a host", "IPv6"),
        (("--rdzv-endpoint", "tcp://a:1", "x"), "'tcp://a:1'", "HOST:PORT only"),
        (("--rdzv-endpoint", "a b", "x"), "'a b' is not a host", "host name"),
        (("--rdzv-endpoint", ":1", "x"), "'' is not a host", "host name"),
        (("--rdzv-backend", "etdc", "x"), "no backend 'etdc'", "did you mean etcd?"),
        (("--rdzv-backend", "quorum", "x"), "no backend 'quorum'", "blackboard"),
        (("--rdzv-backend", "carrier-pigeon", "x"), "for torchrun", "holdfast.registers"),
        (("--rdzv-backend=file", "x"), "needs a path", "--rdzv-endpoint /"),
        (("--rdzv-backend=static", "--nnodes=1:2", "x"), "fixed number", "--nnodes 2"),
        (("--nnodes=2", "--node-rank=2", "x"), "--node-rank 2 is too high", "from 0 to 1"),
        (("--rdzv-conf", "jion_timeout=3", "x"), "no setting 'jion_timeout'", "join_timeout"),
        (("--rdzv-conf", "timeout", "x"), "'timeout' is not key=value", "key=value"),
        (("--rdzv-conf", "timeout=soon", "x"), "--rdzv-conf timeout: 'soon'", "seconds"),
        (("--rdzv-conf", "is_host=maybe", "x"), "is_host: 'maybe' is neither", "1 or 0"),
        (("--rdzv-conf", "store_type=ram", "x"), "store_type: 'ram'", "tcp or file"),
        (("--nproc-per-node=1025", "x"), "1025 workers on one node", "at most that many"),
        (("--role=a\nb", "x"), "the role's name cannot be shown", "printable"),
        (("--nnodes=2", "--master-addr=a b", "x"), "'a b' is not a host", "host"),
        (("--rdzv-id", "a/b", "x"), "--rdzv-id: 'a/b' cannot name a job", "no /"),
        (("--rdzv-id", "n" * 300, "x"), "too long", "200"),
        (("--rdzv-id", "", "x"), "--rdzv-id: the value is empty", "leave the option out"),
        (("--standalone", "--nnodes=2", "x"), "--nnodes asks for 2", "leave one"),
        (("--standalone=maybe", "x"), "--standalone: 'maybe'", "1 or 0"),
        (("--monitor-interval", "0", "x"), "must be more than 0", "30 or 2.5"),
        (("--shutdown-timeout", "-1", "x"), "-1 is too short: it must be 0 or more", "30 or 2.5"),
        (("--shutdown-timeout", "nan", "x"), "'nan' is not a length of time", "30 or 2.5"),
        (("--shutdown-timeout", "1e99", "x"), "'1e99' is not a length of time", "30 or 2.5"),
        (("--shutdown-timeout", "5s", "x"), "'5s' is not a number of seconds", "30 or 2.5"),
        (
            ("--start-method", "thread", "x"),
            "'thread' is not one of the choices",
            "fork or forkserver",
        ),
        (("--numa-binding", "near", "x"), "'near' is not one of the choices", "core-complex"),
        (("--role", "", "x"), "--role: the value is empty", "leave"),
        (("--redirects", "4", "x"), "--redirects: '4' does not say which streams", "3 both"),
        (("-tx=1", "x"), "-t: 'x=1' does not say which streams", "0:3,1:2"),
        (("--tee", "0:4", "x"), "--tee: '0:4' does not say which streams", "0:3,1:2"),
        (("--tee", "a:1", "x"), "'a:1' does not say which streams", "0:3,1:2"),
        (("--tee", "0:1,", "x"), "'0:1,' does not say which streams", "0:3,1:2"),
        (("--local-ranks-filter", "0,-1", "x"), "not a list of local ranks", "0,2,3"),
        (("--signals-to-handle", "SIGTREM", "x"), "no signal 'SIGTREM'", "mean SIGTERM?"),
        (("--signals-to-handle", "", "x"), "no signal ''", ""),
        (("--signals-to-handle", "SIGKILL", "x"), "SIGKILL cannot be caught", "leave it out"),
        (("--drain-signals", "SIGTREM", "x"), "no signal 'SIGTREM'", "mean SIGTERM?"),
        (("--drain-worker-signal", "USR1,USR2", "x"), "more than one signal", "such as USR1"),
        (("--notice", "30", "--shutdown-timeout", "40", "x"), "--notice", "lower one of them"),
        (("--signals-to-handle", "SIGCLD", "x"), "SIGCHLD is how the agent", "leave it out"),
        (("--master-addr", "a:b", "x"), "--master-addr: 'a:b' is not a host", "IPv6"),
        (("--master-port", "70000", "x"), "--master-port: 70000 is out of range", "65535"),
        (("--health-port", "80800", "x"), "--health-port: 80800 is out of range", "65535"),
        (("--health-port", "http", "x"), "--health-port: 'http' is not a whole number", "65535"),
        (("--health-host", "node1", "x"), "'node1' is not a numeric address", "10.0.0.5"),
        (("--node-rank", "-1", "x"), "--node-rank: -1 is out of range", "0 or more"),
        (("--event-log-handler", "nul", "x"), "no event handler 'nul'", "mean null?"),
        (("--logs-specs", "none", "x"), "no logs spec 'none'", "recorder"),
        (("--preload", "a b", "x"), "'a b' is not the name of a module", "numpy"),
        (("--preload", "a-b", "x"), "'a-b' is not the name of a module", "numpy"),
        (("--non-retryable-exit-codes", "0", "x"), "not the exit code of a failure", "1 to 255"),
        (("--non-retryable-exit-codes", "x", "x"), "not a list of exit codes", "3,4"),
        (("--restart-backoff", "90", "x"), "--restart-backoff 90 is above", "lower the first"),
        (("-m", "--no-python", "x"), "--module and --no-python cannot be used together", "use one"),
        (
            ("--run-path", "--no-python", "x"),
            "--no-python and --run-path cannot be used together",
            "use one",
        ),
        (("-m", "--run-path", "x"), "--module and --run-path cannot be used together", "use one"),
    ],
)
def test_a_mistake_is_told_with_a_hint(words: tuple[str, ...], message: str, hint: str) -> None:
    error = refusal(*words)
    assert message in error.message
    assert hint in error.hint
    assert "\n" not in error.message + error.hint


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    assert refusal("x", PET_MAX_RESTARTS="many").message == (
        "PET_MAX_RESTARTS in the environment: 'many' is not a whole number"
    )
    assert "HOLDFAST_STANDALONE" in refusal("x", HOLDFAST_STANDALONE="maybe").message
    older = refusal("x", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="soon").message
    assert older.startswith("TORCH_ELASTIC_SHUTDOWN_TIMEOUT in the environment")


def test_a_mistake_names_the_option_as_it_was_written() -> None:
    assert refusal("--max_restarts=x", "s").message.startswith("--max_restarts: ")
    assert refusal("-t9", "s").message.startswith("-t: ")


def test_all_known_settings_are_named_for_an_unknown_one() -> None:
    from holdfast.core.policy.rendezvous_settings import SETTINGS

    hint = refusal("--rdzv-conf", "x=1", "train.py").hint
    assert all(key in hint for key in SETTINGS)
