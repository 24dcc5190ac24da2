"""`holdfast doctor`, the installed command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ..free_ports import free_port
from .conftest import Run, start_quietly


def test_one_machine_gets_a_page(run_holdfast: Run) -> None:
    done = run_holdfast("doctor")
    assert done.returncode == 0, done.stdout
    assert "this machine" in done.stdout.splitlines()[0]
    assert "  versions       Python 3." in done.stdout
    assert done.stderr == ""


def test_what_has_errors_ends_with_1_and_programs_can_read_it(run_holdfast: Run) -> None:
    env = {"GLOO_SOCKET_IFNAME": "ib7", "MASTER_ADDR": "old"}
    done = run_holdfast("doctor", "--json", env=env)
    assert done.returncode == 1
    page = json.loads(done.stdout)
    assert page["well"] is False
    assert page["findings"][0]["what"].startswith("GLOO_SOCKET_IFNAME=ib7, and there is no")
    assert any(
        one["what"].endswith("left over from another job: MASTER_ADDR") for one in page["findings"]
    )
    assert page["nodes"][0]["facts"]["python"]


def test_times_that_do_not_fit_together_are_a_finding(run_holdfast: Run) -> None:
    done = run_holdfast("doctor", "--nnodes=2", "--rdzv-endpoint=localhost:1", "--lease=1",
                        "--heartbeat=5")  # fmt: skip
    assert done.returncode == 1
    assert "error: a heartbeat every 5 s does not fit a lease of 1 s" in done.stdout


def test_an_endpoint_that_means_nothing_is_said_at_once(run_holdfast: Run) -> None:
    done = run_holdfast("doctor", "--nnodes=2", "--rdzv-endpoint=no-such-host.invalid:29400")
    assert done.returncode == 1
    assert "no-such-host.invalid:29400 does not resolve here" in done.stdout


def test_two_nodes_meet_and_share_a_folder(
    holdfast: Path, run_holdfast: Run, tmp_path: Path
) -> None:
    words = ("doctor", "--nnodes=2", f"--rdzv-endpoint=localhost:{free_port()}",
             f"--shared={tmp_path}")  # fmt: skip
    with subprocess.Popen([holdfast, *words], stdout=subprocess.PIPE, text=True) as other:
        done = run_holdfast(*words)
        theirs = other.stdout.read() if other.stdout else ""
    pages = sorted([done.stdout, theirs], key=len)
    assert "the first node has the page" in pages[0]
    assert "on 2 nodes" in pages[1]
    assert "ms to the farthest" in pages[1]
    assert (done.returncode, other.returncode) == (0, 0), pages[1]
    assert list(tmp_path.iterdir()) == [], "what was written to see whether it is shared is gone"


def test_nothing_is_imported_from_the_current_folder(
    holdfast: Path, run_holdfast: Run, tmp_path: Path
) -> None:
    for name in ("holdfast", "json", "msgspec", "socket"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    words = ("doctor", "--nnodes=2", f"--rdzv-endpoint=localhost:{free_port()}")
    with start_quietly(holdfast, *words, folder=tmp_path):
        run_holdfast(*words, cwd=tmp_path)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("token", ["", "a token that is long enough"])
def test_an_open_meeting_is_said_and_one_with_a_token_is_not_open(
    holdfast: Path, run_holdfast: Run, token: str
) -> None:
    words = ("doctor", "--nnodes=2", f"--rdzv-endpoint=localhost:{free_port()}")
    environ = {"HOLDFAST_TOKEN": token} if token else {}
    with start_quietly(holdfast, *words, environ=environ):
        done = run_holdfast(*words, env=environ)
    assert done.returncode == 0, done.stdout
    assert ("this job has no token" in done.stderr) == (not token)
    assert "error" not in done.stdout
