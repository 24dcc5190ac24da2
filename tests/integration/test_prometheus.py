"""A real Prometheus server that scrapes a real job, and the board that is made for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.observe.metrics import METRICS

from ..free_ports import free_port
from ..waiting import once, until
from .conftest import StartJob
from .health_probes import STEPPING, health_port, probe

GRAFANA = Path(__file__).parents[2] / "examples" / "grafana"
BOARD, ALERTS, ALERTS_TEST = (
    GRAFANA / name for name in ("holdfast.json", "alerts.yml", "alerts_test.yml")
)
NAMES = {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]
        if metric.kind == "histogram"
        else [metric.name]
    )
}


def expressions() -> list[str]:
    panels = json.loads(BOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_expression_of_the_board_names_metrics_that_exist() -> None:
    for expression in expressions():
        named = set(re.findall(r"\b(?:holdfast|process)_\w+", expression))
        assert named, expression
        assert named <= NAMES, expression


def test_no_two_panels_of_the_board_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_names_metrics_that_exist() -> None:
    named = set(re.findall(r"\bholdfast_\w+", ALERTS.read_text()))
    assert named
    assert named <= NAMES


def test_every_alert_fires_where_it_should_and_not_in_a_healthy_job() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian: apt-get install prometheus)")
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text())
    tested = ALERTS_TEST.read_text()
    for alert in alerts:
        assert f"alertname: {alert}, exp_alerts: []" in tested, "quiet in a healthy job"
        assert f'alertname="{alert}"' in tested, "fires in one in trouble"
    for words in (("check", "rules", ALERTS), ("test", "rules", ALERTS_TEST)):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes one target every second."""

    def __init__(self, folder: Path, target: int) -> None:
        self.port = free_port()
        job = {"job_name": "holdfast", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
        self.log = folder / "prometheus.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until(self._is_up, self.log.read_text)

    def _is_up(self) -> bool:
        try:
            return probe(self.port, "/-/ready").status == 200
        except OSError:
            return False

    def ask(self, path: str, **query: str) -> Any:
        answer = probe(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert answer.status == 200, answer.text
        return answer.json()["data"]

    def value(self, expression: str) -> float | None:
        """Of the first series; None while there is none."""
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def scraped(start_job: StartJob, tmp_path: Path) -> Iterator[Prometheus]:
    """A job of two workers that has lost one and recovered, and a server that has seen it.

    More nodes could come, so that it has all that the board shows: leases, too.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("needs the Prometheus server (Debian: apt-get install prometheus)")
    meeting = ("--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--last-call=0.1")
    job = start_job("-n=2", *meeting, "--max-restarts=1", "--health-port=0", script=STEPPING)
    port = health_port(job)
    job.until(lambda: "step" in probe(port, "/progressz").text, "a step")
    (tmp_path / "server").mkdir()
    server = Prometheus(tmp_path / "server", port)
    try:
        until(lambda: server.value("holdfast_worker_step") is not None, "a scrape")
        (job.folder / "fail").touch()
        until(lambda: server.value("holdfast_round") == 2, "the second round")
        yield server
    finally:
        server.close()


def test_a_real_server_scrapes_a_real_job(scraped: Prometheus) -> None:
    (target,) = scraped.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    ends = 'holdfast_coordinator_round_ends_total{cause="failure"}'
    assert once(lambda: scraped.value(f"{ends} > 0")) == 1
    assert once(lambda: scraped.value("holdfast_recovery_seconds_count > 0")) == 1
    assert once(lambda: scraped.value("sum(holdfast_phase)")) == 1
    assert once(lambda: scraped.value('holdfast_time_seconds{part="useful"} > 0'))
    kinds = {name: found[0]["type"] for name, found in scraped.ask("metadata").items()}
    told = {metric.name: metric.kind for metric in METRICS if metric.name in kinds}
    assert told.items() <= kinds.items()
    assert len(told) > 30

    for expression in expressions():
        plain = expression.replace("$run_id", ".+").replace("$__rate_interval", "1m")
        once(partial(scraped.value, plain), f"a series of {plain}")
    shown = 'sum by (state) (holdfast_coordinator_nodes{run_id=~".+"})'
    assert once(lambda: scraped.value(f"{shown} > 0")) == 1
