"""Whether the kernel's out-of-memory killer did it: asked of a real kernel, after a real kill.

The real tests make a control group with little memory, directly below the mount of the
memory controller, run in it a process that plays the agent and, under that one, a process
that takes memory until it is killed. The group is removed afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.processes.host.oom import OutOfMemoryWatch

DEADLINE_S = 60
LIMIT_BYTES = 64 * 1024 * 1024
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

AGENT = """
import json, os, subprocess, sys
from pathlib import Path
from holdfast.processes.host.oom import OutOfMemoryWatch

watch = OutOfMemoryWatch(Path(sys.argv[1]))
hog = (
    "import os; open('/proc/self/oom_score_adj', 'w').write('1000')\\n"
    "if os.environ['HOW'] == 'memory':\\n"
    "    kept = []\\n"
    "    while True: kept.append(bytearray(1 << 20))\\n"
    "os.kill(os.getpid(), 9)\\n"
)
found = []
for how in sys.argv[2:]:
    if how == "snapshot":
        watch.snapshot()
        continue
    child = subprocess.Popen([sys.executable, "-c", hog], env={**os.environ, "HOW": how})
    status = child.wait()
    found.append([child.pid, status, watch.evidence()])
print(json.dumps(found))
"""


class Group:
    """A control group with little memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, proc: Path, *acts: str) -> list[tuple[int, int, str]]:
        """Play the agent in the group; returns (pid, status, evidence) of each child."""
        path = os.pathsep.join(entry for entry in sys.path if entry)
        enter = 'echo $$ > "$GROUP/cgroup.procs" && exec "$@"'
        python = [sys.executable, "-c", AGENT, str(proc), *acts]
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *python],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "GROUP": str(self.path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [tuple(each) for each in json.loads(done.stdout)]


@pytest.fixture
def group() -> Iterator[Group]:
    parent, limits = _controller()
    path = parent / f"holdfast-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group under {parent}: {error.strerror}")
    try:
        for name in limits:
            if (path / name).exists():  # the one for swap is not on every machine
                (path / name).write_text("0" if "swap.max" in name else str(LIMIT_BYTES))
        yield Group(path)
    finally:
        _remove(path)


def _controller() -> tuple[Path, list[str]]:
    """Where memory is controlled here, and the files with the limits, in order."""
    if (V1 / "memory.limit_in_bytes").exists():
        return V1, ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    control = V2 / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text().split():
        return V2, ["memory.max", "memory.swap.max"]
    pytest.skip("no memory controller is mounted below /sys/fs/cgroup")


def _remove(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for pid in (path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


# --- a real kernel ------------------------------------------------------------------------


@pytest.mark.root
def test_the_control_group_tells(group: Group, tmp_path: Path) -> None:
    # What happens on the machine meanwhile, in other tests too, is not to be seen.
    (tmp_path / "self").symlink_to("/proc/self")
    (tmp_path / "vmstat").write_text("oom_kill 0\n")
    acts = ("kill", "memory", "memory", "snapshot", "kill")
    before, one, two, after = group.run(tmp_path, *acts)
    assert before[2] == ""
    assert one[2].startswith("very probably the kernel's out-of-memory killer: it ended 1 process")
    assert str(group.path) in one[2]
    assert "it ended 2 processes of this control group" in two[2]
    assert after[2] == "", "what was before the snapshot does not count"


@pytest.mark.root
def test_without_a_group_the_machine_tells(group: Group, tmp_path: Path) -> None:
    (tmp_path / "vmstat").symlink_to("/proc/vmstat")
    [(_, status, evidence)] = group.run(tmp_path, "memory")
    assert status == -signal.SIGKILL
    assert evidence.startswith("probably the kernel's out-of-memory killer: it ended ")


def test_a_kill_on_a_quiet_machine_is_not_put_down_to_memory() -> None:
    is_quiet = False
    while not is_quiet:  # Other tests have processes killed for want of memory.
        before = kills_on_this_machine()
        watch = OutOfMemoryWatch()
        child = subprocess.Popen(["sleep", "60"])
        child.kill()
        child.wait()
        evidence = watch.evidence()
        is_quiet = kills_on_this_machine() == before
    assert evidence == ""


def kills_on_this_machine() -> list[str]:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return [line for line in lines if line.startswith("oom_kill ")]


# --- other machines, as they show themselves in files --------------------------------------


class Machine:
    """A machine's files, laid out as the kernel would show them."""

    def __init__(self, root: Path) -> None:
        self.proc, self.mounted = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.count_on_machine(0)

    def count_on_machine(self, kills: int) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 5\noom_kill {kills}\npgfault 9\n")

    def is_in(self, *groups: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in groups))

    def count_in(self, file: str, kills: int) -> Path:
        path = self.mounted / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"low 0\noom 3\noom_kill {kills}\noom_group_kill 0\n")
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_that_tells_nothing_gives_no_evidence(tmp_path: Path) -> None:
    watch = OutOfMemoryWatch(tmp_path)
    watch.snapshot()
    assert watch.evidence() == ""


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        (["0::/a/b"], "a/b/memory.events"),
        (["0::/a/b/no/controller"], "a/b/memory.events"),
        (["0::/"], "memory.events"),
        (["0::/../../elsewhere"], "memory.events"),
        (["0::/pod/x/y"], "memory.events"),
        (["4:memory:/a", "0::/u"], "memory/a/memory.oom_control"),
        (["9:name=systemd:/s", "4:cpu,memory:/docker/1"], "memory/memory.oom_control"),
        (["4:memory:/"], "memory/memory.oom_control"),
    ],
)
def test_the_own_control_group_is_found(machine: Machine, groups: list[str], file: str) -> None:
    machine.is_in(*groups)
    machine.count_in(file, 2)
    machine.count_in("unrelated/memory.events", 9)
    watch = OutOfMemoryWatch(machine.proc, machine.mounted)
    assert watch.evidence() == ""
    counter = machine.count_in(file, 5)
    assert f"3 processes of this control group ({counter})" in watch.evidence()
