"""Write before word: what a node is told of a round, a charge or the end is written already.

And what is written stays small: a few successors, and no list of members. Everybody can read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import DecodeError
from tools.simulator.facts import Delivered, History, Recorded, Violation, only
from tools.simulator.plan import Plan

from holdfast.core.protocol.document import LIMIT_BYTES, SUCCESSORS, Document, decode, encode
from holdfast.core.protocol.messages import CloseJob, RunRound

NAME = "written_first"


def check(plan: Plan, history: History) -> Iterator[Violation]:
    round, charges, outcome = 0, 0, None
    for fact in only(history, Recorded, Delivered):
        if isinstance(fact, Recorded):
            ledger = fact.document.ledger
            if len(fact.document.successors) > SUCCESSORS:
                yield Violation(NAME, fact.at, "the document lists more than a few successors")
            if ledger.outcome is not None and len(encode(fact.document)) > LIMIT_BYTES:
                yield Violation(NAME, fact.at, "the document is too large")
            if problem := _unreadable(fact.document):
                yield Violation(NAME, fact.at, f"nobody believes the document: {problem}")
            round, charges = max(round, ledger.round), max(charges, ledger.charges)
            outcome = ledger.outcome or outcome
        elif isinstance(fact, Delivered):
            message = fact.message
            if isinstance(message, RunRound):
                told = message.assignment
                if told.round > round or told.restart_count > charges:
                    text = (
                        f"{fact.node} was told of round {told.round} (restart "
                        f"{told.restart_count}), but round {round} ({charges}) was written"
                    )
                    yield Violation(NAME, fact.at, text)
            elif isinstance(message, CloseJob) and outcome is None:
                text = f"{fact.node} was told of an end that was not written"
                yield Violation(NAME, fact.at, text)


def _unreadable(document: Document) -> str:
    try:
        decode(encode(document))
    except DecodeError as error:
        return str(error)
    return ""
