"""What the store tells its users, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.store import sentences

HOST = Endpoint("host1", 29400)
SENTENCES = [
    (sentences.round_over(2), "round 2 is over"),
    (sentences.round_not_begun(3), "round 3 has not begun"),
    (
        sentences.too_large("key", 5000, 4096),
        "a key of 5000 bytes is above the limit of 4096 bytes",
    ),
    (sentences.store_full(64), "the store is full: it holds 64 bytes at most"),
    (
        sentences.answer_too_large(64),
        "the values are above 64 bytes together: get fewer keys at once",
    ),
    (sentences.too_many_keys(17, 16), "17 keys are above the limit of 16 keys in one request"),
    (
        sentences.too_many_waiting(64),
        "too many clients wait for keys: their lists hold 64 bytes at most",
    ),
    (sentences.not_a_number("n"), "cannot add to n: its value is not a number"),
    (sentences.number_too_large("n"), "cannot add to n: the sum does not fit in 64 bits"),
    (sentences.not_set(["a"], 0.5), "a was not set within 0.5 s"),
    (sentences.not_set(["a", "b"], 2.0), "not all of a, b were set within 2 s"),
    (sentences.not_set(list("abcdef"), 2), "not all of a, b, c, d, e, … were set within 2 s"),
    (sentences.keys_and_values_differ(2, 1), "2 keys cannot be set to 1 values"),
    (sentences.no_answer(HOST, 3.0), "the store at host1:29400 did not answer within 3 s"),
    (sentences.unreachable(HOST, "refused"), "the store at host1:29400: refused"),
    (sentences.unresolved("host1"), "cannot resolve host1"),
    (sentences.unexpected_answer("Done"), "the store gave an unexpected answer: Done"),
]


@pytest.mark.parametrize(("said", "expected"), SENTENCES)
def test_a_sentence_is_word_by_word(said: str, expected: str) -> None:
    assert said == expected
