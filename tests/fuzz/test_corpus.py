"""What fuzzing found worth keeping is said again, to real jobs (`python -m tests.fuzz`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from .corpus import Corpus
from .documents import change_documents, start_on_record
from .jobs import HonestJob
from .messages import carry_out

STARTED_ON = 6
"""Records that are tried here: each needs a job of its own."""


@pytest.mark.parametrize("name", ["full", "open"])
def test_whatever_a_stranger_says_the_job_stands(tmp_path: Path, name: str) -> None:
    """A full job does not even notice; one with free seats may end, but never crashes."""
    attacks = Corpus(name).attacks()
    assert len(attacks) > 20
    job = HonestJob(tmp_path, "--nnodes", "2" if name == "full" else "2:4", is_full=name == "full")
    try:
        for number, attack in enumerate(attacks):
            carry_out(attack, job, number)
            job.check()
            if job.has_ended():
                break
        job.end()
    finally:
        job.kill()


@pytest.mark.thorough(but=("0", "3"))
@pytest.mark.parametrize("number", range(STARTED_ON))
def test_whatever_the_record_says_a_host_runs_its_job(tmp_path: Path, number: int) -> None:
    attacks = Corpus("record").attacks()
    start_on_record(attacks[number * len(attacks) // STARTED_ON], tmp_path)


@pytest.mark.thorough
def test_whatever_the_document_says_nobody_crashes_or_believes_it(tmp_path: Path) -> None:
    attacks = Corpus("document").attacks()
    assert attacks
    change_documents(iter(attacks), tmp_path)
