"""Node names, the same in every sentence on every node.

Rules
1. A node has the name of its host. A second one of the job on the same host is `host/2`, the next
   one `host/3`: no two nodes that are there at once have the same name.
2. A node keeps its name for life: it tells a new coordinator its name, and
   gets it again unless another node has it.
3. On itself a node says "this node" of itself.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from holdfast.core.protocol.model import NodeInfo


class Names(Struct):
    """The names that are in use, with the nodes that hold them."""

    holders: dict[str, str] = field(default_factory=dict)

    def give(self, info: NodeInfo) -> str:
        """Return a name for a new node."""
        name, number = info.name if _fits(info) else info.host, 1
        while name in self.holders:
            number += 1
            name = f"{info.host}/{number}"
        self.holders[name] = info.node
        return name

    def release(self, name: str) -> None:
        """Release the name of a node that is gone."""
        self.holders.pop(name, None)


def _fits(info: NodeInfo) -> bool:
    """Whether the node claims an earlier name that could have been its own."""
    rest = info.name.removeprefix(info.host)
    return info.name.startswith(info.host) and bool(re.fullmatch(r"(/[1-9][0-9]{0,5})?", rest))


def on_itself(text: str, about: str, own_name: str) -> str:
    """A sentence that begins with the name of a node, as that very node says it."""
    if not about or about != own_name or not text.startswith(about):
        return text
    return f"this node{text.removeprefix(about)}"


def host_of(node: str) -> str:
    """The host in the identity of a node, if nothing else is known of it."""
    return node.rpartition("-")[0] or node
