"""A worker that asks JAX and mpi4py what world they see, and adds up over all of it.

    frameworks_job.py FOLDER

Each worker leaves `world.RANK.json` in the folder: what it was told, what mpi4py finds by itself
(which has to be a world of one: nobody started these workers with MPI), whether JAX, left alone,
believes in a cluster of the scheduler's, and the sum of all ranks that JAX computed over the world
that it was told.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jax

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def cluster_seen_by_jax() -> str:
    """What JAX takes for its cluster when it is told only where to meet; empty: nothing."""
    try:
        jax.distributed.initialize(coordinator_address=ADDRESS)
    except (ValueError, RuntimeError) as error:
        return "" if "Number of processes" in str(error) else str(error)
    return f"{jax.process_count()} processes"


def sum_over_jax() -> float:
    from jax.experimental import multihost_utils

    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(ADDRESS, WORLD, RANK)
    ranks = multihost_utils.process_allgather(jax.numpy.array([float(RANK)]))
    return float(ranks.sum())


def main() -> None:
    seen = cluster_seen_by_jax()
    total = sum_over_jax()
    from mpi4py import MPI

    found = {
        "world": WORLD,
        "mpi_size": MPI.COMM_WORLD.Get_size(),
        "mpi_library": MPI.Get_library_version().split(",")[0].split("\n")[0],
        "cluster_seen_by_jax": seen,
        "jax_processes": jax.process_count(),
        "sum": total,
    }
    Path(sys.argv[1], f"world.{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
