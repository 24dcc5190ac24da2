"""`holdfast.launch` from a real notebook: a Jupyter kernel, cells, closures over cell variables."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

CELLS = [
    "import os, holdfast\nbase = 10",
    """\
def work(x):
    print('hello from rank', os.environ['RANK'])
    return base + x + int(os.environ['RANK'])

values = holdfast.launch(work, 5, nproc=3)
print('values', values)""",
    """\
def fail():
    raise KeyError('missing')

try:
    holdfast.launch(fail, nproc=2)
except holdfast.JobFailed as failed:
    print('cause', failed.outcome.cause.error.message)""",
]

# In a process of its own, because the client library changes the event loop of its process.
DRIVER = """
import json, sys
import nbclient, nbformat

notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(source) for source in json.loads(sys.argv[1])]
nbclient.NotebookClient(notebook, timeout=100, startup_timeout=100, kernel_name="python3").execute()
shown = [
    [output.get("text", "") for output in cell.outputs if output.get("name") == "stdout"]
    for cell in notebook.cells
]
print("SHOWN" + json.dumps(["".join(texts) for texts in shown]))
"""

needs_jupyter = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="needs nbclient and ipykernel",
)


@needs_jupyter
def test_functions_of_a_notebook_run_and_their_output_is_shown_in_the_cell(
    tmp_path: Path,
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)

    ended = subprocess.run(
        [sys.executable, str(driver), json.dumps(CELLS)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
    )

    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout.partition("SHOWN")[2])
    for rank in range(3):
        assert f"hello from rank {rank}\n" in shown[1]
    assert "values {0: 15, 1: 16, 2: 17}" in shown[1]
    assert "cause KeyError: 'missing'" in shown[2]
