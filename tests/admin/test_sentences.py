"""What a client of a running job tells, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.admin import sentences as said

WORDS: list[tuple[object, object]] = [
    (said.NO_COORDINATOR, "the coordinator did not answer"),
    (said.silent(5.0), "the job has not answered for 5 s"),
    (said.no_own_job([]), "no job of yours runs on this machine"),
    (
        said.no_own_job(["uid 7", "ada"]),
        "no job of yours runs on this machine; uid 7, ada may have some",
    ),
    (
        said.no_such_job("a", ["b", "c"]),
        "no job called 'a' runs on this machine: b, c",
    ),
    (said.several_jobs(["b", "c"]), "several jobs run on this machine, so name one: b, c"),
    (
        said.jobs_of_several(["uid 7", "uid 8"], "a"),
        "uid 7 and uid 8 each have a job called 'a': ask as the one you mean",
    ),
    (said.just_ended("a"), "a has just ended"),
    (
        said.remote_client("10.0.0.1", "ada"),
        "someone at 10.0.0.1 (says it is ada)",
    ),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
