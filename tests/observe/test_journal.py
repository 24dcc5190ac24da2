"""The journal: everything that goes in comes out again, and decides the same again."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tools.journals.replay import replay

from holdfast.core import node as agent
from holdfast.core.coordinator import Beginning, check_leases, coordinator_of, receive, run_step
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Heard,
)
from holdfast.core.features.of_node import new_node
from holdfast.core.node_io import (
    AllGone,
    CoordinatorLost,
    CoordinatorReached,
    KillEverything,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    Report,
    Say,
    StartWorkers,
    StepReported,
    Told,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Output, Program, Rendezvous, RestartPolicy
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import (
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RoundReport,
    Seen,
    ToNode,
    Welcomed,
    WorkersProgressed,
)
from holdfast.core.protocol.model import NodeInfo, Term
from holdfast.observe.journal import (
    SCHEMA,
    ClockPair,
    ClockRead,
    CoordinatorBegan,
    CoordinatorStep,
    Gap,
    Journal,
    JournalHeader,
    NodeStep,
    Step,
    read,
)

from ..core.node.imaginary_node import BLOWS, CHANCES, NODE, Node
from .samples import fields_at_default, samples

JOB = JobConfig(
    "job",
    Program("script", "train.py", arguments=("--api-key", "sk-123")),
    slots=2,
    output=Output(redirects={0: 3, 12: 1}),
    restarts=RestartPolicy(max_restarts=3),
)
HEADER = JournalHeader(
    SCHEMA, "job", NODE, "here", "2026-01-31T12:00:00+0000", JOB, ClockPair(0.0, 0.0)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


# --- a round trip for every type ----------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(NodeEvent), ids=lambda kind: kind.__name__)
def test_every_event_of_the_agent_comes_back_as_it_was(path: Path, kind: type) -> None:
    there = [NodeStep(n, n / 3, event, []) for n, event in enumerate(samples(kind), 1)]
    assert written_and_read(path, there) == there


ROOT = Path(__file__).parents[2]


def event_of(step: Step) -> object:
    return getattr(step, "event", None)


def effects_of(step: Step) -> list[object]:
    return getattr(step, "effects", [])


@pytest.mark.parametrize("kind", get_args(NodeEffect), ids=lambda kind: kind.__name__)
def test_every_effect_of_the_agent_comes_back_as_it_was(path: Path, kind: type) -> None:
    there = [NodeStep(1, 0.5, AllGone(), samples(kind))]
    assert written_and_read(path, there) == there


@pytest.mark.parametrize("kind", get_args(CoordinatorEvent), ids=lambda kind: kind.__name__)
def test_every_event_of_the_coordinator_comes_back_as_it_was(path: Path, kind: type) -> None:
    there = [CoordinatorStep(n, n / 3, event, []) for n, event in enumerate(samples(kind), 1)]
    assert written_and_read(path, there) == there


@pytest.mark.parametrize("kind", get_args(CoordinatorEffect), ids=lambda kind: kind.__name__)
def test_every_effect_of_the_coordinator_comes_back_as_it_was(path: Path, kind: type) -> None:
    (event, *_) = samples(CoordinatorEvent)
    there = [CoordinatorStep(1, 0.5, event, samples(kind))]
    assert written_and_read(path, there) == there


def written_and_read(path: Path, steps: list[Any]) -> list[Step]:
    journal = Journal(path, HEADER)
    for step in steps:
        add = journal.agent if isinstance(step, NodeStep) else journal.coordinator
        add(step.at, step.event, step.effects)
    journal.close()
    return read(path)[1]


def test_the_samples_show_all_of_a_type() -> None:
    """Or the tests above would pass on fields that are not even written."""
    for kind in get_args(NodeEvent):
        not_shown = [set(fields_at_default(one)) for one in samples(kind)]
        assert not set.intersection(*not_shown), kind
    assert {type(one.message) for one in samples(Told)} == set(get_args(ToNode))
    assert {type(one.message) for one in samples(Heard)} == set(get_args(FromNode))


# --- the file -----------------------------------------------------------------------------


def test_the_first_line_describes_the_job_without_the_program_s_arguments(path: Path) -> None:
    Journal(path, HEADER).close()
    assert "sk-123" not in path.read_text()
    header, steps = read(path)
    assert steps == []
    without = structs.replace(JOB.program, arguments=())
    assert header == structs.replace(HEADER, config=structs.replace(JOB, program=without))


def test_every_line_is_one_object_as_the_schema_says(path: Path) -> None:
    journal = Journal(path, HEADER)
    journal.agent(1.5, AllGone(), [KillEverything(), Say("hello")])
    journal.coordinator(2.5, samples(CoordinatorEvent)[0], [])
    journal.close()
    header, first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert list(header) == ["schema", "job", "node", "host", "started", "config", "clock"]
    assert first == {
        "machine": "agent",
        "seq": 1,
        "at": 1.5,
        "event": {"type": "AllGone"},
        "effects": [{"type": "KillEverything"}, {"type": "Say", "text": "hello"}],
    }
    assert (second["machine"], second["seq"]) == ("coordinator", 2)


def test_a_journal_is_for_its_owner_s_eyes_only(path: Path) -> None:
    Journal(path, HEADER).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_is_in_the_file_as_soon_as_the_step_was_taken(path: Path) -> None:
    journal = Journal(path, HEADER)
    journal.agent(1.0, AllGone(), [])
    assert len(read(path)[1]) == 1
    journal.close()


def test_a_journal_that_was_cut_off_anywhere_is_read_up_to_there(path: Path) -> None:
    journal = Journal(path, HEADER)
    for _ in range(3):
        journal.agent(1.0, AllGone(), [Say("hello")])
    journal.close()
    whole, steps = path.read_bytes(), read(path)[1]
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert read(path)[1] == steps[: sum(end <= cut for end in ends) - 1]


def test_text_that_is_no_text_does_not_end_the_job(path: Path) -> None:
    odd = structs.replace(HEADER, config=structs.replace(JOB, role="caf\udce9"))
    journal = Journal(path, odd)
    journal.agent(1.0, AllGone(), [Say("cannot open caf\udce9")])
    journal.agent(2.0, AllGone(), [Say("fine")])
    journal.close()
    header, steps = read(path)
    assert header.config.role == "caf?"
    assert header.config.output.redirects == {0: 3, 12: 1}
    assert [effects_of(step) for step in steps] == [[Say("cannot open caf?")], [Say("fine")]]


def test_a_full_disk_does_not_end_the_job() -> None:
    journal = Journal(Path("/dev/full"), HEADER)
    journal.agent(1.0, AllGone(), [])
    assert journal.problem == "No space left on device"
    journal.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """For as short as can be: the limit holds for the test runner's own output, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_leaves_a_journal_that_can_be_read(path: Path) -> None:
    journal = Journal(path, HEADER)
    journal.agent(1.0, AllGone(), [Say("the first")])
    with files_no_larger_than(path.stat().st_size + 20):
        journal.agent(2.0, AllGone(), [Say("the second is cut off")])
        journal.agent(3.0, AllGone(), [Say("the third is not written")])
    assert journal.problem == "the disk is full"
    assert [step.seq for step in read(path)[1]] == [1]


