"""`holdfast dashboard`, and `holdfast run --dashboard`, as the installed command has them."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.waiting import once, until

from .conftest import Run

WAITS = """
import pathlib, sys, time
end = pathlib.Path(sys.argv[1])
end.with_name("begun").touch()
while not end.exists():
    time.sleep(0.02)
"""


def fetch(url: str, key: str = "", until_told: bytes = b"") -> tuple[int, bytes]:
    """The status, and what was answered: of a stream, up to what is waited for."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = answer.read1()
            while until_told not in told:
                told += answer.read1()
            return answer.status, told
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_its_help_says_how_to_go_there_from_another_machine(call_holdfast: Run) -> None:
    assert "ssh -L" in call_holdfast("dashboard", "--help").stdout


def test_the_key_is_in_no_output_of_an_agent_without_a_terminal(
    holdfast: str, run_holdfast: Run, tmp_path: Path
) -> None:
    script, name = tmp_path / "job.py", f"dash-{tmp_path.name}"
    script.write_text(WAITS)
    end, output = tmp_path / "end", tmp_path / "output"
    command = [holdfast, "run", "--rdzv-id", name, "--dashboard=0", "--log-dir", str(tmp_path)]
    with output.open("wb") as file:
        agent = subprocess.Popen([*command, str(script), str(end)], stdout=file, stderr=file)
    try:
        shown = once(lambda: re.search(r"dashboard: (http\S+)", output.read_text()), "its address")
        assert shown[1].startswith("http://127.0.0.1:")
        link = run_holdfast("dashboard", name).stdout.strip()
        url, _, key = link.partition("#key=")
        assert url == shown[1]
        assert len(key) >= 32
        assert fetch(url)[0] == 200
        assert fetch(f"{url}api/stacks")[0] == 401
        assert fetch(f"{url}api/stacks", key)[0] in (200, 503)
        assert key not in output.read_text()
        journals = [path.read_text() for path in tmp_path.rglob("journal.jsonl")]
        assert journals
        assert not any(key in journal for journal in journals)
    finally:
        end.touch()
        assert agent.wait(60) == 0


def test_a_job_without_a_dashboard_is_said_to_have_none(
    holdfast: str, run_holdfast: Run, tmp_path: Path
) -> None:
    script, name = tmp_path / "job.py", f"dash-{tmp_path.name}"
    script.write_text(WAITS)
    end = tmp_path / "end"
    agent = subprocess.Popen([holdfast, "run", "--rdzv-id", name, str(script), str(end)])
    try:
        until(end.with_name("begun").exists, "its worker")
        asked = run_holdfast("dashboard", name)
        assert "without a dashboard" in asked.stderr
        assert asked.returncode == 2
    finally:
        end.touch()
        assert agent.wait(60) == 0


def test_journals_are_served_until_a_signal(
    holdfast: str, run_holdfast: Run, tmp_path: Path
) -> None:
    run_holdfast("run", "--log-dir", str(tmp_path), "--no-python", "true")
    serving = subprocess.Popen(
        [holdfast, "dashboard", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert serving.stdout is not None
    assert serving.stderr is not None
    try:
        url, _, key = serving.stdout.readline().decode().strip().partition("#key=")
        assert b"page.js" in fetch(url)[1]
        assert fetch(f"{url}api/stream", key, until_told=b'"state":"succeeded"')[0] == 200
        assert fetch(f"{url}api/stream", "wrong")[0] == 401
    finally:
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
        serving.stdout.close()
        serving.stderr.close()


def test_a_job_that_is_short_ends_as_if_there_were_no_dashboard(run_holdfast: Run) -> None:
    ended = run_holdfast("run", "--dashboard=0", "--no-python", "true")
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
