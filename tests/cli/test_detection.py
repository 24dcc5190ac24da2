"""What a scheduler says, and what the user said, together make the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import sentences
from holdfast.cli.options import ParsedRun, parse_run
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.schedulers import SCHEDULERS

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "8",
}
LINE = "Slurm job 4711, step 0: 4 nodes, this is node 2, meeting at n1:25476"
HIDDEN = sorted(SLURM.keys() - {"SLURM_JOB_ID", "SLURM_GPUS_ON_NODE"})
WITHOUT_SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_NODELIST": "n[1-4]",
}
TWO_TASKS = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)"}
TRAINER = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "night-1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "night-0.night",
    "PET_MASTER_PORT": "29500",
}
INDEXED = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said must not depend on the machine of the test."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def run(*words: str, **environ: str) -> ParsedRun:
    return parse_run((*words, "train.py"), environ)


def refusal(*words: str, **environ: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        run(*words, **environ)
    return raised.value


# --- what is filled in --------------------------------------------------------------------


def test_a_step_of_slurm_needs_no_flags() -> None:
    parsed = run(**SLURM)
    config = parsed.config
    assert parsed.notes == (LINE,)
    assert (config.min_nodes, config.max_nodes, config.node_rank) == (4, 4, 2)
    assert (config.slots, config.run_id) == (8, "slurm-4711.0.0")
    assert config.rendezvous.endpoint == "n1:25476"
    assert config.rendezvous.backend == "holdfast"
    assert config.is_host is False
    assert run(**SLURM | {"SLURM_NODEID": "0"}).config.is_host is True


def test_without_a_scheduler_nothing_changes_and_nothing_is_said() -> None:
    parsed = run()
    assert parsed.notes == ()
    assert (parsed.config.max_nodes, parsed.config.slots) == (1, 1)
    assert parsed.config.hidden_variables == ()


def test_detecting_can_be_turned_off() -> None:
    for parsed in (run("--no-detect", **SLURM), run(**SLURM, HOLDFAST_NO_DETECT="1")):
        assert parsed.notes == ()
        assert (parsed.config.max_nodes, parsed.config.node_rank) == (1, None)
        assert run("--no-detect", **WITHOUT_SRUN).config.max_nodes == 1
    assert run(**SLURM, HOLDFAST_NO_DETECT="0").notes == (LINE,)


def test_without_a_count_of_gpus_they_are_counted_and_else_there_is_one_worker() -> None:
    """Not one for each CPU: many CPUs are no sign that many workers are wanted."""
    without = SLURM | {"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": ""}
    assert run(**without).config.slots == 1


def test_a_laptop_imports_nothing_of_schedulers_that_are_not_there() -> None:
    look = (
        "import sys\n"
        "from holdfast.cli.options import parse_run\n"
        "parse_run(['train.py'], {})\n"
        "print(*sorted(name for name in sys.modules if name.startswith('holdfast.placement.')))\n"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [
        "holdfast.placement.scheduler_variables",
        "holdfast.placement.schedulers",
    ]


# --- what was said wins -------------------------------------------------------------------


def test_what_was_said_wins_in_order() -> None:
    pet, ours = {"PET_NPROC_PER_NODE": "3"}, {"HOLDFAST_NPROC_PER_NODE": "2"}
    assert run(**SLURM, **pet).config.slots == 3
    assert run(**SLURM, **pet, **ours).config.slots == 2
    assert run("-n1", **SLURM, **pet, **ours).config.slots == 1


def test_the_line_says_who_had_a_say() -> None:
    parsed = run("--nnodes=2:4", **SLURM, HOLDFAST_RDZV_ENDPOINT="n9:29400")
    assert parsed.notes == (
        (
            "Slurm job 4711, step 0: 2 to 4 nodes (--nnodes), this is node 2, "
            "meeting at n9:29400 (HOLDFAST_RDZV_ENDPOINT)"
        ),
    )
    assert parsed.config.is_host is None
    assert parsed.config.run_id == "slurm-4711.0.0"


def test_a_static_command_keeps_its_master() -> None:
    config = run("--master-addr=n1i", "--master-port=29600", **SLURM).config
    assert config.rendezvous.backend == "static"
    assert (config.master_address, config.master_port, config.node_rank) == ("n1i", 29600, 2)
    assert config.is_host is False


def test_a_register_is_the_place_and_gets_the_jobs_id() -> None:
    config = run("--rdzv-backend=etcd", "--rdzv-endpoint=etcd1", **SLURM).config
    assert config.rendezvous.endpoint == "etcd1:2379"
    assert config.run_id == "slurm-4711.0.0"
    assert config.is_host is None


def test_more_nodes_than_were_placed_come_from_elsewhere() -> None:
    """An array of jobs of one node each: rank, place and id of one are nothing to the others."""
    one = SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_NODEID": "0"}
    words = ("--nnodes=2:8", "--rdzv-backend=file", "--rdzv-endpoint=/shared", "--rdzv-id=job")
    config = run(*words, **one).config
    assert (config.node_rank, config.run_id, config.slots) == (None, "job", 8)
    assert "--rdzv-endpoint" in refusal("--nnodes=2", **one).hint


def test_a_node_by_itself_meets_nobody() -> None:
    for words in (("--nnodes=1",), ("--standalone",)):
        config = run(*words, **SLURM).config
        assert (config.max_nodes, config.node_rank, config.is_host) == (1, None, None)
        assert config.slots == 8


def test_kubeflow_is_named_and_its_words_are_options() -> None:
    parsed = run(**TRAINER)
    assert parsed.config.rendezvous.backend == "static"
    assert parsed.config.slots == 4
    assert parsed.notes[0] == (
        "Kubeflow Trainer, pod night-1: 2 nodes (PET_NNODES), this is node 1 (PET_NODE_RANK), "
        "meeting at night-0.night:29400 (PET_MASTER_ADDR)"
    )


def test_an_operators_master_gives_way_to_an_endpoint_of_our_own() -> None:
    ours = {"HOLDFAST_NNODES": "1:4", "HOLDFAST_RDZV_ENDPOINT": "night-0.night:29400"}
    config = run(**TRAINER, **ours).config
    assert config.rendezvous.backend == "holdfast"
    assert (config.min_nodes, config.max_nodes) == (1, 4)
    assert (config.master_address, config.master_port) == (None, None)


def test_an_indexed_job_runs_alone_until_the_number_of_nodes_is_said() -> None:
    assert run(**INDEXED).config.max_nodes == 1
    endpoint = {"HOLDFAST_RDZV_ENDPOINT": "job-0.service:29400"}
    assert run("--nnodes=2", **INDEXED, **endpoint).config.node_rank == 1
    assert "HOLDFAST_RDZV_ENDPOINT" in refusal("--nnodes=2", **INDEXED).hint


def test_more_workers_than_cpus_of_the_step_are_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert run(**SLURM).notes == (LINE, sentences.few_cpus(8, 1))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert run(**SLURM).notes == (LINE,)


# --- what cannot work ---------------------------------------------------------------------


def test_what_cannot_work_is_refused_with_the_users_own_command() -> None:
    error = refusal("--max-restarts=3", **WITHOUT_SRUN)
    command = "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 holdfast run --max-restarts=3 train.py"
    assert command in error.hint


@pytest.mark.parametrize("environ", [WITHOUT_SRUN, TWO_TASKS])
@pytest.mark.parametrize(
    "words",
    [
        ("--nnodes=1",),
        ("--standalone",),
        ("--nnodes=2", "--rdzv-endpoint=n1:29400"),
        ("--nnodes=2", "--node-rank=1", "--master-addr=n1"),
        ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=etcd1", "--rdzv-id=job"),
    ],
)
def test_whoever_says_it_otherwise_is_not_refused(
    environ: dict[str, str], words: tuple[str, ...]
) -> None:
    assert run(*words, **environ).config.slots == 1


def test_a_flag_that_is_off_does_not_make_it_work() -> None:
    assert refusal(**WITHOUT_SRUN, HOLDFAST_STANDALONE="0").hint


def test_a_scheduler_that_names_no_host_leaves_the_address_to_the_user() -> None:
    lost = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": " "}
    assert "--rdzv-endpoint" in refusal(**lost).hint
    assert run("--rdzv-endpoint=n1", **lost).config.max_nodes == 2


# --- the installed command ----------------------------------------------------------------


def command(holdfast: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [holdfast, *words],
        env={**clean_environ(), **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def clean_environ() -> dict[str, str]:
    """Ours, as it would be if no scheduler had placed the tests."""
    signs = tuple(f"{sign.partition('_')[0]}_" for sign, _, _ in SCHEDULERS)
    return {name: text for name, text in os.environ.items() if not name.startswith(signs)}


def test_where_says_what_was_found_and_from_what(holdfast: Path) -> None:
    ended = command(holdfast, "where", "--nproc-per-node=2", **SLURM)
    assert ended.returncode == 0, ended.stderr
    said = [re.split(r"  +", line.strip()) for line in ended.stdout.splitlines()]
    place = "the first of SLURM_STEP_NODELIST, port from SLURM_JOB_ID and SLURM_STEP_ID"
    assert said == [
        [LINE],
        ["nodes", "4", "SLURM_STEP_NUM_NODES"],
        ["this node's rank", "2", "SLURM_NODEID"],
        ["workers here", "2", "--nproc-per-node"],
        ["meeting place", "n1:25476", place],
        ["run id", "slurm-4711.0.0", "SLURM_JOB_ID, SLURM_STEP_ID and SLURM_RESTART_COUNT"],
        ["coordinator", "another node"],
        ["workers do not see", ", ".join(HIDDEN)],
    ]
    assert ended.stderr == ""


def test_where_speaks_to_programs_too(holdfast: Path) -> None:
    said = json.loads(command(holdfast, "where", "--json", **SLURM).stdout)
    assert (said["scheduler"], said["summary"]) == ("Slurm", LINE)
    assert said["values"]["nnodes"] == {"value": "4", "source": "SLURM_STEP_NUM_NODES"}
    assert said["values"]["nproc-per-node"] == {"value": 8, "source": "SLURM_GPUS_ON_NODE"}
    assert said["hosts_the_meeting"] is False
    assert "SLURM_PROCID" in said["hidden_from_workers"]


def test_where_there_is_no_scheduler_that_is_said(holdfast: Path) -> None:
    ended = command(holdfast, "where")
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [
        "no scheduler placed this process",
        "  nodes               1  default",
        "  workers here        1  default",
    ]
    assert json.loads(command(holdfast, "where", "--json").stdout)["scheduler"] is None


def test_where_refuses_as_run_does(holdfast: Path) -> None:
    for verb in ("where", "run"):
        ended = command(holdfast, verb, "train.py", **WITHOUT_SRUN)
        assert ended.returncode == 2
        assert ended.stdout == ""
        said = [line.partition(": ")[0] for line in ended.stderr.splitlines()]
        assert said == ["holdfast", "hint"]
