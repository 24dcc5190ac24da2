"""What the runtime tells its users, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.runtime import sentences as said

WORDS: list[tuple[object, object]] = [
    (said.LINK, "it is a link, not a folder"),
    (said.NOT_OURS, "it does not belong to this user alone"),
    (said.FILE_NOT_OURS, "it is no file of this user's alone"),
    (
        said.disk_stalls("/logs", "training goes on"),
        "the disk of /logs does not answer: training goes on",
    ),
    (said.disk_answers("/logs", 7.4), "the disk of /logs answers again, after 7 s"),
    (
        said.waiting_for_disk("/logs", 5000, 10.0),
        (
            "waiting for the disk of /logs: 5 KiB are not written yet; "
            "10 s without an answer, or a signal, ends the wait"
        ),
    ),
    (
        said.gave_up_disk("/logs", 5000),
        "gave up waiting for the disk of /logs: 5 KiB are lost there",
    ),
    (
        said.own_error("LookupError"),
        (
            "this node ends because of an error in Holdfast: LookupError",
            "all of its workers are ended; please report what follows",
        ),
    ),
    (said.another_error("IndexError"), "then, while cleaning up: IndexError"),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
