"""What a node's engine tells its users, as functions of facts."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.protocol.model import Endpoint

LEADS = "this node is the coordinator"
LEADS_NO_MORE = "this node is no longer the coordinator"
FOREIGN = "it contains data that Holdfast did not write"
"""Of a document in the register."""
FINISHED = "this job has already finished; telling the nodes that have not heard of it"


def leads(endpoint: Endpoint, from_round: int = 0, is_loopback: bool = False) -> str:
    """It goes on `from_round`, if there was one."""
    known = f", and goes on from round {from_round}" if from_round else ""
    unreachable = ", which other machines cannot reach" if is_loopback else ""
    return f"{LEADS}, on {endpoint}{unreachable}{known}"


def leads_no_more(reason: str) -> str:
    return f"{LEADS_NO_MORE}: {reason}"


def foreign_register() -> str:
    return f"{FOREIGN}; is another program using this prefix?"


def from_record(round: int) -> str:
    return f"going on from the record of round {round}"


def without_record(reason: str) -> str:
    return f"going on without the record: {reason}"


def knows_less(problem: str) -> str:
    """The record cannot be written."""
    return f"a restarted coordinator will know less: {problem}"


def refused(reason: str) -> str:
    return f"refused a node that may not be what it seems: {reason}"


def meant_elsewhere(endpoint: Endpoint, others: Sequence[str]) -> str:
    """Only some of an endpoint's addresses are this machine's, and not the `others`."""
    return (
        f"{endpoint} is not taken for this machine, which does not have {', '.join(others)}; "
        "--rdzv-conf is_host=true says that it is"
    )


def port_of_stranger(uid: int, endpoint: Endpoint) -> tuple[str, str]:
    """The mistake and a hint."""
    return (
        f"another user of this machine (uid {uid}) has the port of {endpoint}",
        (
            "choose another port with --rdzv-endpoint; if a node of this job is there, "
            "give all of its nodes a token"
        ),
    )
