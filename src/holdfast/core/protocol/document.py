"""The document that survives a coordinator's death: who leads, and the ledger.

Rules
1. The document is small (4 KB at most) and holds no list of members: nodes report their
   rounds, and a round is whole when all of its nodes have.
2. Every write is unique (`counter` grows, `nonce` is the writer's), so that a register that
   compares values cannot take an old one for a new one.
3. (instance, epoch, round) only grows.
4. A document is believed only if Holdfast can have written it (`decode`): each field within its
   bounds, and all of them consistent. Anybody who can write the register, or the record's file,
   can put something else there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import NAME_MOST, Count, Name, NameOrNone, Number, Seconds
from holdfast.core.protocol.model import Endpoint, Failure, Outcome, Term

SUCCESSORS = 5
DONE_KEPT = 64
HOSTS_KEPT = 16
"""The most hosts with records of failed rounds."""
LIMIT_BYTES = 4096
READ_BYTES = 1 << 16
"""A longer document is not read: names may be longer than usual, but not by so much."""
DECODED_KEPT = 128
"""Decoded documents that are cached by their bytes."""
TEXT_KEPT = 350
NAME_KEPT = 60
TEXT_TOLD = 1 << 17
"""Characters that the failures in one message may have: a frame holds them in any script."""
OTHERS_TOLD = 32
"""How many failures beside the cause every node is told of."""


Roll = Annotated[int, Meta(ge=0, le=1 << 56)]
Nonce = Annotated[str, Meta(max_length=NAME_MOST + 32)]
DoneSeats = Annotated[tuple[Count, ...], Meta(max_length=DONE_KEPT)]
Successors = Annotated[tuple[Name, ...], Meta(max_length=4 * SUCCESSORS)]
Addresses = Annotated[dict[Name, Endpoint], Meta(max_length=4 * SUCCESSORS + 1)]


class HostKept(Struct, frozen=True, array_like=True):
    """The record of a host on which rounds failed (`core.policy.quarantine`)."""

    host: Roll
    """Its name as a number (`roll`): a name may be long, and nodes send theirs."""
    failures: Count
    quarantines: Count
    left_s: Seconds
    """Seconds of quarantine from now on; below zero, seconds since its end."""
    losses: Count = 0
    """Rounds that lost a node on it since the job last made progress."""
    pause_s: Seconds = 0.0
    """For how long no round takes its nodes."""


class NodeLimits(Struct, frozen=True, array_like=True):
    """The least and the greatest number of nodes, if an operator changed them."""

    least: Count
    most: Count
    by: NameOrNone = ""
    """The operator, in words."""


HostsKept = Annotated[tuple[HostKept, ...], Meta(max_length=HOSTS_KEPT)]


class Ledger(Struct, frozen=True, omit_defaults=True):
    """The part that the coordinator decides: written before it is announced."""

    round: Number = 0
    size: Count = 0
    """How many nodes the round has."""
    charges: Count = 0
    """How many rounds have ended because a worker failed."""
    outcome: Outcome | None = None
    leader_seat: Count | None = None
    """The leader's own seat in the round: when its node is dead, so is that member."""
    roll: Roll = 0
    """The set of members, as one number (`roll`): enough to compare."""
    instance: Number = 0
    """Of the job, when the round was formed: a later one may have taken it over."""
    held: bool = False
    """Not all members have reported since a takeover from a coordinator that may hold their leases
    without the register: the next successor has to allow for that, too."""
    done: DoneSeats = ()
    """DoneSeats of the round whose workers have all succeeded, as far as that has to be known: the
    leader's, and those of nodes that have left. None is waited for (at most `DONE_KEPT`)."""
    closing: Outcome | None = None
    """No round follows the present one, and how the job ends unless that succeeds."""
    hosts: HostsKept = ()
    """Hosts on which rounds failed: some are quarantined."""
    limits: NodeLimits | None = None
    """Limits that replace `--nnodes` (`core.features.commands`)."""
    restart: NameOrNone = ""
    """The operator who asked for the end of the round, in words; it may not have come yet."""


class Document(Struct, frozen=True, omit_defaults=True):
    """The whole document: the leader, and the ledger."""

    instance: Number
    epoch: Number
    counter: Number
    nonce: Nonce
    leader: NameOrNone
    """Empty if the last leader resigned."""
    successors: Successors = ()
    ledger: Ledger = Ledger()
    addresses: Addresses = msgspec.field(default_factory=dict)
    """The addresses of the leader and its successors."""
    left: NameOrNone = ""
    """The last leader, if it resigned because its node left: nothing runs there any more."""

    @property
    def term(self) -> Term:
        return Term(self.instance, self.epoch)


