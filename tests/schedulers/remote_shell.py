"""A remote shell for mpirun and mpiexec, which lead into the hosts of a test.

    SHELL [options] HOST COMMAND…

As `ssh` does, it ends with the status of the command, or with 255 where that was cut off.
`is_patient` makes one that ends with 0 whatever happened, as the script in docs/guides/mpi.md does.
"""

from __future__ import annotations

from pathlib import Path

from .slurm_cluster import SlurmCluster

HEAD = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
case $host in
"""
CASE = '{name}) nsenter --net={net} --uts={uts} -- sh -c "$*" || {otherwise} ;;\n'


def remote_shell(cluster: SlurmCluster, path: Path, is_patient: bool = False) -> Path:
    """Write the program; returns its path."""
    otherwise = "exit 0" if is_patient else "exit 255"
    text = HEAD
    for host in cluster.nodes:
        net, uts = host.spaces
        text += CASE.format(name=host.name, net=net, uts=uts, otherwise=otherwise)
    path.write_text(text + "esac\n")
    path.chmod(0o755)
    return path
