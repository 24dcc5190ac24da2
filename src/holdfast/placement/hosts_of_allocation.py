"""The hosts that a batch system gave to a job.

They come in the order in which ranks fill them, often one line for each slot. A machine is looked
for in such a list by its own name, cut at the first dot, only where nothing else tells its place.
"""

from __future__ import annotations

from holdfast.placement.model import Circumstances, contradiction
from holdfast.placement.node_lists import expand

HOST_FILES = (
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
"""Variables that name a file with a host on each line: the batch system's, or the user's own."""


def hosts(circumstances: Circumstances) -> tuple[list[str], str]:
    """The hosts of the allocation, and the variable that names them; both empty if none does."""
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
    """Which of the hosts that machine is; None if it is none of them."""
    short = [host.partition(".")[0] for host in names]
    own = name.partition(".")[0]
    return short.index(own) if own in short else None


def rank_among(circumstances: Circumstances, names: list[str], source: str) -> int:
    """This machine's place among the hosts that `source` names. Raises `UsageError` for none."""
    own = circumstances.host_name()
    rank = place_of(own, names) if len(names) > 1 else 0
    if rank is None:
        raise contradiction(f"this is {own}, which {source} does not name")
    return rank


def read_from(source: str, job: str) -> dict[str, str]:
    """The `sources` of a placement of which one variable names the hosts, another the job."""
    return {
        "nodes": f"the hosts of {source}",
        "rank": f"the place of this host in {source}",
        "endpoint": f"the first of {source}, port from {job}",
        "run_id": job,
    }


def own_name(circumstances: Circumstances) -> str:
    """This machine's name, as the scheduler has it if that is said."""
    variable = circumstances.first_set("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "PMIX_HOSTNAME")
    return circumstances.text(variable) or circumstances.host_name()


def check_first(circumstances: Circumstances, host: str, names: list[str], source: str) -> None:
    """Rank 0 knows its own name: refuse where the others would look for it on another host."""
    own = own_name(circumstances)
    place = place_of(own, names)
    if place is not None and names[place] != host:
        raise contradiction(f"rank 0 is on {own}, but by {source} it would be on {host}")
