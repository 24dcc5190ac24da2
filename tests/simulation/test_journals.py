"""Journals of simulated nodes: all three machines decide again as they did, whatever struck."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from tools.journals.replay import replay
from tools.simulator import make_plan, simulate
from tools.simulator.everywhere import Case

from holdfast.observe.journal import ElectionStep, Step, read


def replayed(folder: Path) -> list[Step]:
    """All steps of all journals there; each is decided again as it was."""
    found: list[Step] = []
    for path in sorted(folder.glob("*.jsonl")):
        header, steps = read(path)
        assert list(replay(header, steps)) == [], path
        found += steps
    return found


def of_the_election(steps: list[Step]) -> list[ElectionStep]:
    return [step for step in steps if isinstance(step, ElectionStep)]


def effects(steps: list[ElectionStep]) -> set[str]:
    return {effect["type"] for step in steps for effect in step.effects}


@pytest.mark.parametrize("profile", ["leader", "register", "takeover", "emptied"])
def test_elections_replay(profile: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        simulate(make_plan(seed, profile), journals=folder)
        seen |= effects(of_the_election(replayed(folder)))
    assert {"WriteRegister", "Lead", "DialNodes"} <= seen


def test_a_failover_replays_on_the_node_that_takes_over(tmp_path: Path) -> None:
    Case.named("steady round/plain/its node is killed/33").play(journals=tmp_path)
    steps = of_the_election(replayed(tmp_path))
    leads = [step for step in steps if "Lead" in effects([step])]
    assert len(leads) > 1, "nobody took over"
    assert any(step.event["type"] == "LeaderTetherEnded" for step in steps)


def test_an_election_that_was_decided_otherwise_is_found(tmp_path: Path) -> None:
    simulate(make_plan(0, "leader"), journals=tmp_path)
    for path in tmp_path.glob("*.jsonl"):
        header, steps = read(path)
        for number, step in enumerate(steps):
            if isinstance(step, ElectionStep) and step.effects:
                changed = [*steps]
                changed[number] = structs.replace(step, effects=step.effects[1:])
                (difference,) = replay(header, changed)
                assert (difference.seq, difference.machine) == (step.seq, "election")
                return
    pytest.fail("no election is in the journals")


def test_a_journal_changes_nothing(tmp_path: Path) -> None:
    plan = make_plan(7)
    assert simulate(plan, journals=tmp_path).history == simulate(plan).history
