"""Stacks in words: who is where, and who is somewhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.stacks import (
    GROUPS_TOLD,
    SOCKET,
    StackFrame,
    WorkerStack,
    grouped,
    in_words,
    odd_one,
    read_stack,
    read_traceback,
)

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"
ALL_REDUCE = (
    StackFrame(f"{TORCH}/distributed_c10d.py", 2810, "all_reduce"),
    StackFrame(f"{TORCH}/c10d_logger.py", 81, "wrapper"),
    StackFrame("/home/me/train.py", 41, "main"),
    StackFrame("/home/me/train.py", 90, "<module>"),
)
LOAD_BATCH = (
    StackFrame("/home/me/data.py", 88, "load_batch"),
    StackFrame("/home/me/train.py", 33, "main"),
    StackFrame("/home/me/train.py", 90, "<module>"),
)
USER = StackFrame("/home/me/train.py", 58, "train")
BACKWARD = (
    StackFrame("/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 865,
               "_engine_run_backward"),
    StackFrame("/venv/lib/python3.11/site-packages/torch/_tensor.py", 630, "backward"),
    USER,
)  # fmt: skip
LOCK = (StackFrame("/home/me/train.py", 14, "before"), USER)
QUEUE = (
    StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"),
    StackFrame("/usr/lib/python3.11/queue.py", 171, "get"),
    USER,
)
LOADER = (
    StackFrame("/usr/lib/python3.11/selectors.py", 415, "select"),
    StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", 948, "wait"),
    StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1284,
               "_try_get_data"),
    StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 733,
               "__next__"),
    USER,
)  # fmt: skip
GATHER = (
    StackFrame(f"{TORCH}/distributed_c10d.py", 4000, "all_gather_into_tensor"),
    StackFrame(f"{TORCH}/fsdp/_fully_shard/_fsdp_collectives.py", 140, "foreach_all_gather"),
    StackFrame(f"{TORCH}/fsdp/_fully_shard/_fsdp_param_group.py", 300, "unshard"),
    USER,
)
NEW_GROUP = (
    StackFrame(f"{TORCH}/distributed_c10d.py", 2169, "_new_process_group_helper"),
    StackFrame(f"{TORCH}/distributed_c10d.py", 5863, "new_group"),
    StackFrame(f"{TORCH}/c10d_logger.py", 97, "wrapper"),
    USER,
)
DUMP = f'''\
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f2 (most recent call first):
  File "{TORCH}/distributed_c10d.py", line 2810 in all_reduce
  File "{TORCH}/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 41 in main
  File "/home/me/train.py", line 90 in <module>
'''


def said(*stacks: WorkerStack) -> str:
    return in_words(grouped(stacks))


def test_the_main_thread_is_the_last_one_that_was_written() -> None:
    assert read_stack(DUMP) == ALL_REDUCE


def test_seven_wait_and_one_is_named_with_its_node() -> None:
    stacks = [WorkerStack(rank, f"node{rank // 2 + 1}", ALL_REDUCE) for rank in range(8)]
    stacks[3] = WorkerStack(3, "node2", LOAD_BATCH, "waiting for a file on /data")
    assert said(*stacks) == (
        "7 ranks wait in all_reduce at train.py:41; "
        "rank 3 on node2 is in load_batch at data.py:88, waiting for a file on /data"
    )


def test_all_at_one_place_are_one_group() -> None:
    assert said(*(WorkerStack(rank, "", ALL_REDUCE) for rank in range(3))) == (
        "ranks 0, 1 and 2 wait in all_reduce at train.py:41"
    )


def test_who_waits_for_something_else_is_no_part_of_the_group() -> None:
    stacks = [WorkerStack(0, "", LOAD_BATCH), WorkerStack(1, "", LOAD_BATCH, "waiting for /data/a")]
    assert len(grouped(stacks)) == 2


def test_a_worker_without_a_stack_is_said_to_have_none() -> None:
    assert said(WorkerStack(0)) == "rank 0 gives no stack"
    assert said(WorkerStack(0), WorkerStack(1)) == "ranks 0 and 1 give no stack"


def test_of_a_worker_without_a_stack_the_kernel_may_know_something() -> None:
    assert said(WorkerStack(0, kernel="stopped by a signal")) == "rank 0 is stopped by a signal"


def test_without_a_line_of_the_users_own_the_innermost_is_said() -> None:
    library = (StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"),)
    assert said(WorkerStack(0, "", library)) == "rank 0 waits in threading.wait at threading.py:327"


def test_our_own_frames_below_a_warm_worker_are_passed_over() -> None:
    ours = StackFrame("/x/src/holdfast/processes/zygote/run_as_main.py", 180, "run")
    assert WorkerStack(0, "", (*LOAD_BATCH, ours)).location == (
        WorkerStack(0, "", LOAD_BATCH).location
    )
    assert said(WorkerStack(0, "", (ours,))) == "rank 0 gives no stack"


def test_nobody_runs() -> None:
    assert said() == "no worker runs"


def test_a_hundred_places_are_told_in_brief() -> None:
    stacks = [
        WorkerStack(rank, "", (StackFrame(f"/home/me/{rank}.py", 1, "work"),))
        for rank in range(100)
    ]
    words = said(*stacks)
    assert words.count(";") == GROUPS_TOLD
    assert words.endswith("94 more are each somewhere else")


@pytest.mark.parametrize(
    ("frames", "waits"), [(ALL_REDUCE, True), (LOAD_BATCH, False), ((), False)]
)
def test_who_is_in_a_collective_waits(frames: tuple[StackFrame, ...], waits: bool) -> None:
    assert WorkerStack(0, "", frames).location.waits is waits


@pytest.mark.parametrize(
    ("frames", "function"),
    [(BACKWARD, "backward"), (LOADER, "DataLoader"), (GATHER, "FSDP"), (QUEUE, "threading.wait"),
     (LOCK, "before"), (ALL_REDUCE, "all_reduce"), (NEW_GROUP, "new_group")],
)  # fmt: skip
def test_a_hidden_wait_is_named_by_what_the_program_called(
    frames: tuple[StackFrame, ...], function: str
) -> None:
    assert WorkerStack(0, "", frames).location.function == function


def test_what_a_library_was_called_from_is_named_too() -> None:
    words = "in threading.wait at train.py:58 (train)"
    assert WorkerStack(0, "", QUEUE).location.shortly() == words
    assert WorkerStack(0, "", BACKWARD).location.shortly() == "in backward at train.py:58"


def test_a_traceback_is_read_from_its_end() -> None:
    text = """Traceback (most recent call last):
  File "/home/me/other.py", line 1, in first
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "/home/me/train.py", line 90, in <module>
    main()
  File "/home/me/data.py", line 88, in load_batch
    read()
