"""Which scheduler placed this process, if any.

The order of the table is the order in which they are asked; the first that has something to say is
believed.
- What starts processes inside another's allocation comes before it: mpirun before Slurm, PBS, LSF.
- What may run inside a pod comes before what a pod itself is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.placement.model import Placement, PlacementRefusal, Reader

OWN_WORKER = "HOLDFAST_ROUND"
"""In every worker of ours. What it starts was placed by us, whatever else placed us."""

SCHEDULERS: tuple[tuple[str, str, str], ...] = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI", "mpi.open_mpi"),
    ("PMI_SIZE", "MPI (hydra)", "mpi.hydra"),
    ("SLURM_JOB_ID", "Slurm", "slurm.slurm"),
    ("PBS_JOBID", "PBS", "batch_systems.pbs"),
    ("LSB_JOBID", "LSF", "batch_systems.lsf"),
    ("SKYPILOT_NUM_NODES", "SkyPilot", "services.by_variables"),
    ("DSTACK_NODES_NUM", "dstack", "services.by_variables"),
    ("SM_HOSTS", "SageMaker", "services.sagemaker"),
    ("AWS_BATCH_JOB_NUM_NODES", "AWS Batch", "services.aws_batch"),
    ("LWS_LEADER_ADDRESS", "LeaderWorkerSet", "services.by_variables"),
    ("PET_MASTER_ADDR", "Kubeflow Trainer", "services.kubeflow"),
    ("PET_RDZV_ENDPOINT", "Kubeflow PyTorchJob", "services.kubeflow"),
    ("JOB_COMPLETION_INDEX", "Kubernetes Job", "services.indexed_job"),
)
"""A variable, the scheduler that sets it, and the module and function that know what it means."""


def detect(variables: Mapping[str, str], read: Reader) -> Placement | PlacementRefusal | None:
    """The placement by a scheduler; a refusal, if that cannot work; or None, if there is none."""
    if variables.get(OWN_WORKER):
        return None
    for sign, scheduler, reader in SCHEDULERS:
        if variables.get(sign):
            found = _ask(scheduler, reader, variables, read)
            if found is not None:
                return found
    return None


def _ask(
    scheduler: str, reader: str, variables: Mapping[str, str], read: Reader
) -> Placement | PlacementRefusal | None:
    from importlib import import_module

    from holdfast.core.protocol.errors import UsageError
    from holdfast.placement.model import Circumstances, PlacementRefusal

    module, _, function = reader.partition(".")
    detect_here = getattr(import_module(f"holdfast.placement.{module}"), function)
    try:
        found: Placement | None = detect_here(Circumstances(variables, read))
    except UsageError as error:
        return PlacementRefusal(scheduler, error.message, error.hint)
    return found


FILE_MOST = 1 << 20
"""Files of schedulers are small; more is not looked at. Of `/proc`, 4 MB cannot be asked for."""


def read_file(path: str) -> str | None:
    """The reader of a real machine."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MOST)
    except (OSError, ValueError):
        return None
