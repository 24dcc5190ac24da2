"""How a node gets ready, warm or cold."""

from __future__ import annotations

from holdfast.core.features.liveness_locks import LOCK_TIMER, LOCK_WAIT_S
from holdfast.core.node_io import (
    CoordinatorReached,
    Dial,
    DropZygote,
    EndedFound,
    EndpointReserved,
    KnowEnded,
    LivenessLockTaken,
    ModuleRejected,
    NodeEffect,
    NodeStarted,
    NodeTimerFired,
    RecordSeat,
    RemoveLivenessLocks,
    Report,
    ReserveEndpoint,
    SpawnerReady,
    StartWorkers,
    StartZygote,
    Told,
    WakeNode,
    ZygoteReady,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    CloseJob,
    EndedMember,
    MembersEnded,
    NodeGreeted,
    NodeJoined,
    RunRound,
)

from .agent_life import PORT, SUCCEEDED, Life, assignment, run_round, said, without_words


def test_a_node_joins_when_its_port_is_held_and_it_knows_how_workers_start() -> None:
    life = Life()
    started = life.take(NodeStarted(preload=("import numpy",)))
    assert started[:2] == [Dial(), StartZygote(("import numpy",))]
    assert WakeNode("preload", 60.0) in started
    assert life.take(ZygoteReady(("import numpy",))) == [ReserveEndpoint()]
    (joined,) = life.take(EndpointReserved(PORT))
    assert isinstance(joined, Report)
    assert isinstance(joined.message, NodeJoined)
    assert joined.message.endpoint == PORT
    assert joined.message.info.slots == 2


def test_a_cold_node_joins_without_a_zygote() -> None:
    life = Life()
    assert life.take(NodeStarted(cold="a plain command")) == [Dial(), ReserveEndpoint()]
    (joined,) = life.take(EndpointReserved(PORT))
    assert isinstance(joined, Report)
    (start,) = life.take(run_round())
    assert start == StartWorkers(assignment(), (0, 1), warm=False)


def test_a_rejected_module_is_left_out_with_what_is_inside_it() -> None:
    life = Life()
    life.take(NodeStarted(preload=("import torch", "from numpy import array", "import torch.nn")))
    effects = life.take(ModuleRejected("import torch", "it opens /dev/nvidia0 when imported", 2.12))
    (start,) = without_words(effects)
    assert isinstance(start, StartZygote)
    assert start.steps == ("from numpy import array",)
    told = "each worker imports torch itself, about 2.1 s: it opens /dev/nvidia0 when imported"
    assert said(effects) == told


def test_of_a_name_that_cannot_be_taken_the_module_stays() -> None:
    life = Life()
    life.take(NodeStarted(preload=("from torch import nn", "environ A=b")))
    effects = life.take(ModuleRejected("from torch import nn", "importing it raised"))
    (start,) = without_words(effects)
    assert start == StartZygote(("import torch", "environ A=b"), avoid=("torch",))


def test_a_module_that_was_not_asked_for_cannot_be_left_out() -> None:
    life = Life()
    life.take(NodeStarted(preload=("import numpy",)))
    effects = life.take(ModuleRejected("sitecustomize", "it raised"))
    assert without_words(effects) == [DropZygote(), ReserveEndpoint()]
    assert "workers start cold" in said(effects)


def test_an_import_that_hangs_holds_nobody_up() -> None:
    life = Life()
    life.take(NodeStarted(preload=("import torch",)))
    effects = life.take(NodeTimerFired("preload"))
    assert without_words(effects) == [DropZygote(), ReserveEndpoint()]
    assert said(effects) == sentences.cold_start(sentences.preload_too_late(60.0))
    assert isinstance(life.take(EndpointReserved(PORT))[-1], Report)


def test_a_zygote_that_comes_too_late_is_not_used() -> None:
    life = Life()
    life.take(NodeStarted(), NodeTimerFired("preload"), EndpointReserved(PORT))
    assert life.take(ZygoteReady(())) == []
    (start,) = life.take(run_round())
    assert start == StartWorkers(assignment(), (0, 1), warm=False)


def test_a_slow_import_is_worth_a_line_that_names_what_is_not_python_s_own() -> None:
    life = Life()
    imports = ("import json", "import torch", "from torch import nn")
    life.take(NodeStarted(preload=("path 0 /job/lib", "environ A=b", *imports)))
    assert said(life.take(NodeTimerFired("preload notice"))) == sentences.importing(["torch"])
    life.take(ZygoteReady(()))
    assert life.take(NodeTimerFired("preload notice")) == []


def test_a_kernel_without_subreapers_is_told_of() -> None:
    life = Life()
    assert life.take(SpawnerReady(7, subreaper=True, pidfd=True)) == []
    effects = life.take(SpawnerReady(7, subreaper=False, pidfd=True))
    assert said(effects) == sentences.NO_SUBREAPER


GONE = EndedMember("here-0", 1, 4, 0)


def noting() -> Life:
    """A node that holds a port, and will have a note."""
    life = Life()
    life.take(NodeStarted(cold="not wanted", locks=True), EndpointReserved(PORT))
    return life


def joined(effects: list[NodeEffect]) -> NodeJoined:
    (report,) = [effect for effect in effects if isinstance(effect, Report)]
    assert isinstance(report.message, NodeJoined)
    return report.message


def test_a_node_joins_once_it_holds_its_liveness_lock() -> None:
    life = Life()
    started = life.take(NodeStarted(cold="not wanted", locks=True))
    assert WakeNode(LOCK_TIMER, LOCK_WAIT_S) in started
    assert life.take(EndpointReserved(PORT)) == []
    assert joined(life.take(LivenessLockTaken())).info.node


def test_a_disk_that_does_not_answer_holds_up_nobody() -> None:
    life = noting()
    assert joined(life.take(NodeTimerFired(LOCK_TIMER))).info.node
    assert life.take(NodeTimerFired(LOCK_TIMER)) == []


def test_who_ended_on_this_machine_is_told_with_every_greeting() -> None:
    life = noting()
    found = EndedFound(("here-0", "spare-0"), (GONE,))
    assert life.take(LivenessLockTaken(), found) == [KnowEnded(("here-0", "spare-0"))]
    (greeting,) = life.take(CoordinatorReached())
    assert isinstance(greeting, Report)
    assert isinstance(greeting.message, NodeGreeted)
    assert greeting.message.ended == (GONE,)


def test_who_is_found_later_is_told_at_once_and_only_once() -> None:
    life = noting()
    life.take(LivenessLockTaken(), CoordinatorReached())
    found = EndedFound(("here-0",), (GONE,))
    assert life.take(found) == [KnowEnded(("here-0",)), Report(MembersEnded((GONE,)))]
    assert life.take(found) == [KnowEnded(("here-0",))]


def test_the_note_has_the_seat_before_workers_start() -> None:
    life = noting()
    effects = life.take(LivenessLockTaken(), Told(RunRound(assignment())))
    assert effects[0] == RecordSeat(1, 1, 0)
    assert isinstance(effects[1], StartWorkers)


def test_a_job_that_is_over_leaves_no_notes() -> None:
    life = noting()
    assert RemoveLivenessLocks() in life.take(LivenessLockTaken(), Told(CloseJob(SUCCEEDED)))
