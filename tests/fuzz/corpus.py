"""Attacks that are kept: one or two of each kind of answer that was ever got.

An attack is what one client says. Names stand in it for what differs from job to job: `@host` and
`@peer` are the honest nodes, `@self` is the attacker.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent / "corpus"
KEPT_OF_A_KIND = 2
PAYLOAD_LIMIT = 200_000


class Attack(Struct, frozen=True):
    """What a client does: the name it comes with, whether it greets first, and its messages."""

    node: str
    greets: bool
    messages: tuple[Any, ...]

    def payloads(self, names: dict[str, str]) -> list[bytes]:
        return [msgspec.msgpack.encode(filled(message, names)) for message in self.messages]


def filled(value: Any, names: dict[str, str]) -> Any:
    """The value with names in place of what stands for them."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {filled(k, names): filled(v, names) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [filled(item, names) for item in value]
    return value


def kind_of(attack: Attack, answer: str) -> str:
    """Attacks of one kind got the same answer to the same type of message."""
    last = attack.messages[-1]
    name = last.get("type", "?") if isinstance(last, dict) else type(last).__name__
    return f"{str(name)[:30]}: {re.sub('[0-9]+', '#', answer)[:90]}"


class Corpus:
    """One file, a line for each attack."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / f"{name}.txt"
        self._counts: Counter[str] = Counter()
        self._lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in self._lines:
            self._counts[line.partition("\t")[0]] += 1

    def attacks(self) -> list[tuple[str, Attack]]:
        return [
            (kind, _read(text)) for kind, _, text in (line.partition("\t") for line in self._lines)
        ]

    def keep(self, kind: str, attack: Attack) -> None:
        written = _write(attack)
        if self._counts[kind] < KEPT_OF_A_KIND and len(written) < PAYLOAD_LIMIT:
            self._counts[kind] += 1
            self._lines.append(f"{kind}\t{written}")

    def save(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        self.path.write_text("".join(f"{line}\n" for line in sorted(self._lines)))


def _write(attack: Attack) -> str:
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(attack), 9)).decode()


def _read(text: str) -> Attack:
    return msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)), type=Attack)
