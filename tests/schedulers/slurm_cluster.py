"""A real Slurm cluster on this machine: a controller, and nodes that are hosts of their own.

Rules
- Every node has a network, a name and a `/var/tmp` of its own; all share the files of this machine,
  as nodes of a cluster share a disk. The controller and those who submit are on a host beside them.
- Nothing of it is this machine's: no file outside its folder, no port, no service, no hosts file.
  What ends the test process ends the cluster.
- A node is lost as a machine is: all that runs on it is killed at once, `slurmd` and the steps too.

How it works: `hosts.py` makes hosts out of namespaces. On each, a command gets a file system view
of its own (`unshare --mount`), in which the names of the hosts are in `/etc/hosts`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from ..integration.nodes.hosts import Host, Network, Streams

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "ip", "nsenter", "setpriv")
TUN = Path("/dev/net/tun")
DEADLINE_S = 150.0
LEFTOVER_S = 20.0
CPUS = 4
"""More than this machine may have: two jobs fit on a node."""
REQUEUE_WAIT_S = 5
"""How long a job waits once it was put back into the queue. Slurm's own value is 120 s."""
HIDDEN_PREFIXES = ("SLURM", "SBATCH", "HOLDFAST_", "PET_", "TORCHELASTIC_", "OMPI_", "PMI")

ENTER = """
mount --bind "$HOSTS_FILE" /etc/hosts && mount --bind "$VAR_TMP" /var/tmp && exec "$@"
"""

CONFIGURATION = """
ClusterName=holdfast
SlurmctldHost={controller}({controller_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_wait_s}
CredType=cred/munge
ProctrackType={proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=1,sched_interval=1
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
InactiveLimit=0
MinJobAge=60
ReturnToService=2
JobRequeue=1
NodeName={nodes} CPUs={cpus} RealMemory=4000
PartitionName=work Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=10
"""


