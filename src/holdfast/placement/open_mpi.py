"""Open MPI's mpirun: one rank on each node.

Rules
- Open MPI 4 tells each rank the list of its daemons and which of them is its own. mpirun's own host
  is the first, whether or not a rank runs there. With one rank on each node, in order, the host of
  rank 0 is as many places before this rank's as its rank says.
- Open MPI 5 (PRRTE) names the host of mpirun in the namespace of the job, and nothing else; see
  `_host_of_launcher`.
"""

from __future__ import annotations

import re

from holdfast.placement.hosts_of_allocation import hosts
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
    port_of_name,
    several_on_a_node,
)
from holdfast.placement.node_lists import daemons

NAME = "Open MPI"


def detect(circumstances: Circumstances) -> Placement:
    """Where mpirun placed this node. Raises `UsageError` for what cannot work."""
    rank, count = circumstances.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local = circumstances.number("OMPI_COMM_WORLD_LOCAL_SIZE", least=1) or 1
    if local > 1:
        nodes = circumstances.number("OMPI_MCA_orte_num_nodes", least=1) or max(count // local, 1)
        command = f"mpirun -n {nodes} --map-by ppr:1:node {COMMAND}"
        raise several_on_a_node("mpirun", local, command)
    variable = circumstances.first_set("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    job = circumstances.text(variable)
    host, source = _host_of_rank_0(circumstances, rank)
    sources = {
        "nodes": "OMPI_COMM_WORLD_SIZE",
        "rank": "OMPI_COMM_WORLD_RANK",
        "endpoint": f"{source}, port from {variable}",
        "run_id": variable,
    }
    return Placement(
        engine=NAME,
        where=f"Open MPI job {_shown(job)}",
        nodes=(count, count),
        rank=rank,
        host=host,
        port=port_of_name(job),
        is_host=rank == 0,
        run_id=as_id("mpi", job),
        sources=sources,
        cannot_meet=None if host else _unknown(count),
    )


def _shown(job: str) -> str:
    return job.rpartition("@")[0] or job


def _host_of_rank_0(circumstances: Circumstances, rank: int) -> tuple[str, str]:
    """Its name, and what said so; empty where nothing does."""
    own = re.match(r"\d+\.(\d{1,6});", circumstances.text("OMPI_MCA_orte_local_daemon_uri"))
    listing = circumstances.text("OMPI_MCA_orte_node_regex")
    if own and listing:
        names = daemons(listing)
        place = int(own[1]) - rank
        if 0 <= place < len(names):
            return names[place], "OMPI_MCA_orte_node_regex"
    names, source = hosts(circumstances)
    return (names[0], f"the first of {source}") if names else _host_of_launcher(circumstances)


def _host_of_launcher(circumstances: Circumstances) -> tuple[str, str]:
    """The machine that mpirun was started on, which is that of rank 0 where it has a rank."""
    matched = re.fullmatch(r"(?:prterun|prte)-(.+)-\d+@\d+", circumstances.text("PMIX_NAMESPACE"))
    return (matched[1], "PMIX_NAMESPACE") if matched else ("", "")


def _unknown(nodes: int) -> PlacementRefusal:
    return PlacementRefusal(
        NAME,
        "mpirun does not say on which host rank 0 is, so the nodes do not know where to meet",
        f"name it: mpirun -n {nodes} --map-by ppr:1:node -x HOLDFAST_RDZV_ENDPOINT=HOST:29400 "
        f"{COMMAND}",
    )
