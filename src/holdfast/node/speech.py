"""What is put into a node's words on their way: what only its place in the network can tell."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.protocol.messages import FromNode, NodeGreeted, NodeJoined, RoundStopped

TELL_ENDPOINTS = (NodeGreeted, NodeJoined, RoundStopped)


def with_address(message: FromNode, address: str) -> FromNode:
    """Put in the address that peers should use, now that it is known."""
    if not isinstance(message, TELL_ENDPOINTS):
        return message
    endpoint = message.endpoint
    if endpoint is None or endpoint.address:
        return message
    return replace(message, endpoint=replace(endpoint, address=address))
