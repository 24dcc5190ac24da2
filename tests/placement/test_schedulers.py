"""What is detected in environments of real schedulers, and in those that are documented."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.core.protocol.exit_status import RUNS_AGAIN_UNLESS_0, WORST_COUNTS
from holdfast.placement.model import Circumstances, Placement, PlacementRefusal, port_of_numbers
from holdfast.placement.schedulers import SCHEDULERS, detect, read_file

from .environments import found, paths, variables

PLACED: dict[str, tuple[str, int | None, int | None, str, bool | None, str]] = {
    # Real ones: the sentence's beginning, nodes, rank, host, whether it hosts, id.
    "slurm-srun-4-nodes-node0": ("Slurm job 3, step 0", 4, 0, "host1", True, "slurm-3.0.0"),
    "slurm-srun-4-nodes-node2": ("Slurm job 3, step 0", 4, 2, "host1", False, "slurm-3.0.0"),
    "slurm-array-srun-element0": ("Slurm job 7, step 0", 1, 0, "host1", True, "slurm-7.0.0"),
    "slurm-array-batch-element1": ("Slurm job 6", 1, 0, "", None, ""),
    "slurm-sbatch-second-step-1-of-2-nodes": (
        "Slurm job 4, step 1", 1, 0, "host1", True, "slurm-4.1.0"),
    "slurm-requeued-srun-node1": (
        "Slurm job 12, step 0, restart 1", 2, 1, "host1", False, "slurm-12.0.1"),
    "slurm-het-sbatch-srun-procid0": (
        "Slurm job 10, step 0", 3, 0, "host1", True, "slurm-10.0.0"),
    "slurm-het-sbatch-srun-procid2": (
        "Slurm job 10, step 0", 3, 2, "host1", False, "slurm-10.0.0"),
    "slurm-het-srun-second-2": ("Slurm job 8, step 0", 3, 2, "host1", False, "slurm-8.0.0"),
    "slurm-het-sbatch-srun-without-group-procid0": (
        "Slurm job 10, step 1", 1, 0, "host1", True, "slurm-10.1.0"),
    "slurm-srun-mpi-pmi2-1": ("Slurm job 13, step 2", 2, 1, "host1", False, "slurm-13.2.0"),
    "slurm-mpirun-openmpi-rank0": (
        "Open MPI job 719060993", 2, 0, "host1", True, "mpi-719060993"),
    "slurm-mpirun-openmpi-rank1": (
        "Open MPI job 719060993", 2, 1, "host1", False, "mpi-719060993"),
    "slurm-mpiexec-hydra-rank0": ("MPI job 13.1", 2, 0, "host1", True, "mpi-13.1"),
    "slurm-mpiexec-hydra-rank1": ("MPI job 13.1", 2, 1, "host1", False, "mpi-13.1"),
    "openmpi-rank0": ("Open MPI job 3857186817", 2, 0, "host1", True, "mpi-3857186817"),
    "openmpi-rank1": ("Open MPI job 3857186817", 2, 1, "host1", False, "mpi-3857186817"),
    "openmpi5-rank0": (
        "Open MPI job prterun-vm-6778", 2, 0, "vm", True, "mpi-prterun-vm-6778-1"),
    "openmpi5-rank1": (
        "Open MPI job prterun-vm-6778", 2, 1, "vm", False, "mpi-prterun-vm-6778-1"),
    "openmpi5-elsewhere-rank0": (
        "Open MPI job prterun-vm-6721", 2, 0, "", True, "mpi-prterun-vm-6721-1"),
    "openmpi5-elsewhere-rank1": (
        "Open MPI job prterun-vm-6721", 2, 1, "", False, "mpi-prterun-vm-6721-1"),
    "hydra-rank0": ("MPI job", 2, 0, "", True, ""),
    "hydra-rank1": ("MPI job", 2, 1, "", False, ""),
    # By documentation.
    "slurm-gpus": ("Slurm job 4711, step 0", 4, 2, "n1", False, "slurm-4711.0.0"),
    "slurm-other-order": ("Slurm job 4711, step 0", 2, 0, "", True, "slurm-4711.0.0"),
    "slurm-het-second-group-sorts-first": (
        "Slurm job 10, step 0", 3, 1, "z1", False, "slurm-10.0.0"),
    "pals": (
        "MPI job 0e8d8a5b-8f0e-4b3e-9d2a-1c2b3a4d5e6f", 2, 1, "x3006c0s13b0n0", False,
        "mpi-0e8d8a5b-8f0e-4b3e-9d2a-1c2b3a4d5e6f"),
    "pbs-host1": ("PBS job 1672.server", 2, 1, "n07.site", False, "pbs-1672.server"),
    "lsf-host1": ("LSF job 4711", 2, 1, "hostA", False, "lsf-4711"),
    "sagemaker-host1": (
        "SageMaker night-2026-11-17", 3, 1, "algo-1", False, "night-2026-11-17"),
    "sagemaker-older-host1": ("SageMaker", 2, 1, "algo-1", False, ""),
    "aws-batch-main": (
        "AWS Batch job 3f2a17c4-8f0e-4b3e-9d2a-1c2b3a4d5e6f", 4, 0, "10.0.1.17", True,
        "batch-3f2a17c4-8f0e-4b3e-9d2a-1c2b3a4d5e6f.2"),
    "aws-batch-child": (
        "AWS Batch job 3f2a17c4-8f0e-4b3e-9d2a-1c2b3a4d5e6f", 4, 3, "10.0.1.17", False,
        "batch-3f2a17c4-8f0e-4b3e-9d2a-1c2b3a4d5e6f.2"),
    "skypilot": (
        "SkyPilot sky-2026-11-17-21-18-31-563597_cluster_id-1", 2, 1, "10.1.0.4", False,
        "sky-2026-11-17-21-18-31-563597_cluster_id-1"),
    "dstack": ("dstack fast-moth-1", 3, 2, "172.16.0.5", False, "fast-moth-1"),
    "leader-worker-set": ("LeaderWorkerSet", 4, 2, "train-0.train.default", False, ""),
    "indexed-job": (
        "Kubernetes Job night, index 2", None, 2, "night-0.workers.default.svc.cluster.local",
        False, "night"),
    "indexed-job-without-service": (
        "Kubernetes Job night, index 2", None, 2, "", False, "night"),
    "kubeflow-trainer": (
        "Kubeflow Trainer, pod night-node-0-1-abcde", None, None, "", None, ""),
    "kubeflow-pytorchjob": ("Kubeflow PyTorchJob, pod night-worker-1", None, None, "", None, ""),
}  # fmt: skip

REFUSED: dict[str, tuple[str, str]] = {
    "slurm-salloc-without-srun": (
        "Slurm job 5 has 2 nodes, but this was not started by srun",
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 holdfast run …"),
    "slurm-sbatch-batch-step": (
        "Slurm job 4 has 2 nodes, but this was not started by srun",
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 holdfast run …"),
    "slurm-het-batch-step": (
        "Slurm job 10 has 3 nodes", "srun --het-group=0,1 --ntasks-per-node=1 holdfast run …"),
    "slurm-interactive-shell": (
        "Slurm job 88 has 4 nodes, but this was not started by srun",
        "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 holdfast run …"),
    "slurm-pty": ("is a terminal on one of its 4 nodes", "srun --overlap --nodes=4"),
    "slurm-srun-2-nodes-2-tasks-each-task2": (
        "srun started 2 agents on this node",
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 holdfast run …"),
    "slurm-lost-count": ("SLURM_STEP_NODELIST names 3 nodes", "--no-detect"),
    "openmpi-one-rank-per-core-rank1": (
        "mpirun started 2 agents on this node", "mpirun -n 2 --map-by ppr:1:node holdfast run …"),
    "pbs-script": ("PBS job 1672.server has 2 hosts", "mpiexec -n 2 -ppn 1 holdfast run …"),
    "pbs-no-file": ("cannot be read here", "--rdzv-endpoint"),
    "lsf-script": ("LSF job 4711 has 2 hosts", 'blaunch -z "hostA hostB" holdfast run …'),
}  # fmt: skip


def placed(name: str, **changed: str) -> Placement:
    seen = found(name, **changed)
    assert isinstance(seen, Placement), seen
    return seen


def refused(name: str, **changed: str) -> PlacementRefusal:
    seen = found(name, **changed)
    assert isinstance(seen, PlacementRefusal), seen
    return seen


def test_every_environment_is_judged() -> None:
    assert {path.stem for path in paths()} == PLACED.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", PLACED)
def test_where_a_scheduler_placed_us(name: str) -> None:
    seen = placed(name)
    assert (
        seen.where, seen.nodes, seen.rank, seen.host, seen.is_host, seen.run_id
    ) == PLACED[name]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_the_command_that_does(name: str) -> None:
    message, hint = REFUSED[name]
    seen = refused(name)
    assert message in seen.message
    assert hint in seen.hint


@pytest.mark.parametrize("name", PLACED)
def test_what_is_said_has_a_source(name: str) -> None:
    seen = placed(name)
    known: dict[str, object] = {"nodes": seen.nodes, "rank": seen.rank, "workers": seen.workers}
    known |= {"endpoint": seen.host, "run_id": seen.run_id}
    for what, value in known.items():
        if value and seen.nodes != 1:
            assert seen.sources.get(what), what


def test_a_real_machine_has_a_name_and_files_that_can_be_read(tmp_path: Path) -> None:
    assert Circumstances({}, read_file).host_name() == socket.gethostname()
    (tmp_path / "hosts").write_text("n1\n\n n2 \n")
    assert Circumstances({}, read_file).lines(str(tmp_path / "hosts")) == ["n1", "n2"]
    for path in (tmp_path / "none", tmp_path, "\0"):
        assert read_file(str(path)) is None


def test_without_a_scheduler_there_is_nothing() -> None:
    assert detect({"HOME": "/root", "PATH": "/bin"}, lambda path: None) is None
    assert detect({sign: "" for sign, _, _ in SCHEDULERS}, lambda path: None) is None


def test_inside_one_of_our_own_workers_there_is_nothing() -> None:
    assert found("slurm-srun-4-nodes-node2", HOLDFAST_ROUND="1") is None


def test_what_torchrun_was_told_by_hand_is_no_scheduler() -> None:
    outside = variables("kubeflow-trainer")
    del outside["KUBERNETES_SERVICE_HOST"], outside["JOB_COMPLETION_INDEX"]
    assert detect(outside, lambda path: None) is None


def test_workers_are_as_many_as_gpus_that_can_be_seen() -> None:
    assert placed("slurm-gpus").workers == 8
    fewer = placed("slurm-gpus", CUDA_VISIBLE_DEVICES="0,1")
    assert (fewer.workers, fewer.sources["workers"]) == (2, "CUDA_VISIBLE_DEVICES")
    assert placed("slurm-srun-4-nodes-node2").workers is None
    assert placed("sagemaker-host1").workers == 8
    assert placed("sagemaker-older-host1").workers is None
    assert placed("skypilot").workers == 4


def test_jobs_and_steps_near_each_other_have_different_ports() -> None:
    near = [(job, step) for job in range(4700, 4900) for step in range(30)]
    assert len({port_of_numbers(job, step) for job, step in near}) == len(near)
    ports = {port_of_numbers(job, step) for job, step in near}
    assert min(ports) >= 20000
    assert max(ports) < 29400


def test_both_ends_of_a_job_come_to_the_same_place() -> None:
    for one, other in (
        ("slurm-srun-4-nodes-node0", "slurm-srun-4-nodes-node2"),
        ("slurm-het-sbatch-srun-procid0", "slurm-het-sbatch-srun-procid2"),
        ("slurm-mpirun-openmpi-rank0", "slurm-mpirun-openmpi-rank1"),
        ("slurm-mpiexec-hydra-rank0", "slurm-mpiexec-hydra-rank1"),
        ("openmpi-rank0", "openmpi-rank1"),
        ("openmpi5-rank0", "openmpi5-rank1"),
        ("aws-batch-main", "aws-batch-child"),
    ):
        first, second = placed(one), placed(other)
        assert (first.host, first.port, first.run_id) == (second.host, second.port, second.run_id)


@pytest.mark.parametrize(
    ("name", "variable", "text", "message"),
    [
        ("slurm-srun-4-nodes-node2", "SLURM_NODEID", "4", "SLURM_NODEID=4 does not exist among"),
        ("slurm-srun-4-nodes-node2", "SLURM_NODEID", "two", "SLURM_NODEID=two is not a number"),
        ("slurm-srun-4-nodes-node2", "SLURM_NODEID", "", "SLURM_NODEID is missing"),
        ("slurm-srun-4-nodes-node2", "SLURM_STEP_NODELIST", "n[1", "is not a list of nodes"),
        ("slurm-srun-4-nodes-node2", "SLURM_LOCALID", "3", "srun started 4 agents"),
        ("slurm-srun-4-nodes-node2", "SLURM_JOB_ID", "9" * 30, "is not a number"),
        ("openmpi-rank1", "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_RANK=2 does not exist"),
        ("slurm-mpiexec-hydra-rank0", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "host2", "rank 0 is on"),
        ("hydra-rank1", "MPI_LOCALNRANKS", "2", "mpiexec started 2 agents"),
        ("sagemaker-older-host1", "SM_CURRENT_HOST", "algo-9", "is not one of SM_HOSTS"),
        ("sagemaker-older-host1", "SM_HOSTS", "algo-1", "is not a list of names"),
        ("dstack", "DSTACK_NODE_RANK", "3", "DSTACK_NODE_RANK=3 does not exist"),
    ],
)
def test_what_contradicts_itself_is_refused(
    name: str, variable: str, text: str, message: str
) -> None:
    assert message in refused(name, **{variable: text}).message


def test_a_container_without_the_file_of_pbs_is_a_node_by_itself() -> None:
    assert found("pbs-no-file", PBS_TASKNUM="1") is None


def test_one_host_of_sagemaker_needs_no_name() -> None:
    assert placed("sagemaker-older-host1", SM_HOSTS='["algo-1"]', SM_CURRENT_HOST="").rank == 0


def test_where_hydra_gets_its_hosts_from_a_file_so_do_we() -> None:
    environment = variables("hydra-rank1") | {"HYDRA_HOST_FILE": "/home/me/hosts"}
    files = {"/home/me/hosts": "# ours\nhost1:2\nhost2:2\n"}
    seen = detect(environment, files.get)
    assert isinstance(seen, Placement)
    assert seen.host == "host1"


def test_where_nobody_knows_the_first_host_that_is_said_with_the_command() -> None:
    """Rank 0 knows its own name, and so what the command has to say."""
    mpiexec = "mpiexec -n 2 -ppn 1 -genv HOLDFAST_RDZV_ENDPOINT {}:29400 holdfast run …"
    mpirun = "mpirun -n 2 --map-by ppr:1:node -x HOLDFAST_RDZV_ENDPOINT={}:29400 holdfast run …"
    srun = "HOLDFAST_RDZV_ENDPOINT={}:29400 srun … holdfast run …"
    for name, host, command in (
        ("slurm-other-order", "n2", srun),
        ("hydra-rank0", "host1", mpiexec),
        ("hydra-rank1", "HOST", mpiexec),
        ("openmpi5-elsewhere-rank0", "hosta", mpirun),
        ("openmpi5-elsewhere-rank1", "HOST", mpirun),
    ):
        seen = placed(name).cannot_meet
        assert seen is not None
        assert command.format(host) in seen.hint
    assert placed("indexed-job-without-service").cannot_meet is not None


def test_an_element_of_an_array_is_a_node_that_ends_for_itself() -> None:
    assert placed("slurm-array-srun-element0").scheduler == "Slurm array"
    assert placed("slurm-srun-4-nodes-node0").scheduler == "Slurm"


def test_mpirun_is_said_to_spoil_an_elastic_job_unless_it_was_told_not_to() -> None:
    assert "--enable-recovery" in placed("openmpi-rank0").at_a_loss
    assert placed("openmpi-rank0", OMPI_MCA_orte_enable_recovery="1").at_a_loss == ""
    assert "cannot be told otherwise" in placed("hydra-rank0").at_a_loss
    assert placed("slurm-srun-4-nodes-node0").at_a_loss == ""


@pytest.mark.parametrize("name", PLACED)
def test_every_scheduler_has_its_exit_statuses(name: str) -> None:
    placed = found(name)
    assert isinstance(placed, Placement)
    assert placed.scheduler in (*WORST_COUNTS, *RUNS_AGAIN_UNLESS_0)
