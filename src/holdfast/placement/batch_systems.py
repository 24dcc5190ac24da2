"""PBS and LSF, which give a job a list of hosts. One task of `pbsdsh` or `blaunch` on each host.

Rules
- Hosts come in the order in which ranks fill them, often one line for each slot: each is taken
  once. A node's rank is the place of its own name among them, cut at the first dot. (The numbers
  of PBS's tasks count virtual nodes, of which a host may have several.)
- The job's script runs on the first host only. It is task 1 of PBS; what `blaunch` starts has a
  task id.
- PBS's file may be missing on hosts other than the first, and in containers. Only the script can do
  without it: it is then a node by itself.
"""

from __future__ import annotations

from holdfast.core.protocol.errors import UsageError
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    as_id,
    contradiction,
    port_of_name,
)
from holdfast.placement.node_lists import expand

HOST_FILES = (
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
"""Variables that name a file with a host on each line: the batch system's, or the user's own."""


def pbs(circumstances: Circumstances) -> Placement | None:
    """Where PBS or Torque placed this node. Raises `UsageError` for what cannot work."""
    job, path = circumstances.text("PBS_JOBID"), circumstances.text("PBS_NODEFILE")
    names = unique(circumstances.lines(path)) if path else []
    is_script = circumstances.text("PBS_TASKNUM") in ("", "1")
    if not path or (is_script and not names):
        return None
    if not names:
        raise contradiction(f"PBS_NODEFILE={path} names the hosts, and cannot be read here")
    if len(names) > 1 and is_script:
        raise UsageError(
            f"PBS job {job} has {len(names)} hosts, but this is its script, "
            "which runs on the first of them only",
            f"mpiexec -n {len(names)} -ppn 1 {COMMAND} (or --nnodes 1, for this node alone)",
        )
    return _among(circumstances, "PBS", job, "PBS_JOBID", names, "PBS_NODEFILE")


def lsf(circumstances: Circumstances) -> Placement | None:
    """Where LSF placed this node. Raises `UsageError` for what cannot work."""
    job, element = circumstances.text("LSB_JOBID"), circumstances.text("LSB_JOBINDEX")
    source = circumstances.first_set("LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE")
    text = circumstances.text(source)
    if source == "LSB_MCPU_HOSTS":  # `n1 8 n2 8`
        names = list(dict.fromkeys(text.split()[::2]))
    else:
        names = unique(circumstances.lines(text)) if text else []
    if not names:
        return None
    if len(names) > 1 and not circumstances.text("LSF_PM_TASKID"):
        raise UsageError(
            f"LSF job {job} has {len(names)} hosts, but this was not started by blaunch, "
            "so it runs on one of them only",
            f'blaunch -z "{" ".join(names)}" {COMMAND} (or --nnodes 1, for this node alone)',
        )
    if element not in ("", "0"):
        job = f"{job}.{element}"
    return _among(circumstances, "LSF", job, "LSB_JOBID", names, source)


def _among(
    circumstances: Circumstances,
    scheduler: str,
    job: str,
    variable: str,
    names: list[str],
    source: str,
) -> Placement:
    """This machine's place among the hosts that `source` names. `variable` names the job."""
    own = circumstances.host_name()
    rank = place_of(own, names) if len(names) > 1 else 0
    if rank is None:
        raise contradiction(f"this is {own}, which {source} does not name")
    return Placement(
        scheduler=scheduler,
        where=f"{scheduler} job {job}",
        nodes=len(names),
        rank=rank,
        host=names[0],
        port=port_of_name(job),
        is_host=rank == 0,
        run_id=as_id(scheduler.lower(), job),
        sources={
            "nodes": f"the hosts of {source}",
            "rank": f"the place of this host in {source}",
            "endpoint": f"the first of {source}, port from {variable}",
            "run_id": variable,
        },
    )


def hosts(circumstances: Circumstances) -> tuple[list[str], str]:
    """The hosts of an allocation in which mpirun or mpiexec runs, and the variable that names them;
    both empty if none does."""
    for variable in HOST_FILES:
        path = circumstances.text(variable)
        names = unique(circumstances.lines(path)) if path else []
        if names:
            return names, variable
    listing = circumstances.text("SLURM_JOB_NODELIST")
    return (expand(listing), "SLURM_JOB_NODELIST") if listing else ([], "")


def unique(lines: list[str]) -> list[str]:
    """Each host once, in order. A line may go on about the host: `n1:4`, `n1 slots=4`."""
    names = [line.split()[0].partition(":")[0] for line in lines if not line.startswith("#")]
    return list(dict.fromkeys(names))


def place_of(name: str, names: list[str]) -> int | None:
    """The place of a machine among the hosts; None if it is none of them."""
    short = [host.partition(".")[0] for host in names]
    own = name.partition(".")[0]
    return short.index(own) if own in short else None