@cache
def decoder() -> msgspec.json.Decoder[Document]:
    """A caller that decodes in a thread calls this before: msgspec crashes if two threads first
    meet a type at the same time. It takes a moment, which a job of one node need not wait for."""
    return msgspec.json.Decoder(Document)


def encode(document: Document) -> bytes:
    return msgspec.json.encode(document)


@lru_cache(maxsize=DECODED_KEPT)
def decode(content: bytes) -> Document:
    """Equal bytes give the same document: most reads of a register find what the last one found,
    and a writer its own. Documents are never changed.

    Raises `msgspec.DecodeError` for anything that Holdfast cannot have written."""
    if len(content) > READ_BYTES:
        raise msgspec.DecodeError(f"{len(content)} bytes are too many")
    try:
        document = decoder().decode(content)
    except msgspec.DecodeError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if problem := contradiction(document.ledger):
        raise msgspec.DecodeError(problem)
    return document


def contradiction(ledger: Ledger) -> str:
    """The contradictions in a ledger; empty if none."""
    if ledger.size and not ledger.round:
        return "it has members of a round that never was"
    if any(seat >= ledger.size for seat in ledger.done):
        return f"it has a seat that a round of {ledger.size} has not"
    if len(set(ledger.done)) < len(ledger.done):
        return "it has a seat twice"
    if len({kept.host for kept in ledger.hosts}) < len(ledger.hosts):
        return "it has a host twice"
    limits = ledger.limits
    if limits is not None and not 1 <= limits.least <= limits.most:
        return f"it has a job of {limits.least} to {limits.most} nodes"
    return ""


def roll(nodes: Iterable[str]) -> int:
    """One number for a set of nodes, however many: no other set has the same.

    The roll of two sets that share nobody is `roll(one) ^ roll(other)`.
    """
    from hashlib import blake2b  # Here, because a job of one node does without.

    called = 0
    for node in nodes:
        called ^= int.from_bytes(blake2b(node.encode(), digest_size=7).digest(), "big")
    return called


def brief(outcome: Outcome | None) -> Outcome | None:
    """An outcome that fits the document: the cause in short, without the others."""
    if outcome is None:
        return None
    cause = outcome.cause
    if cause is not None:
        # Its error file is a path on its own node, which knows more anyway.
        cause = msgspec.structs.replace(digest(cause), error_file="", role=cause.role[:NAME_KEPT])
    blame = outcome.blame
    if blame is not None:
        why = _cut(blame.why) if blame.why != outcome.reason else ""
        blame = msgspec.structs.replace(blame, who=_cut(blame.who), why=why)
    reason = _cut(outcome.reason)
    return msgspec.structs.replace(outcome, reason=reason, cause=cause, others=(), blame=blame)


def _cut(text: str, *, end: bool = False) -> str:
    """As much of a text as takes `TEXT_KEPT` bytes when written; its beginning, or its end."""
    kept = text[-TEXT_KEPT:] if end else text[:TEXT_KEPT]
    while len(msgspec.json.encode(kept)) > TEXT_KEPT + 2:
        shorter = len(kept) * 3 // 4
        kept = kept[-shorter:] if end else kept[:shorter]
    if kept == text:
        return text
    # Make room for the bytes of the sign.
    return f"…{kept[3:]}" if end else f"{kept[:-3]}…"


def digest(failure: Failure) -> Failure:
    """A failure in a few hundred bytes: enough to judge it, not to show all of it."""
    error = msgspec.structs.replace(
        failure.error, message=_cut(failure.error.message), traceback=""
    )
    tail = _cut(failure.stderr_tail, end=True)
    evidence = _cut(failure.out_of_memory)
    return msgspec.structs.replace(
        failure, error=error, stderr_tail=tail, out_of_memory=evidence, versions="", brief=True
    )


def fit(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Failures as one message can hold them: the first ones in full, the last ones in short."""
    left = TEXT_TOLD
    told = []
    for failure in failures:
        told.append(failure if _length(failure) <= left else digest(failure))
        left = max(0, left - _length(told[-1]))
    return tuple(told)


def fit_outcome(outcome: Outcome) -> Outcome:
    """An outcome short enough for every node of a large job."""
    if outcome.cause is None:
        return outcome
    cause, *others = fit((outcome.cause, *outcome.others[:OTHERS_TOLD]))
    untold = len(outcome.others) - len(others)
    return msgspec.structs.replace(outcome, cause=cause, others=tuple(others), others_untold=untold)


def _length(failure: Failure) -> int:
    error = failure.error
    own = (failure.stderr_tail, failure.out_of_memory, failure.versions)
    texts = (error.message, error.traceback, *own)
    return sum(map(len, texts))
