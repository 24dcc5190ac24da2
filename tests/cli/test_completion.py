"""`holdfast run --print-completion SHELL`, tried in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli import completion
from holdfast.cli.main import VERBS
from holdfast.cli.table import OPTIONS

from .conftest import Run

OF_BASH = """
. ./script
COMP_WORDS=(WORDS) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
complete -p holdfast >&2
"""


def completed(script: str, folder: Path, words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    (folder / "script").write_text(script)
    command = ["bash", "--norc", "-ec", OF_BASH.replace("WORDS)", f"{words})")]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "_holdfast" in told.stderr
    return told.stdout.split()


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_it_is_printed_and_nothing_is_run(run_holdfast: Run, shell: str) -> None:
    done = run_holdfast("run", f"--print_completion={shell}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == completion.script(shell)
    assert run_holdfast("run", "--print-completion", shell, "train.py").stdout == done.stdout


def test_another_shell_is_refused(run_holdfast: Run) -> None:
    done = run_holdfast("run", "--print-completion", "fish")
    assert done.returncode == 2
    assert "bash" in done.stderr


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_it_has_every_option_and_command(shell: str) -> None:
    script = completion.script(shell)
    assert all(f"{option.name}" in script for option in OPTIONS)
    assert all(f" {verb}" in script for verb in VERBS)


def test_bash_completes_commands_options_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    script = completion.script("bash")
    assert completed(script, tmp_path, "holdfast st") == ["status", "stacks", "stop"]
    assert completed(script, tmp_path, "holdfast run --rdzv-c") == ["--rdzv-conf"]
    assert completed(script, tmp_path, "holdfast status --js") == ["--json"]
    assert completed(script, tmp_path, "holdfast jobs tr") == []
    assert completed(script, tmp_path, "holdfast run tr") == []


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["-n"]), ("tcsh", ["-fn"])])
def test_the_others_read_it(shell: str, check: list[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(completion.script(shell))
    subprocess.run([shell, *check, tmp_path / "script"], check=True)