def test_without_a_path_nothing_is_written_and_listeners_still_hear(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    journal = Journal(None, HEADER)
    assert set(os.listdir("/proc/self/fd")) == before
    heard: list[Step] = []
    journal.listeners.append(heard.append)
    journal.agent(1.0, AllGone(), [])
    assert [type(step) for step in heard] == [NodeStep]


# --- steps that workers report ------------------------------------------------------------


def test_steps_are_not_written_one_by_one_and_the_first_and_the_last_are(path: Path) -> None:
    journal = Journal(path, HEADER)
    for number in range(1, 1001):
        told: list[NodeEffect] = [Report(WorkersProgressed(1, number))]
        journal.agent(float(number), StepReported(1, 0, number), told)
        journal.agent(float(number), StepReported(1, 1, number), [])  # No further than the other.
        for node in ("a", "b"):
            journal.coordinator(float(number), Heard(node, WorkersProgressed(1, number)), [])
    journal.agent(1001.0, AllGone(), [])
    journal.close()
    _, steps = read(path)
    assert [(step.seq, type(step), getattr(step, "at", None)) for step in steps] == [
        (1, NodeStep, 1.0),
        (2, NodeStep, 1000.0),
        (3, CoordinatorStep, 1000.0),
        (4, NodeStep, 1001.0),
    ]


def test_a_quiet_job_still_tells_until_when_it_lived(path: Path) -> None:
    now = [100.0]
    header = structs.replace(HEADER, clock=ClockPair(100.0, 5000.0))
    journal = Journal(path, header, clocks=lambda: ClockPair(now[0], 4900.0 + now[0]))
    journal.agent(100.5, StepReported(1, 0, 1), [])
    due = journal.keep_up(101.0)
    while now[0] < 10_000.0:
        journal.agent(due - 0.1, StepReported(1, 0, int(due)), [Report(WorkersProgressed(1, 1))])
        now[0] = due
        due = journal.keep_up(due)
    _, steps = read(path)
    times = [step.at for step in steps if not isinstance(step, Gap)]
    assert all(later - at <= max(10.1, 0.06 * (at - 100.0)) for at, later in pairwise(times))
    assert len(steps) < 400, "what is written grows with the logarithm of time"
    assert steps[-2].seq == steps[-1].seq - 1, "the last step is written with it"


def test_the_first_step_of_every_round_is_there_at_once(path: Path) -> None:
    journal = Journal(path, HEADER)
    for number in (1, 2):
        journal.agent(float(number), StepReported(number, 0, 7), [])
        assert [event_of(step) for step in read(path)[1]][-1] == StepReported(number, 0, 7)
    journal.close()


def test_a_job_that_makes_steps_replays_without_most_of_them(path: Path) -> None:
    """The progress decides whether a failure counts as one without any: it has to be known."""
    node = JournalledNode(Journal(path, HEADER))
    node.take(NodeStarted(cold="not wanted"))
    step = 0
    while node.coordinator.group.round_number < 3:
        following = next(node.next_by_itself(), None)
        if following is None and step < 50 * node.coordinator.group.round_number:
            step += 1
            node.take(StepReported(node.coordinator.group.round_number, 0, step))
        else:
            node.happen(following or next(node.chance_of_failure()))
    node.journal.close()
    header, steps = read(path)
    reported = [one for one in steps if isinstance(event_of(one), StepReported)]
    assert (step, len(reported)) == (100, 4), "the first and the last of each round"
    assert list(replay(header, steps)) == []


# --- a journal that grows -----------------------------------------------------------------


def long_journal(path: Path, limit_bytes: int) -> tuple[JournalHeader, list[Step]]:
    """One that is much longer than its limit."""
    node = JournalledNode(Journal(path, HEADER, limit_bytes=limit_bytes))
    node.take(NodeStarted(cold="not wanted"))
    while node.coordinator.group.round_number < 2:
        node.happen(next(node.next_by_itself(), None) or next(node.chance_of_failure()))
    for number in range(300):
        node.take(WorkerStarted(99, 0, number))
    node.journal.close()
    return read(path)


def test_its_files_stay_below_the_limit_and_keep_the_beginning_and_the_end(path: Path) -> None:
    limit = 16_000
    header, steps = long_journal(path, limit)
    files = sorted(path.parent.iterdir())
    assert sum(file.stat().st_size for file in files) <= limit
    assert len(files) == 3
    assert {file.read_bytes().split(b"\n")[0] for file in files} == {
        path.read_bytes().split(b"\n")[0]
    }
    (gap,) = [step for step in steps if isinstance(step, Gap)]
    place = steps.index(gap)
    before, after = [step.seq for step in steps[:place]], [step.seq for step in steps[place + 1 :]]
    assert before == list(range(1, gap.seq))
    assert after == list(range(gap.seq + gap.missing, after[-1] + 1))
    assert isinstance(steps[-1], NodeStep)
    assert steps[-1].event == WorkerStarted(99, 0, 299)
    assert header.job == "job"


def test_a_replay_goes_as_far_as_the_beginning_was_kept(path: Path) -> None:
    header, steps = long_journal(path, 16_000)
    assert list(replay(header, steps)) == []
    without: list[Step] = [step for step in steps if not isinstance(step, Gap)]
    place = next(n for n, step in enumerate(without) if effects_of(step))
    del without[place]
    assert list(replay(header, without)), "and still tells a step that is missing from a gap"


def test_a_journal_whose_parts_are_all_there_has_no_gap(path: Path) -> None:
    journal = Journal(path, HEADER, limit_bytes=16_000)
    number = 0
    while not path.with_name("journal.3.jsonl").exists():
        number += 1
        journal.agent(float(number), AllGone(), [Say("hello")])
    journal.close()
    assert [step.seq for step in read(path)[1]] == list(range(1, number + 1))


# --- replay -------------------------------------------------------------------------------


class JournalledNode(Node):
    """A node whose every step is written down."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(JOB)
        self.journal = journal

    def on_agent_step(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        self.journal.agent(self.now, event, effects)

    def on_coordinator_step(
        self, event: CoordinatorEvent, effects: list[CoordinatorEffect]
    ) -> None:
        self.journal.coordinator(self.now, event, effects)


def live(path: Path, choices: list[int]) -> list[Step]:
    """A job in which the choices decide what happens; its journal, read back."""
    path.unlink(missing_ok=True)
    node = JournalledNode(Journal(path, HEADER))
    node.take(NodeStarted(preload=("import numpy", "import torch")))
    for choice in choices:
        kinds = ["next_by_itself"] * 8 + [*CHANCES, *BLOWS]
        possible = list(getattr(node, kinds[choice % len(kinds)])())
        if possible:
            node.happen(possible[choice // len(kinds) % len(possible)])
    node.journal.close()
    return read(path)[1]


def recovered_job(path: Path) -> list[Step]:
    """One round that fails and one that runs."""
    node = JournalledNode(Journal(path, HEADER))
    node.take(NodeStarted(cold="not wanted"))
    while node.coordinator.group.round_number < 2:
        following = next(node.next_by_itself(), None) or next(node.chance_of_failure())
        node.happen(following)
    node.journal.close()
    return read(path)[1]


@given(st.lists(st.integers(0, 999), max_size=60))
def test_a_replay_of_any_job_decides_the_same(
    tmp_path_factory: pytest.TempPathFactory, choices: list[int]
) -> None:
    steps = live(tmp_path_factory.getbasetemp() / "any.jsonl", choices)
    assert steps
    assert list(replay(HEADER, steps)) == []


def test_a_job_with_a_recovery_replays(path: Path) -> None:
    steps = recovered_job(path)
    header, _ = read(path)
    assert {type(step) for step in steps} == {NodeStep, CoordinatorStep}
    assert list(replay(header, steps)) == []


def test_an_effect_that_was_changed_is_found(path: Path) -> None:
    steps = recovered_job(path)
    place = next(
        n
        for n, step in enumerate(steps)
        if any(isinstance(one, StartWorkers) for one in effects_of(step))
    )
    true = steps[place]
    assert isinstance(true, NodeStep)
    steps[place] = structs.replace(true, effects=[KillEverything()])
    (found,) = replay(HEADER, steps)
    assert (found.seq, found.machine) == (true.seq, "agent")
    assert "KillEverything" in found.recorded
    assert "StartWorkers" in found.replayed


def test_a_decision_that_was_changed_is_found(path: Path) -> None:
    steps = recovered_job(path)
    place = next(n for n, s in enumerate(steps) if isinstance(s, CoordinatorStep) and s.effects)
    true = steps[place]
    assert isinstance(true, CoordinatorStep)
    steps[place] = structs.replace(true, effects=[])
    (found,) = replay(HEADER, steps)
    assert (found.seq, found.machine) == (true.seq, "coordinator")


def test_a_maintainer_replays_files_from_a_checkout(path: Path) -> None:
    recovered_job(path)
    command = [sys.executable, "-m", "tools.journals.replay", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"WorkerExited"' not in line))
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert shown.returncode == 1
    assert shown.stdout.startswith("Divergence(")


def test_an_event_that_is_missing_is_found(path: Path) -> None:
    steps = recovered_job(path)
    failures = (n for n, step in enumerate(steps) if isinstance(event_of(step), WorkerExited))
    del steps[next(failures)]
    assert list(replay(HEADER, steps))


def test_a_time_that_was_changed_is_found(path: Path) -> None:
    """What is said of a failure holds the time at which it was seen."""
    steps = recovered_job(path)
    place = next(n for n, step in enumerate(steps) if isinstance(event_of(step), WorkerExited))
    steps[place] = structs.replace(steps[place], at=0.0)
    assert list(replay(HEADER, steps))


def test_signals_replay_though_a_file_knows_only_their_numbers(path: Path) -> None:
    node = JournalledNode(Journal(path, HEADER))
    node.take(NodeStarted(cold="not wanted"))
    for one in [*node.blow_of_signal()]:
        node.happen(one)
    node.journal.close()
    assert list(replay(HEADER, read(path)[1])) == []


def test_a_journal_of_another_schema_is_refused(path: Path) -> None:
    path.write_text('{"schema": 5, "jobs": []}\n')
    with pytest.raises(UsageError, match=f"has schema 5, not {SCHEMA}"):
        read(path)


@pytest.mark.parametrize("text", ["", "\n", "not json\n", '{"schema"', "[]\n"])
def test_a_file_that_is_no_journal_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a journal"):
        read(path)


def test_whoever_watches_gets_every_line_also_where_nothing_is_written(tmp_path: Path) -> None:
    seen: list[bytes] = []
    path = tmp_path / "journal.jsonl"

    for target in (None, path):
        seen.clear()
        journal = Journal(target, HEADER, seen.append)
        journal.agent(1.0, AllGone(), [])
        journal.close()

    assert b"".join(seen) == path.read_bytes()
    assert len(seen) == 2


# --- several nodes ------------------------------------------------------------------------

NODES = structs.replace(JOB, min_nodes=2, max_nodes=2)
NODES_HEADER = structs.replace(HEADER, config=NODES)


def quiet_life(path: Path, heartbeats: int) -> list[Step]:
    """A node that joins, sends heartbeats that are answered, and is told to stop a round."""
    journal = Journal(path, NODES_HEADER)
    state = new_node(NODES, NODE, "here")
    number = 0

    def take(event: NodeEvent, now: float) -> None:
        nonlocal number
        effects = agent.step(state, event, now)
        journal.agent(now, event, effects)
        sent = [one.message for one in effects if isinstance(one, Report)]
        numbers = [one.number for one in sent if isinstance(one, Heartbeat)]
        numbers += [one.heartbeat for one in sent if isinstance(one, NodeGreeted)]
        number = max([number, *numbers])

    take(NodeStarted(cold="not wanted"), 0.0)
    take(CoordinatorReached(), 0.0)
    for beat in range(1, heartbeats + 1):
        take(Told(HeartbeatAnswered(number)), 2.0 * beat - 1.0)
        take(NodeTimerFired("heartbeat"), 2.0 * beat)
    take(Told(Welcomed(waiting="for more")), 2.0 * heartbeats)
    take(CoordinatorLost("the connection was reset"), 2.0 * heartbeats)
    take(CoordinatorReached(), 2.0 * heartbeats + 1.0)
    journal.close()
    return read(path)[1]


def test_a_quiet_job_does_not_fill_its_journal_with_heartbeats(tmp_path: Path) -> None:
    short, long = quiet_life(tmp_path / "short", 3), quiet_life(tmp_path / "long", 300)
    assert len(short) == len(long)


def test_a_replay_does_without_the_heartbeats_that_were_left_out(path: Path) -> None:
    assert list(replay(NODES_HEADER, quiet_life(path, 50))) == []


def test_a_coordinator_that_took_over_replays_from_what_it_began_with(path: Path) -> None:
    journal = Journal(path, NODES_HEADER)
    beginning = Beginning(Term(1, 7), ledger=Ledger(4, 2, charges=1), gone_after_s=12.0)
    liveness = coordinator_of(beginning.state(NODES, 100.0))
    journal.began(100.0, beginning)
    info = NodeInfo("a-1", "a", slots=2)
    standing = RoundReport(4, 0, 2, "running")
    receive(liveness, "a-1", NodeGreeted(info, Seen(Term(1, 6), 4, 1), standing), 101.0)
    receive(liveness, "a-1", Heartbeat(1), 101.0)
    journal.taken(101.0, liveness)
    assert liveness.taken == []
    run_step(liveness, CoordinatorTimerFired("look"), 102.0)
    journal.taken(102.0, liveness)
    for now in range(103, 112, 2):
        receive(liveness, "a-1", Heartbeat(now), float(now))
        check_leases(liveness, float(now))
    run_step(liveness, CoordinatorTimerFired("look"), 112.0)
    journal.taken(112.0, liveness)
    journal.close()
    header, steps = read(path)
    assert [type(step) for step in steps] == [CoordinatorBegan, *[CoordinatorStep] * 3]
    assert "did not report" in repr(steps[-1])
    assert list(replay(header, steps)) == []
    assert list(replay(header, steps[1:])), "without its beginning it decides differently"


def test_a_password_of_somebody_s_own_backend_is_not_written_down(path: Path) -> None:
    place = Rendezvous("redis", "redis://me:sesame@node0", {"password": "sesame", "db": "3"})
    config = structs.replace(NODES, rendezvous=place)
    Journal(path, structs.replace(NODES_HEADER, config=config)).close()
    assert "sesame" not in path.read_text()
    header, _ = read(path)
    assert header.config.rendezvous.endpoint == "redis://node0"
    assert header.config.rendezvous.options["db"] == "3"


# --- what time it was for people ----------------------------------------------------------


def test_both_clocks_are_written_down_again_only_where_they_have_come_apart(path: Path) -> None:
    offsets = iter([1000.0, 1000.0004, 5000.0, 5000.0])
    now = iter([1.0, 2.0, 3.0, 4.0])

    def clocks() -> ClockPair:
        at = next(now)
        return ClockPair(at, at + next(offsets))

    header = structs.replace(HEADER, clock=ClockPair(0.0, 1000.0))
    journal = Journal(path, header, clocks=clocks)
    for at in (1.0, 2.0, 3.0, 4.0):
        journal.agent(at, AllGone(), [])
    journal.close()
    read_header, steps = read(path)
    assert read_header.clock == ClockPair(0.0, 1000.0)
    assert [type(step) for step in steps] == [
        *[NodeStep] * 2,
        ClockRead,  # Somebody has set the clock.
        *[NodeStep] * 2,
    ]
    assert steps[2] == ClockRead(3, 3.0, 5003.0)
    assert [step.seq for step in steps] == [1, 2, 3, 4, 5]


def test_a_moment_is_put_in_time_to_the_millisecond() -> None:
    assert ClockPair(100.0, 1_800_000_000.25).time_of(101.5004) == 1_800_000_001.75


def test_whoever_listens_is_told_of_every_step_also_of_those_that_are_not_written(
    path: Path,
) -> None:
    journal = Journal(path, HEADER)
    heard: list[Step] = []
    journal.listeners.append(heard.append)
    for step in (1, 2, 3):
        journal.agent(float(step), StepReported(1, 0, step), [])
    journal.close()
    assert [step.at for step in heard if isinstance(step, NodeStep)] == [1.0, 2.0, 3.0]
    assert len(read(path)[1]) < 3
