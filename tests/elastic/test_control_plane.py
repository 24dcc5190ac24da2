"""A worker's main function with PyTorch's server for requests beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = """
import http.client, os, socket, sys
from {package}.control_plane import worker_main

@worker_main()
def main():
    path = os.environ.get("TORCH_WORKER_SERVER_SOCKET")
    if path:
        asking = http.client.HTTPConnection("localhost")
        asking.sock = socket.socket(socket.AF_UNIX)
        asking.sock.connect(path)
        asking.request("POST", "/handler/ping")
        print(asking.getresponse().status)
    if sys.argv[1:]:
        raise ValueError(sys.argv[1])
    print("worked")

main()
"""


def run(
    tmp_path: Path, package: str, *words: str, torch: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    program = MAIN.format(package=package)
    if not torch:
        program = f"import sys\nsys.modules['torch'] = None\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.torch
@pytest.mark.timeout(200)
@pytest.mark.parametrize("package", ["holdfast.elastic", "torch.distributed.elastic"])
def test_the_server_answers_while_the_function_runs(package: str, tmp_path: Path) -> None:
    ended = run(tmp_path, package, TORCH_WORKER_SERVER_SOCKET=str(tmp_path / "socket"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "200\nworked\n"


@pytest.mark.parametrize(
    "package",
    ["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)],
)
def test_without_the_variable_there_is_no_server(package: str, tmp_path: Path) -> None:
    ended = run(tmp_path, package, torch=package.startswith("torch"))
    assert (ended.returncode, ended.stdout) == (0, "worked\n"), ended.stderr


def test_what_is_raised_is_left_in_the_error_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    ended = run(tmp_path, "holdfast.elastic", "no", torch=False, TORCHELASTIC_ERROR_FILE=str(path))
    assert ended.returncode == 1
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: no"


def test_a_server_where_there_is_no_pytorch_is_a_clear_error(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    ended = run(tmp_path, "holdfast.elastic", torch=False, TORCH_WORKER_SERVER_SOCKET=path)
    assert ended.returncode == 1
    assert "TORCH_WORKER_SERVER_SOCKET asks for PyTorch's worker server" in ended.stderr
    assert "worked" not in ended.stdout
