"""What the spawner tells of its zygote, as an event of the core."""

from __future__ import annotations

from typing import Any

from holdfast.core.agent_io import AgentEvent, ModuleRejected, ModulesUnfit, ZygoteLost, ZygoteReady


def zygote_event(message: dict[str, Any]) -> AgentEvent:
    match message["event"]:
        case "ready":
            return _ready(message)
        case "rejected":
            module, reason = message["module"], message["reason"]
            return ModuleRejected(module, reason, message["cost_s"], message["beside"])
        case "unfit":
            return ModulesUnfit(message["unfit"], message["beside"])
        case _:
            return ZygoteLost(message["reason"], message.get("beside", False))


def _ready(message: dict[str, Any]) -> ZygoteReady:
    return ZygoteReady(
        preloaded=tuple(message["steps"]),
        took_s=message["took_s"],
        late=tuple(message["late"]),
        stopped_in=tuple(message.get("stopped_in", ())),
        reason=message.get("reason", ""),
        has_torch=message["has_torch"],
        beside=message["beside"],
    )
