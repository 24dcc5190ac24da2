"""What `holdfast run` says when the machine has not enough of something."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from holdfast.cli import sentences


def test_too_few_descriptors_for_the_workers_are_said_in_a_sentence(
    holdfast: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    few = f"ulimit -n 60; exec {holdfast} run --nproc-per-node 60 {script}"

    ended = subprocess.run(
        ["bash", "-c", few], check=False, capture_output=True, text=True, timeout=100
    )

    assert ended.returncode == 1
    problem, hint = sentences.out_of_descriptors(os.strerror(errno.EMFILE))
    assert ended.stderr.endswith(f"holdfast: {problem}\nhint: {hint}\n")
