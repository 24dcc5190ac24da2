"""The job's secrets are nowhere that its workers look: in no process's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine.sentences import LEADS

from ..free_ports import free_port
from .conftest import MARK, StartJob

TOKEN = "a-token-0f8c2e71"
PASSWORD = "a-password-9b51d3"
LOOK = f"""
import os
mine = os.environ["{MARK}"].encode()
looked, told = [], []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        environment = open(f"/proc/{{pid}}/environ", "rb").read()
        name = open(f"/proc/{{pid}}/comm").read().strip()
    except OSError:
        continue
    if mine not in environment:
        continue
    looked.append(name)
    told += [name for secret in {[TOKEN, PASSWORD]} if secret.encode() in environment]
with open("found", "w") as file:
    print(sorted(looked), file=file)
    print(sorted(told), file=file)
"""


@pytest.mark.parametrize("start", [(), ("--no-warm",)], ids=["warm", "cold"])
def test_no_process_shows_the_token_or_the_password(
    start_job: StartJob, tmp_path: Path, start: tuple[str, ...]
) -> None:
    meet = (
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--nnodes=1:2",
        f"--snapshot-dir={tmp_path}",
    )
    secrets = {
        "HOLDFAST_TOKEN": TOKEN,
        "HOLDFAST_REGISTER_USER": "somebody",
        "HOLDFAST_REGISTER_PASSWORD": PASSWORD,
    }
    job = start_job(*meet, "--rdzv-conf=last_call_timeout=0.2", *start, script=LOOK, env=secrets)
    assert job.wait() == 0, job.stderr
    looked, told = job.read("found").splitlines()
    # The agent, the spawner and the worker, at least: it has seen them all.
    assert len(looked.split(",")) >= 3, looked
    assert told == "[]"


def test_the_token_still_counts(start_job: StartJob, tmp_path: Path) -> None:
    port = free_port()
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--nnodes=2", "--no-warm")
    keep = (f"--snapshot-dir={tmp_path}",)
    host = start_job(*meet, *keep, script="pass", env={"HOLDFAST_TOKEN": TOKEN})
    host.until(lambda: LEADS in host.stderr, "the coordinator")
    wrong = start_job(*meet, *keep, script="pass", env={"HOLDFAST_TOKEN": "wrong-" + TOKEN})
    assert wrong.wait() == 3
    assert "wrong token" in wrong.stderr
    right = start_job(*meet, *keep, script="pass", env={"HOLDFAST_TOKEN": TOKEN})
    assert right.wait() == 0, right.stderr
    assert host.wait() == 0, host.stderr
