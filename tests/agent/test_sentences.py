"""What an agent tells its users, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.agent import sentences as said
from holdfast.core.protocol.model import Endpoint

WORDS: list[tuple[object, object]] = [
    (
        said.WATCHED_BY_SIGNS,
        (
            "--hang restart: hangs are noticed by steps of PyTorch's optimizers and phases; "
            "no worker reports steps (holdfast.progress)"
        ),
    ),
    (
        said.NOT_WATCHED,
        (
            "--hang restart: no worker reports steps (holdfast.progress) or uses an optimizer of "
            "PyTorch, so a job that hangs is restarted only if stacks show which rank the others "
            "wait for"
        ),
    ),
    (said.output_in_files("/logs"), "output of workers goes to files in /logs"),
    (
        said.health_at(Endpoint("10.0.0.1", 8080)),
        "health and metrics at http://10.0.0.1:8080/",
    ),
    (
        said.no_health_port(Endpoint("10.0.0.1", 8080), "no route"),
        "no health port, and the job goes on without it: 10.0.0.1:8080: no route",
    ),
    (said.UNSENT_AT_END, "not all spans could be sent before the agent ended"),
    (said.spans_unsent("http://c:4318"), "not all spans could be sent to http://c:4318"),
    (
        said.no_traces("no route"),
        "OpenTelemetry: no route; the job does without it",
    ),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
