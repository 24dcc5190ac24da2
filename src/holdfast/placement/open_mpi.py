"""Open MPI's mpirun: one rank on each node.

Rules
- mpirun numbers its daemons; the one on its own host is 0, whether or not a rank runs there. Each
  rank knows its daemon's number. With one rank on each node, in order, the daemon of rank 0 is as
  many places before this rank's as its rank says.
- Open MPI 4 tells each rank the list of the hosts of daemons. Open MPI 5 (PRRTE) tells the host of
  mpirun only, in the name of the job: that is where rank 0 is, if daemon 0 has it. Elsewhere the
  first host of the allocation is, if there is one, and else the user has to say.
"""

from __future__ import annotations

import re

from holdfast.placement.hosts_of_allocation import check_first, hosts
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
AT_A_LOSS = (
    "mpirun ends the whole job when it loses a node, unless it gets --enable-recovery; "
    "docs/guides/mpi.md says what else it needs"
)
RANK, SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_OWN_DAEMON = re.compile(r"[^;]*\.(\d{1,6});")
_LAUNCHED_ON = re.compile(r"(?:prterun|prte)-(.+)-\d+@\d+")


def detect(circumstances: Circumstances) -> Placement:
    """Where mpirun placed this node. Raises `UsageError` for what cannot work."""
    rank, count = circumstances.place(RANK, SIZE)
    local = circumstances.number("OMPI_COMM_WORLD_LOCAL_SIZE", least=1) or 1
    if local > 1:
        nodes = circumstances.number("OMPI_MCA_orte_num_nodes", least=1) or max(count // local, 1)
        command = f"mpirun -n {nodes} --map-by ppr:1:node {COMMAND}"
        raise several_on_a_node("mpirun", local, command)
    variable = circumstances.first_set("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    job = circumstances.text(variable)
    host, source = _host_of_rank_0(circumstances, rank)
    sources = {
        "nodes": SIZE,
        "rank": RANK,
        "endpoint": f"{source}, port from {variable}",
        "run_id": variable,
    }
    return Placement(
        scheduler=NAME,
        where=f"Open MPI job {_shown(job)}",
        nodes=(count, count),
        rank=rank,
        host=host,
        port=port_of_name(job),
        is_host=rank == 0,
        run_id=as_id("mpi", job),
        sources=sources,
        at_a_loss="" if circumstances.text("OMPI_MCA_orte_enable_recovery") == "1" else AT_A_LOSS,
        cannot_meet=None if host else _unknown(circumstances, count),
    )


def _shown(job: str) -> str:
    return job.rpartition("@")[0] or job


def _host_of_rank_0(circumstances: Circumstances, rank: int) -> tuple[str, str]:
    """Its name, and what said so; empty where nothing does."""
    place = _daemon(circumstances) - rank
    listing = circumstances.text("OMPI_MCA_orte_node_regex")
    listed = daemons(listing) if listing else []
    if 0 <= place < len(listed):
        return listed[place], "OMPI_MCA_orte_node_regex"
    launcher = _LAUNCHED_ON.fullmatch(circumstances.text("PMIX_NAMESPACE"))
    if place == 0 and launcher:
        return launcher[1], "PMIX_NAMESPACE"
    names, source = hosts(circumstances)
    if names and rank == 0:
        check_first(circumstances, names[0], names, source)
    return (names[0], f"the first of {source}") if names else ("", "")


def _daemon(circumstances: Circumstances) -> int:
    """The number of this rank's daemon; one that nobody has, where it is not said."""
    for variable in ("OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4"):
        found = _OWN_DAEMON.match(circumstances.text(variable))
        if found:
            return int(found[1])
    return -1


def _unknown(circumstances: Circumstances, nodes: int) -> PlacementRefusal:
    """Rank 0, at least, can say what the others need to know."""
    own = circumstances.text("PMIX_HOSTNAME") if circumstances.number(RANK) == 0 else ""
    return PlacementRefusal(
        NAME,
        "mpirun does not say on which host rank 0 is, so the nodes do not know where to meet",
        f"name it: mpirun -n {nodes} --map-by ppr:1:node "
        f"-x HOLDFAST_RDZV_ENDPOINT={own or 'HOST'}:29400 {COMMAND}",
    )
