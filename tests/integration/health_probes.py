"""Probing the health port of a real agent, as a kubelet or Prometheus would."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from holdfast.agent.sentences import health_at

from .conftest import Job

PROBE_S = 30.0
"""Long enough for a busy machine; a kubelet gives one second."""
STEPPING = """
import os, pathlib, time
import holdfast
rank, round = os.environ["RANK"], os.environ["HOLDFAST_ROUND"]
step = 0
while not pathlib.Path("end").exists():
    holdfast.progress(step)
    step += 1
    time.sleep(0.02)
    if rank == "1" and round == "1" and pathlib.Path("fail").exists():
        raise SystemExit(3)
"""
"""Steps until there is a file `end`; rank 1 fails in the first round once there is one `fail`."""


class Answer(NamedTuple):
    """What a probe was told."""

    status: int
    text: str
    content_type: str

    def json(self) -> Any:
        return json.loads(self.text)


def health_port(job: Job) -> int:
    """The port that the job has said, once it has."""
    told = re.compile(health_at(r"\S+?:(\d+)") + r"\n")
    job.until(lambda: told.search(job.stderr), "the health port")
    found = told.search(job.stderr)
    assert found is not None
    return int(found[1])


def probe(port: int, path: str, accept: str = "*/*") -> Answer:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        response = urllib.request.urlopen(request, timeout=PROBE_S)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        text = response.read().decode()
        return Answer(response.status, text, response.headers["Content-Type"])


def metrics(port: int) -> dict[str, float]:
    """By name, and labels that only some have: `holdfast_worker_step{rank="0"}`."""
    found = {}
    for line in probe(port, "/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, number = line.rpartition(" ")
            own = re.sub(r'run_id="[^"]*",node="[^"]*",?', "", name)
            found[own.removesuffix("{}")] = float(number)
    return found