OSError: gone"""
    assert read_traceback(text) == (
        StackFrame("/home/me/data.py", 88, "load_batch"),
        StackFrame("/home/me/train.py", 90, "<module>"),
    )


def outlier(*frames: tuple[StackFrame, ...]) -> int | None:
    odd = odd_one(grouped(WorkerStack(rank, "", one) for rank, one in enumerate(frames)))
    return None if odd is None else odd.rank


@pytest.mark.parametrize("elsewhere", [LOCK, QUEUE, LOADER, LOAD_BATCH])
@pytest.mark.parametrize("collective", [BACKWARD, GATHER, ALL_REDUCE, NEW_GROUP])
def test_a_rank_in_no_collective_is_the_outlier(
    collective: tuple[StackFrame, ...], elsewhere: tuple[StackFrame, ...]
) -> None:
    assert outlier(collective, collective, elsewhere, collective) == 2
    assert outlier(collective, elsewhere) == 1


def test_a_socket_is_a_collective_only_where_none_is_known() -> None:
    receiving = WorkerStack(2, "", LOCK, SOCKET)
    rest = [WorkerStack(0, "", ALL_REDUCE), WorkerStack(1, "", GATHER)]
    odd = odd_one(grouped([*rest, receiving]))
    assert odd is not None
    assert odd.rank == 2
    sockets = [WorkerStack(rank, "", LOAD_BATCH, SOCKET) for rank in (0, 1)]
    odd = odd_one(grouped([*sockets, WorkerStack(2, "", LOCK)]))
    assert odd is not None
    assert odd.rank == 2, "those with sockets wait for it"


def test_the_only_rank_at_its_place_is_the_outlier() -> None:
    assert outlier(BACKWARD, BACKWARD, BACKWARD, ALL_REDUCE) == 3
    assert outlier(LOCK, LOCK, LOAD_BATCH) == 2


def test_where_two_stand_out_equally_neither_is_the_outlier() -> None:
    assert outlier(BACKWARD, ALL_REDUCE) is None
    assert outlier(LOCK, LOAD_BATCH) is None
    assert outlier(ALL_REDUCE, ALL_REDUCE, ALL_REDUCE) is None


@given(st.text())
def test_whatever_was_written_can_be_read(text: str) -> None:
    read_stack(text)


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([ALL_REDUCE, LOAD_BATCH, ()]))))
def test_each_worker_is_in_one_group(found: list[tuple[int, tuple[StackFrame, ...]]]) -> None:
    stacks = [WorkerStack(rank, "", frames) for rank, frames in found]
    groups = grouped(stacks)
    assert sorted(one.rank for group in groups for one in group.stacks) == sorted(
        stack.rank for stack in stacks
    )
    assert [len(group.stacks) for group in groups] == sorted(
        (len(group.stacks) for group in groups), reverse=True
    )
