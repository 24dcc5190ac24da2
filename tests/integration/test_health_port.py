"""The health port of real jobs: before, during and after rounds, and without a coordinator."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.sentences import health_at, no_health_port
from holdfast.core.protocol.model import Endpoint

from ..free_ports import free_port
from .conftest import StartJob
from .health_probes import STEPPING, health_port, metrics, probe


def test_a_job_that_restarts_tells_probes_all_the_way(start_job: StartJob) -> None:
    job = start_job("-n=2", "--max-restarts=1", "--health-port=0", script=STEPPING)
    port = health_port(job)
    assert probe(port, "/livez") == (200, "alive\n", "text/plain; charset=utf-8")
    job.until(lambda: probe(port, "/readyz").status == 200, "the first round")
    assert probe(port, "/readyz").text == "ready: in round 1 with ranks 0 to 1 of 2\n"
    job.until(lambda: probe(port, "/progressz").text.startswith("step "), "a step")
    assert probe(port, "/progressz?max_age=600").status == 200
    assert probe(port, "/progressz?max_age=0").status == 503
    assert probe(port, "/progressz?max_age=soon").status == 400
    as_json = probe(port, "/progressz", accept="application/json")
    assert as_json.content_type == "application/json"
    assert {rank["rank"] for rank in as_json.json()["ranks"]} == {0, 1}
    assert probe(port, "/readyz.json").json()["phase"] == "running"

    (job.folder / "fail").touch()
    job.until(lambda: "in round 2" in probe(port, "/readyz").text, "the second round")
    done = 'holdfast_time_seconds{part="useful"}'
    job.until(lambda: metrics(port)["holdfast_recovery_seconds_count"] == 1, "the recovery")
    known = metrics(port)
    assert known["holdfast_rounds_total"] == 2
    assert known['holdfast_worker_exits_total{result="failed"}'] == 1
    assert known['holdfast_coordinator_round_ends_total{cause="failure"}'] == 1
    assert known["holdfast_coordinator_restarts"] == 1
    assert known['holdfast_recovery_phase_seconds_count{phase="first_step"}'] == 1
    assert known['holdfast_worker_step{rank="1"}'] >= 0
    assert 0 < known["holdfast_goodput_ratio"] < 1
    job.until(lambda: metrics(port)[done] > known[done], "more useful time")
    (job.folder / "end").touch()
    assert job.wait() == 0


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (Debian: prometheus)")
def test_prometheus_own_tool_finds_nothing_wrong(start_job: StartJob) -> None:
    job = start_job("--health-port=0", script=STEPPING)
    port = health_port(job)
    job.until(lambda: 'holdfast_worker_step{rank="0"}' in metrics(port), "a step")
    page = probe(port, "/metrics")
    assert page.content_type == "text/plain; version=0.0.4; charset=utf-8"
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page.text,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_port_that_is_taken_is_said_and_done_without(run_job: StartJob) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = run_job(f"--health-port={port}", script="print('ran')")
    assert job.wait() == 0
    assert job.stdout == "ran\n"
    taken_words = os.strerror(errno.EADDRINUSE)
    assert no_health_port(Endpoint("::", port), taken_words) in job.stderr


def test_an_address_that_is_not_of_this_machine_is_said_too(run_job: StartJob) -> None:
    job = run_job("--health-port=0", "--health-host=192.0.2.7", script="print('ran')")
    assert job.wait() == 0
    why = os.strerror(errno.EADDRNOTAVAIL)
    assert no_health_port(Endpoint("192.0.2.7", 0), why) in job.stderr


def test_torchruns_variable_asks_for_it_too_and_one_address_can_be_enough(
    start_job: StartJob,
) -> None:
    port = free_port()
    variables = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(port), "HOLDFAST_HEALTH_HOST": "127.0.0.1"}
    job = start_job(script=STEPPING, env=variables)
    told = health_at(Endpoint("127.0.0.1", port))
    job.until(lambda: told in job.stderr, "the port")
    assert probe(port, "/").text.startswith("/livez ")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port))


def test_a_node_answers_while_it_waits_and_when_the_coordinator_is_gone(
    start_job: StartJob, tmp_path: Path
) -> None:
    words = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--no-warm", "--lease=60")
    more = (*words, f"--snapshot-dir={tmp_path}", "--health-port=0")
    host = start_job(*more, "--rdzv-conf=is_host=1", script=STEPPING)
    port = health_port(host)
    waits = "not ready: this node waits for a round to form\n"
    host.until(lambda: probe(port, "/readyz").text == waits, "a node that waits")
    assert probe(port, "/progressz?max_age=1").status == 200
    other = start_job(*more, "--rdzv-conf=is_host=0", script=STEPPING)
    port_of_other = health_port(other)
    other.until(lambda: probe(port_of_other, "/readyz").status == 200, "the round")
    here, there = metrics(port), metrics(port_of_other)
    assert here['holdfast_coordinator_nodes{state="in_round"}'] == 2
    assert here["holdfast_coordinator_ranks"] == here["holdfast_round_ranks"] == 2
    assert there["holdfast_coordinator_here"] == 0
    assert "holdfast_coordinator_ranks" not in there
    assert 0 < there["holdfast_lease_remaining_seconds"] <= 60
    other.until(lambda: metrics(port)["holdfast_coordinator_messages_total"] > 4, "heartbeats")
    host.process.kill()
    reached = "holdfast_coordinator_reached"
    other.until(lambda: metrics(port_of_other)[reached] == 0, "the loss")
    assert probe(port_of_other, "/livez").text == "alive\n"


LOADED = """
import sys
from holdfast.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("loaded", [name for name in sys.modules if "http" in name or name == "h11"])
"""


@pytest.mark.parametrize(("words", "has"), [((), False), (("--health-port=0",), True)])
def test_a_job_without_the_option_loads_nothing_of_it(
    start_program: StartJob, words: tuple[str, ...], has: bool
) -> None:
    command = (sys.executable, "main.py", "run", *words, "program.py")
    job = start_program(*command, files={"main.py": LOADED, "program.py": "print('ran')"})
    assert job.wait() == 0
    assert "ran\n" in job.stdout
    assert ("h11" in job.stdout) is has
    assert ("http_server" in job.stdout) is has
    assert has or "loaded []" in job.stdout
