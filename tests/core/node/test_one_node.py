"""Agent and coordinator together, on an imaginary node where anything may happen.

`watched_node.py` says what must hold all the time. Here is how a node gets into every kind
of situation, and that the job comes to its end from each of them: once nothing bad happens
any more, and whatever was asked for is answered, there is always something under way or a
timer set, until `Finish`.
"""

from __future__ import annotations

import pickle
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import hypothesis
import pytest
from hypothesis import strategies as st

from holdfast.core.node import Phase
from holdfast.core.node_io import NodeStarted
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy

from .imaginary_node import BLOWS, CHANCES, ENDS, Possibility
from .watched_node import WatchedNode

ENOUGH_STEPS = 500
COLD = NodeStarted(cold="not wanted")
WARM = NodeStarted()
PRELOADING = NodeStarted(preload=("import numpy", "import numpy.linalg", "import torch"))


def job(slots: int = 1, max_restarts: int = 0, same_cause_limit: int = 0) -> JobConfig:
    restarts = RestartPolicy(
        max_restarts=max_restarts,
        same_cause_limit=same_cause_limit,
        non_retryable_exit_codes=(3,),
    )
    return JobConfig("job", Program("script", "train.py"), slots=slots, restarts=restarts)


# --- to the end from anywhere -------------------------------------------------------------


def settle(node: WatchedNode) -> None:
    """Let nothing bad happen any more, and come to the end."""
    node.tick_s = 0.001  # Time goes by again: what waits for a moment reaches it.
    for _ in range(ENOUGH_STEPS):
        following = next(node.next_by_itself(), None) or next(node.next_timer(), None)
        if following is None and node.finished is not None:
            node.check_end()
            return
        node.happen(following or next(node.chance_of_success(), None) or give_up_on(node))
    raise AssertionError(f"no end in sight while {node.agent.phase}")


def give_up_on(node: WatchedNode) -> Possibility:
    """Workers may run for ever; then it is for somebody to say that it is enough."""
    somebody = node.spawner.alive or node.spawner.silent
    assert somebody, f"nothing goes on and nobody runs while {node.agent.phase}"
    assert node.agent.phase is Phase.RUNNING, f"nothing goes on while {node.agent.phase}"
    assert not node.signals, "nothing goes on after a signal"
    return Possibility("SIGTERM", partial(node.signal, signal.SIGTERM))


# --- at random ----------------------------------------------------------------------------

jobs = st.builds(
    job,
    slots=st.integers(1, 3),
    max_restarts=st.integers(0, 3),
    same_cause_limit=st.sampled_from([0, 2, 5]),
)
blows = st.dictionaries(st.integers(0, 79), st.sampled_from(BLOWS), max_size=3)


@hypothesis.given(
    config=jobs,
    started=st.sampled_from([COLD, WARM, PRELOADING]),
    chances=st.frozensets(st.sampled_from(CHANCES)),
    blows=blows,
    data=st.data(),
)
def test_whatever_happens_the_job_comes_to_one_true_end(
    config: JobConfig,
    started: NodeStarted,
    chances: frozenset[str],
    blows: dict[int, str],
    data: st.DataObject,
) -> None:
    node = WatchedNode(config)
    try:
        node.take(started)
        for moment in range(data.draw(st.integers(0, 80), label="moments")):
            kinds = [blows[moment]] if moment in blows else ["next_by_itself", *sorted(chances)]
            groups = [group for kind in kinds if (group := list(getattr(node, kind)()))]
            if groups:
                node.happen(data.draw(st.sampled_from(data.draw(st.sampled_from(groups)))))
        settle(node)
    except AssertionError:
        hypothesis.note("\n  ".join(["The story:", *node.story]))
        raise


# --- in every order -----------------------------------------------------------------------


def possibilities(node: WatchedNode, kinds: tuple[str, ...]) -> list[Possibility]:
    return [one for kind in kinds for one in getattr(node, kind)()]


def situation(node: WatchedNode) -> str:
    """Equal for nodes that have the same future."""
    under_way = (node.to_coordinator, node.unwritten, node.to_agent, sorted(node.timers))
    past = (node.signals[:1], node.launcher_lost, node.spawner_lost, node.waited_in_vain)
    end = (node.waits_for_outcome, node.closed, node.finished)
    return repr((node.agent, node.coordinator, node.spawner, under_way, past, end))


def explore(first: WatchedNode, kinds: tuple[str, ...]) -> int:
    """Go through every situation that can come about; returns how many there are."""
    known = {situation(first)}
    pending = deque([first])
    while pending:
        node = pending.popleft()
        kept = pickle.dumps(node)
        for index in range(len(possibilities(node, kinds))):
            following = pickle.loads(kept)
            with telling(following):
                following.happen(possibilities(following, kinds)[index])
            name = situation(following)
            if name not in known and following.finished is None:
                pending.append(following)
            known.add(name)
        with telling(node):
            settle(node)
    return len(known)


@contextmanager
def telling(node: WatchedNode) -> Iterator[None]:
    """Add the node's story to what went wrong."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError("\n  ".join([str(error), "The story:", *node.story])) from error


ITSELF = "next_by_itself"
TIMERS = "chance_of_timers"
SUCCESS = "chance_of_success"
FAILURE = "chance_of_failure"
ZYGOTE = "chance_of_zygote_trouble"
SIGNALS = "blow_of_signal"

EXPLORED = {
    "failures and a restart": (job(2, max_restarts=1), COLD, (ITSELF, TIMERS, FAILURE)),
    "signals": (job(max_restarts=1), COLD, (ITSELF, TIMERS, SUCCESS, FAILURE, SIGNALS)),
    "the loss of launcher and spawner": (
        job(),
        COLD,
        (
            *(ITSELF, TIMERS, SUCCESS, FAILURE),
            *("blow_of_losing_the_launcher", "blow_of_losing_the_spawner"),
        ),
    ),
    "what does not stop": (
        job(2),
        COLD,
        (
            *(ITSELF, TIMERS, FAILURE),
            *("chance_of_stubbornness", "chance_of_getting_stuck", "blow_of_silence"),
        ),
    ),
    "the zygote and failures": (job(2), WARM, (ITSELF, FAILURE, ZYGOTE)),
    "the zygote and signals": (job(), NodeStarted(("numpy",)), (ITSELF, ZYGOTE, SIGNALS)),
}
MOST_ORDERS = (
    "failures and a restart",
    "signals",
    "the zygote and failures",
    "what does not stop",
)


@pytest.mark.timeout(600)  # All orders there are: a busy machine takes minutes for them.
@pytest.mark.parametrize(
    ("config", "started", "kinds"),
    [
        pytest.param(*explored, marks=[pytest.mark.thorough] * (name in MOST_ORDERS), id=name)
        for name, explored in EXPLORED.items()
    ],
)
def test_every_order_of_events_comes_to_one_true_end(
    config: JobConfig, started: NodeStarted, kinds: tuple[str, ...]
) -> None:
    node = WatchedNode(config, tick_s=0.0)  # Time stands still, or no situation comes twice.
    node.failures = {"is killed": ENDS["is killed"]}
    node.take(started)
    assert explore(node, kinds) > 500, "most of it was not explored"
