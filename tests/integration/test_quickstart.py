"""The script of the quickstart runs, saves, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import RunHoldfast

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"
TIMEOUT_S = 250


@pytest.mark.torch
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_the_script_of_the_quickstart_goes_on_where_it_was(
    run_holdfast: RunHoldfast, tmp_path: Path
) -> None:
    def lines(steps: int) -> list[str]:
        given = ["--steps", str(steps), "--checkpoint", str(tmp_path / "checkpoint.pt")]
        done = run_holdfast("run", "-n", "2", str(SCRIPT), *given, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first, then = lines(2), lines(3)
    assert [first[0], then[0]] == ["begins at step 0", "begins at step 2"]
    assert first[-1].startswith("step 2, loss ")
    assert then[-1].startswith("step 3, loss ")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
