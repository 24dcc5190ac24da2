"""What a worker is told when a node of its job has to leave, by an agent that is a plain server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.node_io import ShowSaving
from holdfast.processes.saving_page import DrainPage
from holdfast.worker import draining as module
from holdfast.worker.channel import VARIABLE
from holdfast.worker.draining import KEY, Drain, draining, read

from .drain_agent import DEADLINE_S, Agent


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent()
    monkeypatch.setenv(VARIABLE, agent.server.name)
    monkeypatch.setenv("LOCAL_RANK", "1")
    module._watch.begin_anew()
    yield agent
    module._watch.begin_anew()
    agent.close()


def waiting(step: int) -> tuple[threading.Thread, list[Drain | None]]:
    """Ask in a thread, since it waits."""
    answers: list[Drain | None] = []
    thread = threading.Thread(target=lambda: answers.append(draining(step)))
    thread.start()
    return thread, answers


def test_whoever_asks_listens_and_hears_nothing_while_nobody_leaves(agent: Agent) -> None:
    assert draining(1) is None
    assert draining(2) is None
    assert agent.heard == [{KEY: "listens", "local_rank": 1}]


def test_without_an_agent_the_answer_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    module._watch.begin_anew()
    assert draining(1) is None
    monkeypatch.setenv(VARIABLE, "@holdfast-nobody-is-there")
    module._watch.begin_anew()
    assert [draining(step) for step in range(5)] == [None] * 5
    module._watch.begin_anew()


def test_who_says_no_step_is_told_at_once(agent: Agent) -> None:
    assert draining() is None
    agent.show()
    drain = draining()
    assert drain
    assert drain.reason == "b is leaving"
    assert 0 < drain.seconds_left <= DEADLINE_S
    agent.until_heard("listens", "told")


def test_who_says_its_step_waits_to_hear_where_all_save(agent: Agent) -> None:
    draining(1)
    agent.show()
    thread, answers = waiting(2)
    agent.until_heard("listens", "waits")
    assert agent.heard[-1]["step"] == 2
    assert answers == []
    agent.show(step=4)
    thread.join(DEADLINE_S)
    assert answers == [None], "all save at step 4"
    assert draining(3) is None
    drain = draining(4)
    assert drain is not None
    assert drain.step == 4
    agent.until_heard("listens", "waits", "told")


def test_what_was_saved_is_not_saved_again(agent: Agent) -> None:
    draining(1)
    agent.show(step=2)
    drain = draining(2)
    assert drain is not None
    assert draining(2) is not None
    drain.saved()
    drain.saved()
    assert draining(3) is None
    agent.until_heard("listens", "told", "saved")


def test_nobody_waits_longer_than_there_is_time(agent: Agent) -> None:
    draining(1)
    agent.show(within_s=0.2)
    assert draining(2) is None


def test_nobody_waits_for_an_agent_that_is_gone(agent: Agent) -> None:
    draining(1)
    agent.show()
    thread, answers = waiting(2)
    agent.until_heard("listens", "waits")
    agent._loop.call_soon_threadsafe(agent.server.close)
    thread.join(DEADLINE_S)
    assert answers == [None]


def test_a_step_has_to_be_a_whole_number(agent: Agent) -> None:
    draining(1)
    agent.show(step=2)
    with pytest.raises(TypeError):
        draining("2")  # type: ignore[arg-type]


def test_what_is_being_written_is_not_there_yet() -> None:
    page = DrainPage()
    page.show(ShowSaving(1.0, "ü" * 10_000, 2**53))
    shown = read(page._page)
    assert shown is not None
    assert (shown["until"], shown["step"]) == (1.0, 2**53)
    page._page[20] ^= 1
    assert read(page._page) is None
    page.clear()
    page._page[20] ^= 1
    assert read(page._page) is None
    page.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_speaks_for_itself(agent: Agent) -> None:
    draining(1)
    child = os.fork()
    if child == 0:
        os._exit(0 if draining(1) is None and module._watch.page else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    agent.until_heard("listens", "listens")


STEPS = """
import holdfast, os
holdfast.draining(0)
open(os.environ["BEGUN"], "w").close()
for step in range(1000):
    holdfast.draining(step)
open(os.environ["BEGUN"] + ".end", "w").close()
"""


def test_asking_makes_no_system_call(agent: Agent, tmp_path: Any) -> None:
    strace = "/usr/bin/strace"
    if not os.path.exists(strace):
        pytest.skip("strace is not installed")
    trace, begun = tmp_path / "trace", tmp_path / "begun"
    subprocess.run(
        [strace, "-o", str(trace), sys.executable, "-c", STEPS],
        env={**os.environ, "BEGUN": str(begun)},
        check=True,
        timeout=DEADLINE_S,
    )
    lines = trace.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if f'"{begun}"' in line)
    last = next(n for n, line in enumerate(lines) if f'"{begun}.end"' in line)
    assert last - first < 100, lines[first:last]


def test_where_nobody_leaves_one_saves_and_goes_on_and_can_be_asked_again(agent: Agent) -> None:
    assert draining(1) is None
    for serial in (1, 2):
        agent.show(step=2 * serial, serial=serial, leaves=False)
        assert draining(2 * serial - 1) is None
        drain = draining(2 * serial)
        assert drain is not None
        assert not drain.leaving
        drain.saved()
        assert draining(2 * serial + 1) is None
    agent.until_heard("listens", *("told", "saved", "goes on") * 2)
    assert [one["serial"] for one in agent.heard[1:]] == [1, 1, 1, 2, 2, 2]


def test_where_a_round_is_not_to_end_any_more_asking_again_says_that_one_goes_on(
    agent: Agent,
) -> None:
    draining(1)
    agent.show(step=2)
    drain = draining(2)
    assert drain is not None
    drain.saved()
    assert draining(3) is None
    agent.until_heard("listens", "told", "saved")
    agent.hide()
    assert draining(4) is None
    assert draining(5) is None
    agent.until_heard("listens", "told", "saved", "goes on")


def test_what_is_to_be_saved_next_is_another_save(agent: Agent) -> None:
    """The first was called off and the second began before this worker asked again."""
    draining(1)
    agent.show(step=2)
    assert draining(2) is not None
    agent.show(step=4, serial=2)
    assert draining(3) is None
    assert draining(4) is not None
    agent.until_heard("listens", "told", "saved", "goes on", "told")
    assert [one["serial"] for one in agent.heard[1:]] == [1, 1, 1, 2]


def test_where_nobody_leaves_asking_again_says_that_it_is_saved(agent: Agent) -> None:
    draining(1)
    agent.show(step=2, leaves=False)
    assert draining(2) is not None
    assert draining(3) is None
    agent.until_heard("listens", "told", "saved", "goes on")


def test_a_wait_where_nobody_leaves_ends_when_there_is_nothing_to_save(agent: Agent) -> None:
    draining(1)
    agent.show(within_s=0.0, leaves=False)
    thread, answers = waiting(2)
    agent.until_heard("listens", "waits")
    agent.hide()
    thread.join(DEADLINE_S)
    assert answers == [None]
