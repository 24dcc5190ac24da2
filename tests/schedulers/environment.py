"""What the tests under schedulers need of this machine, and how it gets there.

    python -m tests.schedulers.environment    # install it: Debian's packages as root, JAX and
    mpi4py

Rules
1. Packages of the system are installed by root only; anybody else is told their names.
2. JAX and mpi4py live in `.schedulers`, an environment of their own with Holdfast from this
   checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDER = CHECKOUT / ".schedulers"
COMMAND = FOLDER / "bin" / "holdfast"
READY = FOLDER / ".ready"
PACKAGES = ("jax", "mpi4py")
SYSTEM_PACKAGES = ("slurm-wlm", "munge", "openmpi-bin", "mpich", "iproute2", "util-linux")
SYSTEM_COMMANDS = (
    "slurmctld",
    "slurmd",
    "munged",
    "mpirun.openmpi",
    "mpiexec.hydra",
    "ip",
    "setpriv",
)


def why_not_ready() -> str:
    """What is wrong with the environment; nothing if it can be used."""
    return "" if READY.exists() and COMMAND.exists() else f"no {FOLDER} (make test-schedulers)"


def install_system() -> None:
    """Install what the system lacks. Ends the program where it cannot."""
    if all(shutil.which(name) for name in SYSTEM_COMMANDS):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *SYSTEM_PACKAGES]
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"These tests need root and, on Debian: {' '.join(command)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(command, check=True, env=environment)


def make_environment() -> None:
    """Make `.schedulers`, unless it is there. Raises `CalledProcessError`."""
    if not why_not_ready():
        return
    print(f"installing {' '.join(PACKAGES)} into {FOLDER} ...", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    pip = [
        str(FOLDER / "bin" / "python"),
        "-m",
        "pip",
        "-qq",
        "--disable-pip-version-check",
        "install",
    ]
    subprocess.run([*pip, *PACKAGES], check=True)
    subprocess.run([*pip, "--editable", str(CHECKOUT)], check=True)
    READY.touch()


if __name__ == "__main__":
    install_system()
    make_environment()
