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

SCHEDULERS: tuple[tuple[str, str], ...] = (
    ("OMPI_COMM_WORLD_SIZE", "open_mpi"),
    ("PMI_SIZE", "hydra"),
    ("JSM_NAMESPACE_SIZE", "jsrun"),
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("SKYPILOT_NUM_NODES", "by_variables"),
    ("DSTACK_NODES_NUM", "by_variables"),
    ("SM_HOSTS", "sagemaker"),
    ("SM_HOST_COUNT", "sagemaker"),
    ("AWS_BATCH_JOB_NUM_NODES", "aws_batch"),
    ("LWS_LEADER_ADDRESS", "by_variables"),
    ("PET_MASTER_ADDR", "kubeflow"),
    ("PET_RDZV_ENDPOINT", "kubeflow"),
    ("JOB_COMPLETION_INDEX", "indexed_job"),
)
"""A variable, and the module that knows what it means."""


def detect(variables: Mapping[str, str], read: Reader) -> Placement | PlacementRefusal | None:
    """The placement by a scheduler; a refusal, if that cannot work; or None, if there is none."""
    if variables.get(OWN_WORKER):
        return None
    for sign, module in SCHEDULERS:
        if variables.get(sign):
            found = _ask(module, variables, read)
            if found is not None:
                return found
    return None


def _ask(
    name: str, variables: Mapping[str, str], read: Reader
) -> Placement | PlacementRefusal | None:
    from importlib import import_module

    from holdfast.core.protocol.errors import UsageError
    from holdfast.placement.model import Circumstances, PlacementRefusal

    module = import_module(f"holdfast.placement.{name}")
    try:
        found: Placement | None = module.detect(Circumstances(variables, read))
    except UsageError as error:
        return PlacementRefusal(module.NAME, error.message, error.hint)
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
