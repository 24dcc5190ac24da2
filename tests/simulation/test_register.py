"""The simulator's register is as bad as real ones may be, and not worse."""

from __future__ import annotations

from random import Random

import pytest
from tools.simulator.plan import RegisterKind, RegisterPlan
from tools.simulator.register import ClusterRegister
from tools.simulator.timeline import Timeline

from holdfast.core.policy.config import Leases
from holdfast.registers.register_thread import NoAnswer, RegisterAnswer, Reply

TERMS = Leases()


class Asker:
    """Somebody who asks, and keeps what it is told."""

    def __init__(self, host: int = 0) -> None:
        self.host = host
        self.token = 0
        self.told: list[Reply] = []

    def answered(self, reply: Reply) -> None:
        self.told.append(reply)
        if isinstance(reply, RegisterAnswer):
            self.token = reply.token

    def recorded(self, content: bytes, blank: bool) -> None:
        pass

    def reads(self) -> list[RegisterAnswer]:
        return [reply for reply in self.told if isinstance(reply, RegisterAnswer)]


class Stage:
    """A register, time, and a writer."""

    def __init__(self, kind: RegisterKind) -> None:
        self.timeline = Timeline()
        self.register = ClusterRegister(self.timeline, Random(1), TERMS, RegisterPlan(kind))
        self.writer, self.watcher = Asker(0), Asker(1)
        self.written = 0

    def write(self, asker: Asker | None = None) -> None:
        asker = asker or self.writer
        self.written += 1
        self.register.ask(asker, (b"%d" % self.written, asker.token), asker.answered)
        self.run(0.1)

    def run(self, for_s: float) -> None:
        self.timeline.run_until(self.timeline.now + for_s)


def test_a_stale_token_changes_nothing() -> None:
    stage = Stage("plain")
    stage.write()
    stage.write(Asker())
    assert stage.register.content == b"1"


def test_a_token_never_comes_again_after_the_content_was_lost() -> None:
    stage = Stage("forgetful")
    stage.write()
    before = stage.register.token
    stage.register.restart_empty()
    assert (stage.register.content, stage.register.token) == (None, 0)
    stage.write(Asker())
    assert stage.register.token > before


def test_who_watches_is_told_in_order() -> None:
    stage = Stage("pushing")
    stage.register.watch(stage.watcher, stage.watcher.answered)
    for _ in range(20):
        stage.write()
    tokens = [read.token for read in stage.watcher.reads()]
    assert tokens == sorted(tokens)
    assert tokens[-1] == stage.register.token


def test_jumbled_pushes_come_twice_and_in_any_order() -> None:
    stage = Stage("pushing")
    stage.register.watches.jumbled = 1
    stage.register.watch(stage.watcher, stage.watcher.answered)
    for _ in range(20):
        stage.write()
    stage.run(10.0)
    tokens = [read.token for read in stage.watcher.reads()]
    assert tokens != sorted(tokens)
    assert len(tokens) > len(set(tokens))


def test_a_watch_that_broke_is_told_of_when_it_is_found_out() -> None:
    stage = Stage("pushing")
    stage.register.watch(stage.watcher, stage.watcher.answered)
    stage.register.watches.break_silently(stage.watcher.host, 3.0)
    stage.write()
    assert stage.watcher.told == []
    stage.run(3.0)
    assert [type(reply) for reply in stage.watcher.told] == [NoAnswer]


def test_a_writer_expires_only_when_its_term_is_over() -> None:
    stage = Stage("holding")
    stage.register.watch(stage.watcher, stage.watcher.answered)
    stage.write()
    stage.run(TERMS.term_s * (1 + TERMS.drift))
    assert not any(read.expired for read in stage.watcher.reads())
    stage.run(TERMS.takeover_s - TERMS.term_s + 0.1)
    assert stage.watcher.reads()[-1].expired
    stage.register.ask(stage.watcher, None, stage.watcher.answered)
    stage.run(0.1)
    assert stage.watcher.reads()[-1].expired


def test_a_writer_that_writes_on_does_not_expire() -> None:
    stage = Stage("holding")
    stage.register.watch(stage.watcher, stage.watcher.answered)
    for _ in range(10):
        stage.write()
        stage.run(1.0)
    assert not any(read.expired for read in stage.watcher.reads())


@pytest.mark.parametrize("ailment", ["down", "mute", "refuses"])
def test_whoever_gets_no_answer_is_told_once_that_there_will_be_none(ailment: str) -> None:
    stage = Stage("plain")
    setattr(stage.register, ailment, 1)
    stage.write()
    stage.run(TERMS.term_s)
    (told,) = stage.writer.told
    assert isinstance(told, NoAnswer)
    assert told.refused == (ailment == "refuses")
    assert (stage.register.content is not None) == (ailment == "mute")
