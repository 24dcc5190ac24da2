"""What of `squeue`'s words is worth a line."""

from __future__ import annotations

from holdfast.placement.slurm_queue import Element, news, read_queue

QUEUE = """\
7_2|PENDING||Resources
7_0|RUNNING|host1|None
7_1|RUNNING|host2|None
"""


def test_lines_of_squeue_become_elements() -> None:
    assert read_queue(QUEUE)[:2] == [
        Element("7_2", "PENDING", "", "Resources"),
        Element("7_0", "RUNNING", "host1", "None"),
    ]


def test_what_squeue_never_prints_is_passed_over() -> None:
    assert read_queue("slurm_load_jobs error\n\n") == []


def test_one_line_stands_for_all_to_which_the_same_happened() -> None:
    assert list(news([], read_queue(QUEUE))) == [
        "7_2: waiting (Resources)",
        "7_0 on host1, 7_1 on host2: running",
    ]


def test_of_very_many_the_first_and_the_last_are_named() -> None:
    queue = [Element(f"7_{n}", "RUNNING", f"host{n}", "None") for n in reversed(range(12))]
    assert list(news([], queue)) == ["7_0 on host0 … 7_11 on host11 (12): running"]


def test_nothing_is_said_where_nothing_changed_but_the_reason() -> None:
    before = read_queue(QUEUE)
    now = read_queue(QUEUE.replace("Resources", "Priority"))
    assert list(news(before, now)) == []


def test_an_element_that_left_the_queue_is_told() -> None:
    before = read_queue(QUEUE)
    assert list(news(before, before[:2])) == ["7_1: no longer in the queue"]


def test_an_element_that_came_back_elsewhere_is_told() -> None:
    before = read_queue(QUEUE)
    now = read_queue(QUEUE.replace("host2", "host9"))
    assert list(news(before, now)) == ["7_1 on host9: running"]
