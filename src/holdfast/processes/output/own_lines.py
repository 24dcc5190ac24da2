"""The lines that Holdfast itself writes on the console, in the form that was asked for.

    (nothing)      holdfast: round 1 ends: …
    --timestamps   14:05:07.123 holdfast: round 1 ends: …
    --json         {"at":1794969907.123,"kind":"round_ended","words":"round 1 ends: …", …}
    --quiet        only failures, and the report at the end

Workers' own lines are left as they are, in all of these.
"""

from __future__ import annotations

import time

from holdfast.core.policy.config import Output
from holdfast.core.protocol.bounds import clean

NAME = "holdfast: "


def stamp(output: Output) -> str:
    """What stands before a line of ours."""
    if not output.timestamps:
        return ""
    seconds, milliseconds = divmod(round(time.time() * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{milliseconds:03d} "


def own_line(output: Output, text: str, node: str = "") -> str:
    """A sentence as a line. Much of what is said comes from other machines: it stays one line."""
    if not output.json:
        return f"{stamp(output)}{NAME}{clean(text)}\n"
    import msgspec

    said = {"at": round(time.time(), 3), "kind": "said", "words": clean(text), "by": node}
    return msgspec.json.encode(said).decode() + "\n"
