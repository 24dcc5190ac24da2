"""Bugs in keeping hosts out on which rounds keep failing (§9)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "a host is kept out after its first failure",
        "§9.2",
        "core.policy.quarantine:blamed",
        "needed = policy.after if quarantines == 0 else 1",
        "needed = 1",
        "blamed",
        (82, 67, 48),
        shown_by="quarantined",
    ),
    Mutant(
        "whoever is kept out gets a seat all the same",
        "§9.2",
        "core.seating:candidates",
        "if name not in absent]\n",
        "if name not in absent]\n    return [*nodes, *absent]\n",
        "blamed",
        (48, 20, 33),
        also=(
            (
                "core.policy.quarantine:let_in",
                "quarantines=max(record.quarantines - 1, 0), until=now, told=False",
                "told=False",
            ),
        ),
        shown_by="quarantined",
    ),
    Mutant(
        "the job waits for nodes, since a host is kept out",
        "§9.4",
        "core.seating:candidates",
        "    for name in sorted(quarantined, key=lambda name: absent[name].until):\n",
        "    for name in ():\n",
        "blamed",
        (81, 14, 29),
    ),
    Mutant(
        "a takeover forgets who is kept out",
        "§9.5",
        "core.features.quarantine:HostQuarantine.took_over",
        "for kept in written.hosts",
        "for kept in ()",
        "blamed",
        (69, 27, 42),
        shown_by="quarantined",
    ),
    Mutant(
        "a running round is ended for a host that is kept out",
        "§9.2",
        "core.seating:count_newcomers",
        "waiting = [name for name in state.ready if name not in absent]",
        "waiting = list(state.ready)",
        "blamed",
        (48, 61, 27),
    ),
    Mutant(
        "who is kept out does not come back",
        "§9.3",
        "core.membership:HostRecord.is_out",
        "return now < self.until",
        "return self.quarantines > 0",
        "blamed",
        (4, 34, 91),
    ),
    Mutant(
        "a host that was lost again and again is taken at once",
        "§9.6",
        "core.seating:_absent",
        "if r and (r.is_out(now) or r.is_paused(now))",
        "if r and r.is_out(now)",
        "deaths",
        (210,),
    ),
)
