"""The coordinator's record and the register's document, written by somebody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from holdfast.core.protocol.document import Document, decode
from holdfast.core.protocol.errors import HoldfastError
from holdfast.registers.register import RegisterSettings
from holdfast.registers.shared_file import SharedFileRegister

from .corpus import Attack, Corpus, filled, kind_of
from .jobs import JOB, Broken, HonestJob
from .shapes import Shapes

SECONDS_A_JOB = 20.0
STARTS = 8
PAUSES_S = (0.0, 0.1, 1.5)
"""Documents that nobody has read when the next one comes; and such that everybody has."""
END_S = 5.0
KNOWN: dict[type, tuple[Any, ...]] = {
    int: (0, 0, 1, 1, 2, 2, 3, 64, 20_000, 1_700_000_000),
    str: ("@host", "@peer", "somebody", "127.0.0.1", "default", "why not"),
}


def draw(random: Random) -> Attack:
    shapes = Shapes(random, KNOWN)
    shapes.wildness = random.choice((0.0, 0.02, 0.1, 0.3))
    return Attack("", False, (shapes.of(Document),))


def content(attack: Attack, names: dict[str, str]) -> bytes:
    return msgspec.json.encode(filled(attack.messages[0], names))


def what_is_wrong(attack: Attack) -> str:
    """What whoever reads such a document finds wrong with it."""
    try:
        decode(content(attack, {}))
    except (msgspec.MsgspecError, HoldfastError) as error:
        return str(error)
    return "nothing"


def fuzz_record(random: Random, folder: Path, corpus: Corpus) -> int:
    """Each time a host starts that finds such a record. It runs, or refuses in plain words."""
    for number in range(STARTS):
        attack = draw(random)
        place = folder / str(number)
        place.mkdir()
        try:
            answer = start_on_record(attack, place)
        except BaseException:
            print(f"with the record {attack!r}"[:4000])
            raise
        corpus.keep(kind_of(attack, f"{answer}, {what_is_wrong(attack)}"), attack)
    return STARTS


def start_on_record(attack: Attack, folder: Path) -> str:
    record = folder / "record"
    record.mkdir(mode=0o700)
    (record / f"{JOB}.json").write_bytes(content(attack, {}))
    (record / f"{JOB}.json").chmod(0o600)
    try:
        job = HonestJob(folder, "--nnodes", "2", is_full=True)
    except Broken as broken:
        if "waited in vain" not in str(broken):
            raise
        return "refused"
    try:
        job.end()
    finally:
        job.kill()
    return "ran"


def fuzz_document(random: Random, folder: Path, corpus: Corpus) -> int:
    """The document is replaced under a job that runs, again and again."""
    until = time.monotonic() + SECONDS_A_JOB
    made = 0

    def attacks() -> Iterator[Attack]:
        nonlocal made
        while time.monotonic() < until:
            attack = draw(random)
            made += 1
            corpus.keep(kind_of(attack, what_is_wrong(attack)), attack)
            yield attack

    change_documents(attacks(), folder)
    return made


def change_documents(attacks: Iterator[Attack], folder: Path) -> None:
    """Write each document in turn. The job may end in plain words, but not as if it were done."""
    (folder / "register").mkdir()
    words = ("--rdzv-backend", "file", "--rdzv-endpoint", str(folder / "register"))
    job = HonestJob(folder, *words, "--nnodes", "2", is_full=False)
    register = SharedFileRegister(RegisterSettings("file", str(folder / "register"), JOB))
    attack = None
    try:
        for number, attack in enumerate(attacks):
            replace(register, content(attack, job.names))
            job.watch(PAUSES_S[number % len(PAUSES_S)])
            if job.has_ended():
                break
        job.watch(END_S)
    except BaseException:
        print(f"at the document {attack!r}"[:4000])
        raise
    finally:
        job.kill()


def replace(register: SharedFileRegister, state: bytes) -> None:
    """As somebody does who has read it before; if that fails, the next one may succeed."""
    with suppress(HoldfastError):
        found = register.get_state()
        register.set_state(state, found[1] if found else None)
