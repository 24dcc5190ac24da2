"""What the views of a job tell, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.observe import sentences as said

WORDS: list[tuple[object, object]] = [
    (
        said.NO_STEPS,
        (
            'no worker reported a step (holdfast.progress): "useful" means that workers ran, '
            "and no step counts as lost"
        ),
    ),
    (
        said.CUT_OFF,
        "the journals end in the middle: the job runs elsewhere, or its agents were killed",
    ),
    (
        said.cut_journals(["b", "a", "b"]),
        "the journal of a, b ends before the job did: its agent was killed there",
    ),
    (
        said.missing_journals(1, 2),
        ("1 of 2 nodes' journals are here: what the others did is known as far as it was told"),
    ),
    (said.missing_lines(9), "9 lines are gone, because a journal had become too long"),
    (
        said.moved_clock("a", 0.5),
        "the clock of a was 0.500 s behind the coordinator's: its times are moved",
    ),
    (
        said.moved_clock("a", -0.5),
        "the clock of a was 0.500 s ahead of the coordinator's: its times are moved",
    ),
    (said.no_handler("mine", ["a", "b"]), "there is no event handler mine; there are a, b"),
    (said.not_a_handler("mine"), "the event handler mine is not a logging.Handler"),
    (
        said.handler_not_made("mine", ValueError("no")),
        "the event handler mine cannot be made: ValueError: no",
    ),
    (
        said.handler_failed("mine", ValueError("no")),
        "the event handler mine failed: ValueError: no",
    ),
    (said.handler_left("mine"), "the event handler mine is still at work, and is left"),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
