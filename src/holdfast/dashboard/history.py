"""Rounds and incidents, put together from events.

Rules
1. A round goes from `round_formed` to `round_ended`; the last one goes on until the job's end.
2. An incident is a round that did not end as anybody wished: a worker failed, a node was lost, all
   stood still. What was observed first gives it its words.
3. It is over with the `recovered` of a later round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.dashboard.wire import EndedBy, IncidentShown, LedgerPart, RoundShown
from holdfast.observe.story import StoryEvent

ENDS: dict[str, EndedBy] = {
    "hang": "hang",
    "node_lost": "loss",
    "worker_failed": "failure",
    "lease_ended": "loss",
}
"""What ends a round, the most telling first: of a lost node the workers of others fail as well."""
PHASES = {
    "stop": "stop what is left",
    "form": "form the next round",
    "spawn": "start workers",
    "first step": "to the first step",
}


class RoundHistory:
    """All rounds of a job so far."""

    def __init__(self) -> None:
        self.rounds: list[RoundShown] = []
        self.incidents: list[IncidentShown] = []
        self._by_round: defaultdict[int, list[StoryEvent]] = defaultdict(list)

    def take(self, events: Iterable[StoryEvent]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: StoryEvent) -> None:
        match event.kind:
            case "round_formed":
                self._formed(event)
            case "round_ended":
                self._ended(event)
            case "decision":
                self._decided(event)
            case "recovered":
                self._recovered(event)
            case "job_finished":
                self._finished(event)
            case kind if kind in ENDS:
                self._by_round[event.round].append(event)
                self._late(event)

    def _formed(self, event: StoryEvent) -> None:
        if self._round(event.round) is None:
            self.rounds.append(RoundShown(event.round, event.at, event.words))

    def _round(self, number: int) -> int | None:
        """Where it stands in the list; the one that is meant is nearly always the last."""
        for k in range(len(self.rounds) - 1, -1, -1):
            if self.rounds[k].number == number:
                return k
        return None

    def _ended(self, event: StoryEvent) -> None:
        k = self._round(event.round)
        if k is None or self.rounds[k].ended is not None:
            return
        seen = self._by_round.pop(event.round, [])
        ended_by = _ended_by(seen)
        self.rounds[k] = replace(
            self.rounds[k], ended=event.at, ending=event.reason, ended_by=ended_by
        )
        if ended_by == "change":
            return
        first = next(one for one in seen if ENDS[one.kind] == ended_by)
        ranks = sorted({one.rank for one in seen if one.rank is not None})
        number = len(self.incidents) + 1
        incident = IncidentShown(
            number, first.at, event.round, first.words, first.reason, ranks=ranks
        )
        self.incidents.append(incident)

    def _late(self, event: StoryEvent) -> None:
        """What is told of a round after its end belongs to it still."""
        k = self._round(event.round)
        if k is None or self.rounds[k].ended is None:
            return
        self._by_round.pop(event.round, None)
        last = self.incidents[-1] if self.incidents else None
        if last is None or last.round != event.round:
            self.rounds[k] = replace(self.rounds[k], ended_by=ENDS[event.kind])
            ranks = [] if event.rank is None else [event.rank]
            number = len(self.incidents) + 1
            self.incidents.append(
                IncidentShown(number, event.at, event.round, event.words, event.reason, ranks=ranks)
            )
        elif event.rank is not None and event.rank not in last.ranks:
            self.incidents[-1] = replace(last, ranks=sorted([*last.ranks, event.rank]))

    def _decided(self, event: StoryEvent) -> None:
        if self.incidents and not self.incidents[-1].decision:
            self.incidents[-1] = replace(self.incidents[-1], decision=event.words)

    def _recovered(self, event: StoryEvent) -> None:
        for k in range(len(self.incidents) - 1, -1, -1):
            incident = self.incidents[k]
            if incident.recovered_s is not None or incident.round >= event.round:
                break
            parts = [LedgerPart(n, PHASES.get(n, n), s) for n, s in event.parts_s.items()]
            took = sum(event.parts_s.values())
            self.incidents[k] = replace(incident, recovered_s=took, phases=parts)

    def _finished(self, event: StoryEvent) -> None:
        if self.rounds and self.rounds[-1].ended is None:
            ended_by: EndedBy = "success" if not self._by_round else "change"
            self.rounds[-1] = replace(
                self.rounds[-1], ended=event.at, ending=event.words, ended_by=ended_by
            )


def _ended_by(seen: list[StoryEvent]) -> EndedBy:
    kinds = {event.kind for event in seen}
    return next((name for kind, name in ENDS.items() if kind in kinds), "change")
