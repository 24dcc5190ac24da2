"""What the record of a job tells, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.registers import sentences as said

WORDS = [
    (said.not_kept("/r", "full"), "the coordinator's record cannot be kept in /r: full"),
    (said.not_believed("/r/a", "it is a link"), "/r/a is not believed: it is a link"),
    (said.foreign("/r/a"), "/r/a contains data that Holdfast did not write"),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: str, words: str) -> None:
    assert sentence == words
