"""Attacks that are kept: the shortest of each kind of answer that was ever got.

An attack is what one client says. Names stand in it for what differs from job to job: `@host` and
`@peer` are the honest nodes, `@self` is the attacker.
"""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent / "corpus"
LENGTH_LIMIT = 1_500
"""Characters of a line: longer attacks are drawn anew in each run, and not kept."""
_VARIES = re.compile(r"the name \S+|[0-9]+|regex '.*")


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
    """Attacks of one kind got the same answer; what was taken is told by its type too."""
    if answer != "taken":
        return _VARIES.sub("#", answer)[:90]
    last = attack.messages[-1]
    name = last.get("type", "?") if isinstance(last, dict) else type(last).__name__
    return f"{str(name)[:30]} was taken"


class Corpus:
    """One file, a line for each attack."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / f"{name}.txt"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self._kept = dict(line.split("\t") for line in lines)

    def attacks(self) -> list[Attack]:
        return [_read(text) for _, text in sorted(self._kept.items())]

    def keep(self, kind: str, attack: Attack) -> None:
        known, text = self._kept.get(kind, ""), _write(attack)
        if len(text) <= (len(known) or LENGTH_LIMIT):
            self._kept[kind] = text

    def save(self) -> None:
        if not self._kept:
            return
        FOLDER.mkdir(exist_ok=True)
        lines = [f"{kind}\t{text}\n" for kind, text in sorted(self._kept.items())]
        self.path.write_text("".join(lines))


def _write(attack: Attack) -> str:
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(attack), 9)).decode()


def _read(text: str) -> Attack:
    return msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)), type=Attack)
