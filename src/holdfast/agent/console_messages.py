"""An agent's own lines on the console: plain, few (`--quiet`), many (`--verbose`), or JSON.

Rules
1. Plain, a sentence is a line when it is said (`ConsoleMessages`); nothing of the story is loaded
   for that.
2. Otherwise the story is told (`EventMessages`): with `--json` every event as one object, with
   `--verbose` every event as a line, with `--quiet` those that are failures. What the events have
   told is not said again. A job's last line, or object, has its numbers; `--quiet` leaves it out.
3. What goes wrong on this machine itself, outside of any step (a disk that does not answer), is
   said in every form.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct

from holdfast.core.coordinator_io import Explain
from holdfast.core.node_io import Say
from holdfast.core.policy.config import Output
from holdfast.core.protocol.bounds import clean
from holdfast.observe.history import Recovery
from holdfast.observe.journal import Journal, Step
from holdfast.processes.output.console import NAME, Console, own_line, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.observe.story import Kind, StoryEvent

FAILURES: tuple[Kind, ...] = (
    *("node_suspected", "node_lost", "contact_lost", "hang", "lease_ended", "decision"),
)
SENTENCES_KEPT = 64


class ClosingLine(Struct, frozen=True):
    """How a job ended: as a sentence, and as an event for programs."""

    words: str
    fields: dict[str, Any]


class ConsoleMessages:
    """Says what it is told to say, as lines."""

    def __init__(self, output: Output, console: Console, node: str) -> None:
        self._output, self._console, self._node = output, console, node

    def listen_to(self, journal: Journal) -> None:
        """Nothing to do: what is to be said is said."""

    def say(self, text: str) -> None:
        """Say a sentence of a step, or of the world around it."""
        self.complain(text)

    def complain(self, text: str) -> None:
        """Say what goes wrong outside of any step."""
        self._write(own_line(self._output, text, self._node))

    def recovered(self, recovery: Recovery) -> None:
        """A round that was broken is followed by one that works."""
        self.complain(recovery.shortly())

    def report(self, text: str, end: ClosingLine) -> None:
        """The last words: what went wrong, if anything did, and how the job ended."""
        before = stamp(self._output)
        self._write(f"{before}{text}\n" if text else "")
        self.complain(end.words)

    def _write(self, text: str) -> None:
        self._console.write(2, text.encode("utf-8", "replace"))


class EventMessages(ConsoleMessages):
    """Tells the story as it happens."""

    def listen_to(self, journal: Journal) -> None:
        from holdfast.observe.story import Storyteller

        self._teller = Storyteller(journal.header)
        self._last = ""
        """How the job ended, if that was told."""
        self._told: deque[str] = deque(maxlen=SENTENCES_KEPT)
        journal.listeners.append(self._take)

    def say(self, text: str) -> None:
        if text in self._told:
            self._told.remove(text)
        elif not self._output.quiet:
            self.complain(text)

    def recovered(self, recovery: Recovery) -> None:
        """Nothing to do: the story has it."""

    def report(self, text: str, end: ClosingLine) -> None:
        """As objects, what went wrong was told with the events; the last has the job's numbers."""
        if self._output.json:
            self._write(_packed({**end.fields, "words": clean(end.words), "by": self._node}))
            return
        headline, _, rest = text.partition("\n")
        if self._output.verbose and headline == self._last:
            text = rest
        if self._output.quiet:
            self._write(text)
        else:
            super().report(text, end)

    def _take(self, step: Step) -> None:
        for event in self._teller.feed(step):
            if not self._output.quiet or event.kind in FAILURES:
                self._write(self._line(event))
            if event.kind == "job_finished":
                self._last = f"{NAME}{event.words}"
        self._told.extend(_sentences_of(step))

    def _line(self, event: StoryEvent) -> str:
        if not self._output.json:
            return own_line(self._output, event.words)
        return _packed(event)


def _packed(thing: object) -> str:
    import msgspec

    return msgspec.json.encode(thing).decode() + "\n"


def _sentences_of(step: Step) -> list[str]:
    """The sentences that will be said of a step, as they will be."""
    sentences: list[str] = []
    for effect in getattr(step, "effects", ()):
        if isinstance(effect, Say):
            sentences.append(effect.text)
        elif isinstance(effect, Explain):
            sentences.append(effect.text)
            if effect.about:
                sentences.append(f"this node{effect.text.removeprefix(effect.about)}")
    return sentences
