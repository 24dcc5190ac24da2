"""The same words mean the same to `holdfast run` and to torchrun's own parser."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from holdfast.cli.options import parse_run
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import UsageError

from .. import torch_versions

pytestmark = pytest.mark.torch

PLACE = ("--rdzv-backend=c10d", "--rdzv-endpoint=node0:29401")
SAMPLES = [
    (),
    ("--nproc-per-node", "3"),
    ("--nproc_per_node=cpu",),
    ("--nnodes=2", *PLACE),
    ("--nnodes", "1:4", *PLACE),
    ("--standalone", "--nproc-per-node=2"),
    ("--max-restarts", "3", "--monitor_interval", "5", "--role=trainer"),
    ("-r", "3"),
    ("-r3", "-t1"),
    ("--redirects=0:1,1:2", "--tee=1:3", "--nproc-per-node=4"),
    ("--local-ranks-filter", "0,2", "--nproc-per-node=4"),
    ("--duplicate-stdout-filters", "apple,orange", "--duplicate-stderr-filters=a,,b,c"),
    ("--duplicate_stdout_filters=a,,,b",),
    ("--signals-to-handle", "SIGTERM,SIGUSR1"),
    ("--shutdown-timeout", "7"),
    ("--start-method=fork", "--event-log-handler=console"),
    ("--rdzv-conf", "join_timeout=60, last_call_timeout=3", *PLACE),
    ("--rdzv-id=night", *PLACE),
    ("--nnodes=2", "--node-rank=1", "--master-addr=node0", "--master-port=29600"),
    ("--nnodes=2", "--node-rank=1", "--master-port=29600"),
    ("--local-addr", "10.0.0.3", "--virtual-local-rank", "--numa-binding=socket"),
    ("--master-port=29601", "--nproc-per-node=2"),
    ("--log-line-prefix-template", "${hostname}:${rank}: "),
]
PROGRAMS = [
    ("train.py",),
    ("train.py", "--nnodes", "2", "-m", "--help", "--", "x"),
    ("-m", "package.train", "--lr=1"),
    ("--no-python", "./run.sh", "-r", "3"),
]
ENVIRONMENTS = [
    {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "node0:1", "PET_RDZV_BACKEND": "c10d"},
    {"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "2", "PET_TEE": "0:3"},
    {"PET_VIRTUAL_LOCAL_RANK": "1", "PET_NO_PYTHON": "0", "PET_MODULE": "1"},
    {"PET_DUPLICATE_STDOUT_FILTERS": "a,b,,c", "PET_SHUTDOWN_TIMEOUT": "3"},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "4"},
    {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}"},
    {"PET_LOG_LINE_PREFIX_TEMPLATE": "${hostname}", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"},
    {"PYTHON_EXEC": "/opt/python"},
]
REFUSED = [
    ("--nproc-per-node", "four"),
    ("--nnodes", "2:1"),
    ("--nnodes", "1:2:3"),
    ("--max-restarts", "-1"),
    ("--max-restarts", "x"),
    ("-r", "4"),
    ("-t", "0:5"),
    ("-t", "0:1,"),
    ("--local-ranks-filter", "a"),
    ("--rdzv-conf", "a"),
    ("--start-method", "thread"),
    ("--numa-binding", "near"),
    ("--logs-specs", "nothing-of-that-name"),
    ("-m", "--no-python"),
    ("--no-such-option",),
    ("--print-completion", "fish"),
]


@pytest.fixture(scope="module")
def torchrun() -> ModuleType:
    pytest.importorskip("torch")
    from torch.distributed import run

    return run


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep torchrun from setting this itself, which would outlive the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def theirs(torchrun: ModuleType, words: tuple[str, ...]) -> dict[str, Any]:
    arguments = torchrun.parse_args(list(words))
    config, command, command_arguments = torchrun.config_from_args(arguments)
    logs = config.logs_specs
    streams = {}
    for name in ("redirects", "tee"):
        said = getattr(logs, f"_{name}")
        ranks = range(config.nproc_per_node)
        streams[name] = [
            int(said.get(rank, 0) if isinstance(said, dict) else said) for rank in ranks
        ]
    return {
        "nodes": (config.min_nodes, config.max_nodes),
        "workers": config.nproc_per_node,
        "role": config.role,
        "max_restarts": config.max_restarts,
        "monitor_interval": float(config.monitor_interval),
        "start_method": config.start_method,
        "event_log_handler": config.event_log_handler,
        "local_address": config.local_addr,
        "signals": tuple(config.signals_to_handle.split(",")),
        "filters": (
            tuple(config.duplicate_stdout_filters),
            tuple(config.duplicate_stderr_filters),
        ),
        "shutdown_s": float(getattr(config, "shutdown_timeout", 30)),
        "virtual_local_rank": config.virtual_local_rank,
        "numa": config.numa_options and config.numa_options.affinity_mode.value,
        "prefix": config.log_line_prefix_template,
        "ranks_shown": logs._local_ranks_filter,
        "command": [command, *command_arguments],
        **streams,
    }


def ours(config: JobConfig) -> dict[str, Any]:
    program, output, ranks = config.program, config.output, range(config.slots)
    flags = {"script": ["-u"], "module": ["-u", "-m"], "command": []}[program.kind]
    interpreter = [program.interpreter] if program.interpreter else []
    shown = output.local_ranks_filter
    return {
        "nodes": (config.min_nodes, config.max_nodes),
        "workers": config.slots,
        "role": config.role,
        "max_restarts": config.restarts.max_restarts,
        "monitor_interval": config.monitor_interval_s,
        "start_method": config.start_method,
        "event_log_handler": config.event_log_handler,
        "local_address": config.local_address,
        "signals": config.signals,
        "filters": (output.stdout_filters, output.stderr_filters),
        "shutdown_s": config.timeouts.shutdown_s,
        "virtual_local_rank": config.virtual_local_rank,
        "numa": config.numa_binding,
        "prefix": output.prefix_template,
        "ranks_shown": None if shown is None else set(shown),
        "command": [*interpreter, *flags, program.target, *program.arguments],
        "redirects": [output.redirected(rank) for rank in ranks],
        "tee": [output.teed(rank) for rank in ranks],
    }


def skip_what_is_to_come(options: Iterable[str]) -> None:
    if new := torch_versions.to_come().intersection(options):
        pytest.skip(f"this PyTorch has no {new.pop()}")


@pytest.mark.parametrize("options", SAMPLES, ids=" ".join)
def test_options_mean_the_same(torchrun: ModuleType, options: tuple[str, ...]) -> None:
    skip_what_is_to_come(options)
    words = (*options, "train.py", "--lr", "1")
    assert ours(parse_run(words, os.environ).config) == theirs(torchrun, words)


@pytest.mark.parametrize("words", PROGRAMS, ids=" ".join)
def test_programs_mean_the_same(torchrun: ModuleType, words: tuple[str, ...]) -> None:
    assert ours(parse_run(words, os.environ).config) == theirs(torchrun, words)


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=" ".join)
def test_variables_mean_the_same(
    torchrun: ModuleType, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [re.sub("^(PET|TORCH_ELASTIC)_", "", name) for name in environ]
    skip_what_is_to_come([f"--{name.lower().replace('_', '-')}" for name in plain])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert ours(parse_run(("train",), os.environ).config) == theirs(torchrun, ("train",))


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_what_torchrun_refuses_is_refused(torchrun: ModuleType, options: tuple[str, ...]) -> None:
    words = (*options, "train.py")
    with pytest.raises((SystemExit, ValueError, AssertionError, RuntimeError)):
        theirs(torchrun, words)
    with pytest.raises(UsageError):
        parse_run(words, os.environ)


@pytest.mark.parametrize(
    "endpoint", ["node0", "node0:1", " node0:1 ", "[::1]:7", "[::1]", "10.0.0.1:0", "a.b-c.d:65535"]
)
def test_endpoints_mean_the_same(torchrun: ModuleType, endpoint: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    from holdfast.core.protocol.endpoint import Endpoint

    found = Endpoint.parse(endpoint, 29400)
    assert (found.address, found.port) == parse_rendezvous_endpoint(endpoint, 29400)


@pytest.mark.parametrize("endpoint", ["a:b", "a:65536", "a b", "a:-1", "a/b:1"])
def test_bad_endpoints_are_refused_by_both(torchrun: ModuleType, endpoint: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    from holdfast.core.protocol.endpoint import Endpoint

    with pytest.raises(ValueError, match="endpoint"):
        parse_rendezvous_endpoint(endpoint, 29400)
    with pytest.raises(UsageError):
        Endpoint.parse(endpoint, 29400)


def test_every_option_of_torchrun_is_an_option_here(torchrun: ModuleType) -> None:
    from holdfast.cli.table import OPTIONS

    known = {f"--{option.name}" for option in OPTIONS}
    known |= {name.replace("-", "_").replace("__", "--", 1) for name in known}
    known |= {f"-{option.short}" for option in OPTIONS if option.short} | {"-h", "--help"}
    actions = torchrun.get_args_parser()._actions
    assert {name for action in actions for name in action.option_strings} <= known


def test_only_our_own_options_are_marked_as_ours(torchrun: ModuleType) -> None:
    from holdfast.cli.table import OPTIONS

    actions = torchrun.get_args_parser()._actions
    theirs = {name for action in actions for name in action.option_strings}
    theirs |= torch_versions.to_come()
    assert [o.name for o in OPTIONS if o.ours] == [
        o.name for o in OPTIONS if f"--{o.name}" not in theirs
    ]


def test_the_interpreter_is_the_one_that_runs_us() -> None:
    assert parse_run(("train.py",), {}).config.program.interpreter == sys.executable
