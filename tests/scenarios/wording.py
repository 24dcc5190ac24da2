"""What the core asks for and says, in the words of a transcript.

Each line begins with where it is seen: what the `agent` does, what `agent` and `coordinator`
tell each other, what stands on the user's `screen`, which timer is set on the `clock`, and
how the job `ends`. A type without words of its own here is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    Explain,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
)
from holdfast.core.node_io import (
    CloseRound,
    Dial,
    DropZygote,
    EndSpawner,
    Finish,
    KillEverything,
    KillSpawner,
    KillZygote,
    ListStuck,
    LookAtUnexited,
    NodeEffect,
    Remember,
    Report,
    ReserveEndpoint,
    Say,
    SignalWorkers,
    StartWorkers,
    StartZygote,
    WakeNode,
)
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    RoundStopped,
    RunRound,
    StopRound,
    TellHang,
    ToNode,
    Welcomed,
    WorkersFailed,
    WorkersProgressed,
    WorkersResumed,
    WorkersStalled,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Failure, Outcome, signal_name
from holdfast.core.protocol.preload_steps import module_of


def line(effect: NodeEffect | CoordinatorEffect) -> str:
    """One line of the transcript."""
    match effect:
        case Say() | Explain():
            return f"screen       {effect.text}"
        case WakeNode() | WakeCoordinator():
            return f"clock        {effect.name} timer in {effect.after_s:.4g} s"
        case Finish():
            return f"ends         {_outcome(effect.outcome)}"
        case Report():
            return f"agent        tells the coordinator: {_from_node(effect.message)}"
        case Tell():
            return f"coordinator  tells the agent: {_to_node(effect.message)}"
        case Write():
            return f"coordinator  writes down: {_ledger(effect)}"
        case Retire():
            return "coordinator  has nothing more to do"
        case _:
            return f"agent        {_request(effect)}"


def _zygote(effect: StartZygote) -> str:
    modules = ", ".join(map(module_of, effect.steps)) or "nothing"
    late = f", and late {', '.join(effect.late)}" if effect.late else ""
    which = "a better zygote beside it" if effect.beside else "a zygote"
    return f"starts {which} that imports {modules}{late}"


def _request(effect: NodeEffect | CoordinatorEffect) -> str:
    match effect:
        case Dial():
            return "calls the coordinator"
        case ReserveEndpoint():
            store = ", with a store listening there" if effect.store else ""
            return f"reserves a port for the next master{store}"
        case StartZygote():
            return _zygote(effect)
        case Remember():
            late = f"what is imported late: {', '.join(effect.late)}" if effect.late else ""
            unfit = f"what cannot be imported ahead: {', '.join(effect.avoid)}"
            return f"remembers {late or unfit}"
        case DropZygote():
            return "drops the zygote"
        case StartWorkers():
            how = "warm" if effect.warm else "cold"
            return f"starts {_local(effect.local_ranks)} of round {effect.assignment.round}, {how}"
        case SignalWorkers():
            return f"sends {signal_name(effect.signal)} to {_local(effect.local_ranks)}"
        case CloseRound():
            return "forgets the workers of the round"
        case KillEverything():
            return "sends SIGKILL to everything that is left"
        case ListStuck():
            return "asks what is still there"
        case LookAtUnexited():
            return "looks where those are that have not exited"
        case EndSpawner():
            return "has the spawner kill everything and end"
        case KillZygote():
            return "sends SIGKILL to the zygote"
        case KillSpawner():
            return "sends SIGKILL to the spawner itself"
        case _:
            return repr(effect)


def _from_node(message: FromNode) -> str:
    match message:
        case NodeGreeted():
            slots = message.info.slots
            return f"here is {message.info.node}, {slots} slot{'s' if slots > 1 else ''}"
        case NodeJoined():
            return f"ready, with the master's port {message.endpoint.port}"
        case WorkersFailed():
            return f"round {message.round}: {failures(message.failures)}"
        case WorkersSucceeded():
            return f"round {message.round}: all workers succeeded"
        case WorkersProgressed():
            return f"round {message.round}: step {message.step} was reached"
        case WorkersStalled():
            return f"round {message.round}: its workers stand still"
        case WorkersResumed():
            return f"round {message.round}: its workers move again"
        case RoundStopped():
            told = failures(message.failures)
            return f"round {message.round} has stopped: {told}; next port {message.endpoint.port}"
        case NodeLeft():
            return f"leaving: {message.reason}"
        case _:
            return repr(message)


def _to_node(message: ToNode) -> str:
    match message:
        case Welcomed():
            return "welcome"
        case RunRound():
            part = message.assignment
            restarts = f", restart {part.restart_count}" if part.restart_count else ""
            return f"run round {part.round} with the master at {part.master}{restarts}"
        case StopRound():
            return f"stop round {message.round}"
        case TellHang():
            ends = ", and end the worker that is most likely the cause" if message.ends else ""
            return f"round {message.round}: the job hangs; say where your workers are{ends}"
        case CloseJob():
            return f"the job is over: {message.outcome.verdict}"
        case _:
            return repr(message)


def _ledger(effect: Write) -> str:
    ledger = effect.ledger
    if ledger.outcome is not None:
        return f"the job is over: {ledger.outcome.verdict}"
    failed = f", {ledger.charges} failed before" if ledger.charges else ""
    return f"round {ledger.round}{failed}"


def _outcome(outcome: Outcome) -> str:
    text = f"{outcome.verdict}, exit status {outcome.exit_status}: {outcome.reason}"
    if outcome.cause is not None:
        text += f"\n             first observed: {failures([outcome.cause])}"
    if outcome.others:
        text += f"\n             then: {failures(outcome.others)}"
    return text


def failures(found: Iterable[Failure]) -> str:
    return ", ".join(
        f"rank {one.rank} {'stopped by us' if one.stopped_by_us else 'failed'} ({one.status})"
        for one in found
    )


def _local(local_ranks: tuple[int, ...]) -> str:
    return f"worker{'s' if len(local_ranks) > 1 else ''} {', '.join(map(str, local_ranks))}"
