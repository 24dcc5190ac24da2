"""What the command line says, word by word: each sentence once, and only here."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import pytest

from holdfast.cli import sentences as said

WORDS: list[tuple[Callable[[], object], object]] = [
    (
        lambda: said.out_of_descriptors("Too many open files"),
        (
            "Too many open files; the job cannot go on",
            "raise the limit (`ulimit -n`), or start fewer workers",
        ),
    ),
    (lambda: said.unfit_node("GPU 3 is missing"), "this node stays out: GPU 3 is missing"),
    (
        lambda: said.nobody_shown(2),
        "--local-ranks-filter: no worker of this node is shown (local ranks: 0 to 1)",
    ),
    (
        lambda: said.standalone_is_one_node(4),
        "--standalone runs on this node alone, not on up to 4",
    ),
    (
        lambda: said.standalone_ignores("--rdzv-backend", "etcd"),
        "--standalone ignores --rdzv-backend etcd",
    ),
    (
        lambda: said.static_endpoints("a:29400", "a:29500"),
        "static: the agents meet at a:29400, where rank 0 listens; the workers at a:29500",
    ),
    (
        lambda: said.few_cpus(8, 1),
        (
            "8 workers share 1 CPU, all that srun lets this node use; for more, give srun "
            "--cpus-per-task=N (sbatch's is not passed on)"
        ),
    ),
    (
        lambda: said.no_token("anyone", "HOLDFAST_TOKEN", "make one"),
        (
            "this job has no token: anyone can join it, and stop it; give all nodes one, in "
            "HOLDFAST_TOKEN or with --token-file FILE; make one"
        ),
    ),
    (
        lambda: said.short_token("make one"),
        "the token is short enough to be guessed; make one",
    ),
    (
        lambda: said.open_file(["read", "change"], "token", "/t"),
        "others on this machine can read and change the token in /t; chmod 600 /t",
    ),
    (
        lambda: said.reachable_dashboard("::"),
        (
            "--dashboard-host ::: every host that reaches this one can open the dashboard; the key "
            "in its link protects it, and crosses the network unencrypted; prefer ssh -L"
        ),
    ),
    (lambda: said.no_answer(("n1", "n2")), "no answer from n1, n2"),
    (lambda: said.in_full("/f/stacks.txt"), "in full: /f/stacks.txt"),
    (lambda: said.in_full("/f/stacks.txt", "n1"), "in full, on n1: /f/stacks.txt"),
    (lambda: said.no_node_answers("nightly"), "no node of nightly answers"),
    (lambda: said.unknown_there(("n1",)), "no answer from n1: what runs there is not known"),
    (lambda: said.no_step([1], 2, "1 min"), "rank 1 has made no step for 1 min"),
    (lambda: said.no_step([0, 1], 2, "1 min"), "no worker has made a step for 1 min"),
    (
        lambda: said.no_step([0, 1], 3, "1 min"),
        "2 of 3 workers (ranks 0, 1) have made no step for 1 min",
    ),
    (
        lambda: said.no_step(range(9), 12, "1 min"),
        "9 of 12 workers (ranks 0-8) have made no step for 1 min",
    ),
    (
        lambda: said.leaves_soon("n1"),
        "n1 was asked to leave; `holdfast events --follow` shows how it goes",
    ),
    (lambda: said.does_not_answer("n1"), "n1 does not answer; it may be gone already"),
    (lambda: said.scaled("1 to 2 nodes"), "the job has 1 to 2 nodes from now on"),
    (lambda: said.save_goes_on(None, 2), "waiting for a common step, 2 nodes left"),
    (lambda: said.save_goes_on(1200, 1), "saving step 1,200, 1 node left"),
    (lambda: said.saved(1200), "all workers that ask have saved step 1,200, and go on"),
    (lambda: said.saved(None), "all workers that ask have saved, and go on"),
    (
        lambda: said.ended("nightly", "failed", "12 s", "rank 1 failed"),
        "nightly has ended: failed after 12 s, rank 1 failed; report: holdfast report nightly",
    ),
    (
        lambda: said.ended("nightly", "succeeded", "12 s", ""),
        "nightly has ended: succeeded in 12 s; report: holdfast report nightly",
    ),
    (lambda: said.submitted("7", "/f"), "submitted job 7; its folder is /f"),
    (
        lambda: said.slurm_is_silent("no contact"),
        "Slurm does not answer (no contact); the job goes on without it",
    ),
    (lambda: said.no_longer_followed("7"), "job 7 goes on; you only stopped following it"),
    (lambda: said.ended_unrecorded("7"), "job 7 has ended, but no node recorded how"),
    (lambda: said.ended_as("7", "failed: rank 1"), "job 7 failed: rank 1"),
]


@pytest.mark.parametrize(("say", "words"), WORDS)
def test_a_sentence_says(say: Callable[[], object], words: object) -> None:
    assert say() == words


def test_every_sentence_is_here() -> None:
    used = {name for say, _ in WORDS for name in (say.__name__, *say.__code__.co_names)}
    assert {name for name, one in vars(said).items() if isinstance(one, FunctionType)} <= used
