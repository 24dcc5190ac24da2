"""Limits for what a server holds in memory for all of its peers together.

Rules
1. A frame that has begun is whole within `FRAME_TIMEOUT_S`, however its bytes drip in; a peer that
   does not get that far is refused.
2. Unfinished frames together take `UNFINISHED_BYTES`. Beyond it, a peer in the middle of one
   larger than `SMALL_BYTES` is read no further until there is room, and the one that has been
   unfinished longest is refused once that is `PATIENCE_S`. Heartbeats are small: they always pass.
3. What peers have not read takes `UNREAD_BYTES` together. Beyond it, the one that has not read for
   longest is dropped.
4. A process that was stopped for a while blames nobody for that time.
"""

from __future__ import annotations

import time
from typing import Protocol

from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.frames import HANDSHAKE_LIMIT, ProtocolError

FRAME_TIMEOUT_S = 15.0
UNFINISHED_BYTES = 32 << 20
SMALL_BYTES = HANDSHAKE_LIMIT
PATIENCE_S = 1.0
"""How long a frame may be unfinished while others have to wait for it."""
UNREAD_BYTES = 64 << 20
LATE_S = 1.0
"""A timer that is later than this tells that the process itself was stopped."""

_SLOW = ProtocolError("slow message", "a message was not complete in time", permanent=False)


class BoundedPeer(Protocol):
    """A connection for which something is held."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def refuse(self, error: ProtocolError) -> None: ...
    def give_up_sending(self) -> None: ...


class PeerBuffers:
    """One account for all connections of a server."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._unfinished: dict[BoundedPeer, int] = {}
        self._begun: dict[BoundedPeer, float] = {}
        """Since when a frame is unfinished, longest first."""
        self._paused: dict[BoundedPeer, None] = {}
        self._unread: dict[BoundedPeer, int] = {}
        """Connections with something to read, the longest waiting first."""
        self._timer: Cancellable | None = None
        self._due = 0.0
        self.unfinished_bytes = 0
        self.unread_bytes = 0

    # What comes in.

    def receiving(self, connection: BoundedPeer, size: int, is_new: bool) -> None:
        """So much of a frame is there, and not all of it; `is_new` if another one has begun."""
        self.unfinished_bytes += size - self._unfinished.pop(connection, 0)
        if is_new or not size:
            self._begun.pop(connection, None)
        if size:
            self._unfinished[connection] = size
            self._begun.setdefault(connection, time.monotonic())
        if not size:
            self._paused.pop(connection, None)
        elif size > SMALL_BYTES and self.unfinished_bytes > UNFINISHED_BYTES:
            self._paused[connection] = None
            connection.pause()
        if self.unfinished_bytes <= UNFINISHED_BYTES:
            self._resume()
        self._set_timer()

    def _resume(self) -> None:
        paused, self._paused = self._paused, {}
        for connection in paused:
            # That it had to wait was not its own doing.
            del self._begun[connection]
            self._begun[connection] = time.monotonic()
            connection.resume()

    def _set_timer(self) -> None:
        if not self._begun:
            return
        patience_s = PATIENCE_S if self._paused else FRAME_TIMEOUT_S
        due = next(iter(self._begun.values())) + patience_s
        if self._timer is not None:
            if self._due <= due:
                return  # It looks again then; most frames are whole by that time.
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(due - time.monotonic(), 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now > self._due + LATE_S:
            self._begun = dict.fromkeys(self._begun, now)
        while self._begun:
            connection, begun = next(iter(self._begun.items()))
            if now < begun + (PATIENCE_S if self._paused else FRAME_TIMEOUT_S):
                break
            connection.refuse(_SLOW)
        self._set_timer()

    # What goes out.

    def sending(self, connection: BoundedPeer, size: int) -> None:
        """So much is not read by the peer yet. Called from within its `send`."""
        self.unread_bytes += size - self._unread.get(connection, 0)
        if size:
            self._unread[connection] = size
        else:
            self._unread.pop(connection, None)
        if self.unread_bytes > UNREAD_BYTES:
            next(iter(self._unread)).give_up_sending()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
