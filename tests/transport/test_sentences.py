"""What connections tell of their ends, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.transport import sentences as said

WORDS = [
    (said.CLOSED, "the connection was closed"),
    (said.CUT_SHORT, "the connection was closed in the middle of a message"),
    (said.NOT_READING, "it did not read what was sent to it"),
    (said.RESET, "the connection was reset"),
    (said.TIMED_OUT, "the connection timed out"),
    (said.REFUSED, "refused the connection"),
    (said.MUTE, "nothing was said after the welcome"),
    (said.SLOW, "the handshake took too long"),
    (said.failed("no route"), "the connection failed (no route)"),
    (said.NO_ENDPOINT, "there is no endpoint to dial"),
    (said.unresolved("a"), "cannot resolve a"),
    (said.silent("10.0.0.1:1"), "10.0.0.1:1 did not answer"),
    (said.within("cannot resolve a", 0.5), "cannot resolve a within 0.5 s"),
    (
        said.other_version(3, 4),
        (
            "this coordinator speaks version 3 of the protocol, not 4: "
            "install the same Holdfast on every machine"
        ),
    ),
    (said.other_job("a", "b"), "this coordinator serves job a, not b"),
    (said.bad_certificate("too old"), "the certificate is not accepted: too old"),
    (said.HOLDER_SILENT, "a program that does not answer"),
    (said.holder(7), "another user (uid 7)"),
    (
        said.not_shared("a:1", "another user (uid 7)"),
        "a:1 is not shared with other jobs: another user (uid 7) has the name for that",
    ),
    (said.serves_others("a:1", 1), "a:1 also serves another job; is --rdzv-id right?"),
    (said.serves_others("a:1", 2), "a:1 also serves 2 other jobs; is --rdzv-id right?"),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: str, words: str) -> None:
    assert sentence == words
