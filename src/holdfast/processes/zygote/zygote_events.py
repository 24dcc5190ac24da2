"""What the spawner tells of its zygote, as an event of the core."""

from __future__ import annotations

from holdfast.core.node_io import ModuleRejected, ModulesUnfit, NodeEvent, ZygoteLost, ZygoteReady
from holdfast.processes.stdlib_only import private_messages as messages


def zygote_event(message: messages.OfZygote) -> NodeEvent:
    match message:
        case messages.Preloaded():
            return _ready(message)
        case messages.StepRejected():
            return ModuleRejected(message.step, message.reason, message.cost_s, message.beside)
        case messages.LateUnfit():
            return ModulesUnfit(message.reasons, message.beside)
        case messages.Unsuitable() | messages.ZygoteEnded():
            return ZygoteLost(message.reason, message.beside)
        case _:
            raise AssertionError(f"nothing that becomes of a zygote: {message}")


def _ready(message: messages.Preloaded) -> ZygoteReady:
    return ZygoteReady(
        preloaded=message.steps,
        took_s=message.took_s,
        late=message.late,
        stopped_in=message.stopped_in,
        reason=message.reason,
        has_torch=message.has_torch,
        beside=message.beside,
    )
