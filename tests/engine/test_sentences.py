"""What the engine tells its users, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.engine import sentences as said

ENDPOINT = Endpoint("10.0.0.1", 29400)
WORDS: list[tuple[object, object]] = [
    (said.leads(ENDPOINT), "this node is the coordinator, on 10.0.0.1:29400"),
    (
        said.leads(ENDPOINT, from_round=3),
        "this node is the coordinator, on 10.0.0.1:29400, and goes on from round 3",
    ),
    (
        said.leads(ENDPOINT, is_loopback=True),
        ("this node is the coordinator, on 10.0.0.1:29400, which other machines cannot reach"),
    ),
    (said.leads_no_more("outranked"), "this node is no longer the coordinator: outranked"),
    (said.FOREIGN, "it contains data that Holdfast did not write"),
    (
        said.foreign_register(),
        ("it contains data that Holdfast did not write; is another program using this prefix?"),
    ),
    (
        said.FINISHED,
        "this job has already finished; telling the nodes that have not heard of it",
    ),
    (said.from_record(3), "going on from the record of round 3"),
    (said.without_record("it is empty"), "going on without the record: it is empty"),
    (
        said.knows_less("the disk is full"),
        "a restarted coordinator will know less: the disk is full",
    ),
    (
        said.refused("no token"),
        "refused a node that may not be what it seems: no token",
    ),
    (
        said.meant_elsewhere(ENDPOINT, ["10.0.0.2", "10.0.0.3"]),
        (
            "10.0.0.1:29400 is not taken for this machine, which does not have "
            "10.0.0.2, 10.0.0.3; --rdzv-conf is_host=true says that it is"
        ),
    ),
    (
        said.port_of_stranger(1000, ENDPOINT),
        (
            "another user of this machine (uid 1000) has the port of 10.0.0.1:29400",
            (
                "choose another port with --rdzv-endpoint; if a node of this job is there, "
                "give all of its nodes a token"
            ),
        ),
    ),
]


@pytest.mark.parametrize(("sentence", "words"), WORDS)
def test_its_words(sentence: object, words: object) -> None:
    assert sentence == words