class Said(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    stdout: str
    stderr: str


def missing() -> str:
    """What this machine lacks for a cluster; nothing if it can have one."""
    if os.getuid() != 0:
        return f"needs root, and this is user {os.getuid()}"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"needs {', '.join(lacking)} (make test-schedulers installs it)"
    return "" if TUN.exists() else f"needs {TUN}"


class SlurmCluster:
    """A controller and some nodes, started by the constructor and ended by `close`."""

    def __init__(self, folder: Path, count: int, proctrack: str = "proctrack/linuxproc") -> None:
        self.folder = folder
        self.network = Network(count + 1)
        *self.nodes, self.controller = self.network.hosts
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._write_files(proctrack)
            self._start_munge()
            self._start("slurmctld", self.controller, ["slurmctld", "-D"])
            for node in self.nodes:
                self.start_node(node)
            self.until(lambda: self.states() == {"idle"}, "idle nodes")
        except BaseException:
            self.close()
            raise

    # --- nodes --------------------------------------------------------------------------------

    def start_node(self, node: Host) -> None:
        """Start the daemon of a node, as a machine does when it comes up."""
        self._start(node.name, node, ["slurmd", "-D", "-N", node.name])

    def lose(self, node: Host) -> None:
        """Kill everything that runs on a node at once."""
        node.destroy()
        self._daemons.pop(node.name).wait()

    def states(self) -> set[str]:
        """The states that nodes are in, without the marks that `sinfo` puts behind them."""
        said = self.run(["sinfo", "--noheader", "--Node", "--format=%T", "--partition=work"])
        return set(said.stdout.split())

    def node(self, name: str) -> Host:
        return next(node for node in self.nodes if node.name == name)

    # --- commands -----------------------------------------------------------------------------

    def start(
        self,
        command: Sequence[str | Path],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        host: Host | None = None,
    ) -> Command:
        """Start a command where users submit; its output goes to files in `cwd`."""
        cwd.mkdir(parents=True, exist_ok=True)
        number = len(list(cwd.glob("command*.stdout")))
        output = cwd / f"command{number}"
        with (
            open(output.with_suffix(".stdout"), "wb") as out,
            open(output.with_suffix(".stderr"), "wb") as err,
        ):
            process = self._on(
                host or self.controller, command, env or {}, cwd, Streams(stdout=out, stderr=err)
            )
        return Command(process, output)

    def run(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Said:
        """Run a command of Slurm's to its end."""
        process = self._on(
            self.controller,
            command,
            env or {},
            self.folder,
            Streams(stdout=subprocess.PIPE, stderr=subprocess.PIPE),
        )
        out, err = process.communicate(timeout=DEADLINE_S)
        self.network.started.remove(process)
        return Said(process.returncode, out.decode(), err.decode())

    def submit(self, script: str, cwd: Path, *options: str) -> str:
        """Submit a batch script; returns the job's number."""
        cwd.mkdir(parents=True, exist_ok=True)
        path = cwd / f"batch{len(list(cwd.glob('batch*.sh')))}.sh"
        path.write_text(script)
        said = self.run(["sbatch", "--parsable", f"--chdir={cwd}", *options, path])
        assert said.status == 0, said.stderr
        return said.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job; empty once it has forgotten it."""
        said = self.run(["scontrol", "show", "--oneliner", "job", number])
        line = (said.stdout.splitlines() or [""])[0]
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to happen, to a deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain: {what}\n{self.record()}", pytrace=False)
            time.sleep(0.05)

    def until_state(self, job: str, *states: str) -> None:
        self.until(lambda: self.job(job).get("JobState") in states, f"job {job}: {states}")

    def record(self) -> str:
        """All that is known, for a test that failed."""
        queue = self.run(["squeue", "--long"]).stdout
        nodes = self.run(["sinfo", "--Node", "--long"]).stdout
        log = (self.folder / "slurmctld.log").read_text(errors="replace")[-3000:]
        return f"{queue}\n{nodes}\n{log}"

    # --- the end ------------------------------------------------------------------------------

    def empty(self) -> None:
        """Cancel all jobs, bring all nodes back, and wait until they are idle."""
        self.run(["scancel", "--user=root"])
        self.run(["scancel", "--user=root", "--signal=KILL"])
        for node in self.nodes:
            if node.name not in self._daemons:
                self.start_node(node)
        names = ",".join(node.name for node in self.nodes)
        self.until(lambda: self.run(["squeue", "--noheader"]).stdout == "", "an empty queue")
        self.run(["scontrol", "update", f"NodeName={names}", "State=RESUME"])
        self.until(lambda: self.states() == {"idle"}, "idle nodes")

    def left(self) -> dict[str, list[str]]:
        """What runs on the nodes besides their daemons, once Slurm calls them idle."""
        deadline = time.monotonic() + LEFTOVER_S
        while (found := self._strangers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return {name: [_command_of(pid) for pid in pids] for name, pids in found.items()}

    def sweep(self) -> None:
        """Kill what a test left."""
        for pid in [pid for pids in self._strangers().values() for pid in pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended since it was seen

    def _strangers(self) -> dict[str, list[int]]:
        found = {}
        for node in self.nodes:
            own = self._daemons[node.name].pid
            if pids := [pid for pid in node.processes() if pid != own]:
                found[node.name] = pids
        return found

    def close(self) -> None:
        """Kill everything, the hosts included."""
        self.network.close()
        for process in self._daemons.values():
            process.kill()
            process.wait()

    # --- how it is made -----------------------------------------------------------------------

    def _write_files(self, proctrack: str) -> None:
        for name in ("state", "spool", "var", "tmp"):
            (self.folder / name).mkdir()
        names = "\n".join(f"{host.address} {host.name}" for host in self.network.hosts)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}\n")
        nodes = ",".join(node.name for node in self.nodes)
        text = CONFIGURATION.format(
            controller=self.controller.name,
            controller_address=self.controller.address,
            folder=self.folder,
            nodes=nodes,
            cpus=CPUS,
            proctrack=proctrack,
            requeue_wait_s=REQUEUE_WAIT_S,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        socket = self.folder / "munge.socket"
        own = {
            "--key-file": key,
            "--socket": socket,
            "--pid-file": self.folder / "munge.pid",
            "--log-file": self.folder / "munge.log",
            "--seed-file": self.folder / "munge.seed",
        }
        words = [f"{name}={value}" for name, value in own.items()]
        self._start("munged", self.controller, ["munged", "--foreground", "--force", *words])
        self.until(socket.exists, "the socket of munge")

    def _start(self, name: str, host: Host, command: Sequence[str]) -> None:
        with open(self.folder / f"{name}.output", "ab") as output:
            streams = Streams(stdout=output, stderr=output)
            self._daemons[name] = self._on(host, command, {}, self.folder, streams)

    def _on(
        self,
        host: Host,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
        streams: Streams,
    ) -> subprocess.Popen[bytes]:
        var_tmp = self.folder / "var" / host.name
        var_tmp.mkdir(exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN_PREFIXES)}
        own = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "HOSTS_FILE": str(self.folder / "hosts"),
            "VAR_TMP": str(var_tmp),
            "TMPDIR": str(self.folder / "tmp"),
        }
        view = ["unshare", "--mount", "sh", "-c", ENTER, "sh"]
        return host.run([*view, *command], {**plain, **own, **env}, cwd, streams)


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace")


class Command:
    """A command that runs, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def stdout(self) -> str:
        return self.output.with_suffix(".stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.output.with_suffix(".stderr").read_text(errors="replace")
