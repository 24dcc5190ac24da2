"""Journals of older schemas, line by line in the names of the present one.

They are read for display, not for replay: an event or an effect that no longer exists
is left out, and so is the node's state before a step of the election.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent
from holdfast.core.node_io import NodeEffect, NodeEvent
from holdfast.core.protocol.messages import FromNode, ToNode

TYPES = {
    # The node's.
    "AgentStarted": "NodeStarted",
    "NoteMade": "LivenessLockTaken",
    "GroupStood": "StallFound",
    "GroupMoved": "StallOver",
    "WorkerHeld": "WorkerStuck",
    "AgentTimerFired": "NodeTimerFired",
    "NoteSeat": "RecordSeat",
    "RemoveNotes": "RemoveLivenessLocks",
    "WakeAgent": "WakeNode",
    # The coordinator's.
    "HeldUp": "LoopDelayed",
    # Messages.
    "WorkersStood": "WorkersStalled",
    "WorkersMoved": "WorkersResumed",
    "QuestionAsked": "RequestMade",
    "QuestionAnswered": "RequestAnswered",
    "PutQuestion": "ForwardRequest",
    "PassAnswer": "PassResponse",
    "SettleQuestion": "CloseRequest",
    # The election's.
    "LedgerWanted": "Write",
    "ResignationWanted": "Resign",
    "Outranked": "Depose",
    "OutcomeKnown": "Retire",
    "NodeLeaves": "HandOverAsked",
    "DialWanted": "Dial",
    "NodesEnded": "KnowEnded",
    "NobodyFound": "CoordinatorLost",
    "LearnOutcome": "Told",
    "Announce": "Say",
}
FIELDS = {
    "tenure": "term",
    "tenure_s": "term_s",
    "stays_out": "unfit",
    "question": "request",
    "standing": "report",
    "wish": "command",
    "notes": "locks",
    "still_s": "stalled_s",
    "never_spoke": "never_reported",
    "place": "location",
    "places": "locations",
}
"""`place` and `places` were addresses of nodes, too, which are not shown."""
UNIONS = (NodeEvent, NodeEffect, CoordinatorEvent, CoordinatorEffect, FromNode, ToNode)
KNOWN = {kind.__name__ for union in UNIONS for kind in get_args(union)}


def renewed(line: bytes) -> bytes | None:
    """A line in present names; None if its event is no longer told.

    Raises `msgspec.MsgspecError` for what is no JSON.
    """
    found = _renamed(msgspec.json.decode(line, type=dict[str, Any]))
    if found.get("machine") == "election":
        found["before"] = None
    elif "event" in found:
        if not _is_known(found["event"]):
            return None
        found["effects"] = [effect for effect in found["effects"] if _is_known(effect)]
    return msgspec.json.encode(found)


def _renamed(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_renamed(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    found = {FIELDS.get(name, name): _renamed(value) for name, value in tree.items()}
    if isinstance(found.get("type"), str):
        found["type"] = TYPES.get(found["type"], found["type"])
    return found


def _is_known(thing: dict[str, Any]) -> bool:
    """Whether there is such an event or effect, and such a message in it."""
    message = thing.get("message")
    is_known = message is None or message["type"] in KNOWN
    return is_known and thing["type"] in KNOWN
