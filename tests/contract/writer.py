"""A process that writes in a tight loop, and tells what it saw.

    writer SETTINGS WHO ROUNDS REST        settings as JSON; begins when it is told a line

Each round sets over what was last seen, right or wrong; some begin with a read. An unclear
answer is followed by a read, as an agent does it. One that was never refused has not met anybody
yet, and goes on for some time. The history goes to standard output.
"""

from __future__ import annotations

import random
import sys
from time import monotonic, sleep
from typing import Any

import msgspec

from holdfast.registers.register import Register, RegisterSettings, RegisterUnreachable

from .history import Operation
from .opening import open_for_test

PATIENCE = 10
"""How many times the rounds until nobody is expected any more."""


class Writer:
    """One user of a register, who remembers every call."""

    def __init__(self, register: Register, who: str, seed: int = 0) -> None:
        self._register, self._who = register, who
        self._random = random.Random(f"{who}{seed}")
        self._token: Any = None
        self._content: str | None = None
        self.history: list[Operation] = []
        self._has_met_another = False

    def write(self, rounds: int, rest_s: float = 0.0) -> None:
        must_read = True
        for number in range(PATIENCE * rounds):
            if number >= rounds and self._has_met_another:
                return
            if rest_s:
                sleep(rest_s)
            if must_read or self._random.random() < 0.3:
                self.read()
            must_read = not self.set(f"{self._who}-{number}")

    def read(self) -> None:
        began = monotonic()
        found = self._register.get_state()
        self._see(found)
        self._note(began, "read")

    def set(self, content: str) -> bool:
        """Whether an answer came."""
        expected, began = self._content, monotonic()
        try:
            found = self._register.set_state(content.encode(), self._token)
        except RegisterUnreachable:
            self._note(began, "unknown", content, expected)
            return False
        assert found is not None
        self._see(found[:2] if found[0] else None)
        self._has_met_another = self._has_met_another or not found[2]
        self._note(began, "set" if found[2] else "refused", content, expected)
        return True

    def _see(self, found: tuple[bytes, Any] | None) -> None:
        content, self._token = (None, None) if found is None else found
        self._content = None if content is None else content.decode()

    def _note(
        self, began: float, outcome: Any, content: str = "", expected: str | None = None
    ) -> None:
        self.history.append(
            Operation(self._who, began, monotonic(), outcome, self._content, content, expected)
        )


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=RegisterSettings)
    register = open_for_test(settings)
    writer = Writer(register, sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    writer.write(int(sys.argv[3]), float(sys.argv[4]))
    getattr(register, "close", lambda: None)()
    sys.stdout.buffer.write(msgspec.json.encode(writer.history))


if __name__ == "__main__":
    main()
