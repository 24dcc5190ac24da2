"""What workers wrote last, for whoever asks."""

from __future__ import annotations

from tools.simulator.timeline import ManualClock

from holdfast.processes.output.recent import (
    KEPT_BYTES,
    OutputBlock,
    OutputWanted,
    RecentOutput,
)


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.recent = RecentOutput(self.clock)  # type: ignore[arg-type]
        self.told: list[tuple[list[bytes], int]] = []

    def ask(self, **wanted: object) -> None:
        self.recent.after(OutputWanted(**wanted), self._take)  # type: ignore[arg-type]

    def _take(self, blocks: list[OutputBlock], last: int) -> None:
        self.told.append(([block.text for block in blocks], last))


def test_blocks_come_in_the_order_of_time_whosoever_they_are() -> None:
    stage = Stage()
    stage.recent.take(1, 1, b"one")
    stage.recent.take(0, 2, b"two")
    stage.recent.take(1, 1, b"three")
    stage.ask()
    stage.ask(after=1)
    stage.ask(ranks=frozenset({1}))
    assert stage.told == [
        ([b"one", b"two", b"three"], 3),
        ([b"two", b"three"], 3),
        ([b"one", b"three"], 3),
    ]


def test_of_each_stream_the_last_part_is_kept_and_a_loud_one_costs_nobody_else() -> None:
    stage = Stage()
    stage.recent.take(0, 1, b"quiet")
    for number in range(100):
        stage.recent.take(1, 1, bytes([number]) * (KEPT_BYTES // 8))
    stage.ask(most_bytes=100 * KEPT_BYTES)
    blocks, _ = stage.told[0]
    assert blocks[0] == b"quiet"
    assert [block[0] for block in blocks[1:]] == list(range(92, 100))


def test_more_than_an_answer_holds_is_asked_for_again() -> None:
    stage = Stage()
    for number in range(4):
        stage.recent.take(0, 1, b"%d" % number * 10)
    seen, last = [], 0
    while last < 4:
        stage.ask(after=last, most_bytes=25)
        blocks, last = stage.told[-1]
        seen += blocks
    assert seen == [b"0" * 10, b"1" * 10, b"2" * 10, b"3" * 10]
    assert len(stage.told) == 2


def test_who_waits_is_told_of_the_next_block_of_those_it_means() -> None:
    stage = Stage()
    stage.ask(ranks=frozenset({1}), wait_s=5.0)
    stage.recent.take(0, 1, b"another's")
    assert stage.told == []
    stage.recent.take(1, 1, b"at last")
    assert stage.told == [([b"at last"], 2)]
    stage.ask(after=2, wait_s=5.0)
    stage.clock.advance(5.0)
    assert stage.told[1:] == [([], 2)]
    stage.recent.take(1, 1, b"later")
    assert len(stage.told) == 2
