"""Writers in tight loops, each in a process of its own: what they saw is linearizable."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from ..waiting import persistently
from .history import Operation, check
from .opening import python_command
from .stages import DEADLINE_S, ServedStage, Stage
from .writer import Writer


@contextmanager
def two_writers(stage: Stage, run_id: str, rounds: int) -> Iterator[list[Operation]]:
    """Let `a` and `b` begin at once; their history is complete when the block ends."""
    settings = msgspec.json.encode(stage.settings(run_id)).decode()
    processes = [
        subprocess.Popen(
            python_command("contract.writer", settings, name, str(rounds), str(stage.rest_s)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in "ab"
    ]
    history: list[Operation] = []
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"begin\n")
            process.stdin.flush()
        yield history
        for process in processes:
            output, _ = process.communicate()
            assert process.returncode == 0
            history += msgspec.json.decode(output, type=list[Operation])
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.thorough
def test_two_writers_in_a_tight_loop_see_one_order(stage: Stage, run_id: str) -> None:
    with two_writers(stage, run_id, stage.rounds) as history:
        pass
    chain = check(history)
    found = stage.open(run_id).get_state()
    assert found is not None
    assert found[0].decode() == chain[-1]
    # Otherwise they did not meet, and nothing was tested.
    assert {content[0] for content in chain} == {"a", "b"}
    assert any(each.outcome == "refused" for each in history)
    unknown = [each for each in history if each.outcome == "unknown"]
    assert len(unknown) <= stage.unknown_share * len(history)


def write_until_an_answer_is_lost(writer: Writer, served: ServedStage, name: str) -> None:
    """And a little longer. The writer is impatient: of a busy server it may hear nothing at all."""
    until = time.monotonic() + DEADLINE_S
    for attempt in itertools.count():
        persistently(writer.read)
        writer.set(f"{name}-{attempt}")
        if attempt >= 3 and (served.proxy.happened.is_set() or time.monotonic() > until):
            return


@pytest.mark.thorough(but=("etcd",))
def test_writers_see_one_order_while_answers_are_lost(served: ServedStage, run_id: str) -> None:
    writer = Writer(served.open_far(run_id), "far")
    lost_before = served.proxy.losses
    with two_writers(served, run_id, served.rounds) as history:
        for number in range(10):
            served.proxy.lose_answer_to(b"far")
            write_until_an_answer_is_lost(writer, served, f"far-{number}")
            served.proxy.forward()
    persistently(writer.read)
    check(history + writer.history)
    assert served.proxy.losses - lost_before == 10
