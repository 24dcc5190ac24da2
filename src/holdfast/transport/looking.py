"""Watching for another machine that hosts the same endpoint.

An endpoint's name may have addresses of several machines: a bridge's, which is the same on all of
them, or one for each. A host that has only some of them is not sure that it is the one that is
meant, and looks at the others every now and then, for as long as it hosts.

Rules
- Of two hosts of one job, the one with the higher nonce gives way. A host that is sure of its
  place has a lower one than any other (`Server.give_way_to_the_sure`), so it never has to look.
- A look ends at the challenge: nothing is proved, and nobody is admitted.
- A coordinator of another job, or one that has no token where this one has, is nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.dialling import DialAttempt, DialFailed, Identity
from holdfast.transport.resolving import Address

if TYPE_CHECKING:
    import ssl

LOOK_EVERY_S = 2.0


class Looking:
    """Looks at some addresses until it is closed, or has found a host that goes before this one."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        addresses: Sequence[Address],
        own_nonce: bytes,
        on_found: Callable[[Address], None],
    ) -> None:
        self.loop, self.identity = loop, identity
        self.tls: ssl.SSLContext | None = None
        self._addresses, self._own_nonce, self._on_found = addresses, own_nonce, on_found
        self._attempts: list[DialAttempt] = []
        if identity.security.tls is not None:
            from holdfast.transport.tls import client_context

            self.tls = client_context(identity.security.tls)
        self._again: Cancellable = loop.call_soon(self._look)

    def _look(self) -> None:
        self.close()
        self._again = self.loop.call_later(LOOK_EVERY_S, self._look)
        for address in self._addresses:
            try:
                self._attempts.append(DialAttempt(self, address))
            except OSError:
                continue  # There is no way to it, now.

    def close(self) -> None:
        """Look no more."""
        self._again.cancel()
        for attempt in self._attempts:
            attempt.close()
        self._attempts.clear()

    # What attempts tell.

    def on_challenged(self, attempt: DialAttempt) -> None:
        attempt.close()
        self._attempts.remove(attempt)
        if attempt.handshake.identity < self._own_nonce:
            self.close()
            self._on_found(attempt.address)

    def on_welcomed(self, attempt: DialAttempt) -> None:
        raise AssertionError("a look proves nothing, so it is never welcomed")

    def on_attempt_failed(self, attempt: DialAttempt, failure: DialFailed) -> None:
        if attempt in self._attempts:
            self._attempts.remove(attempt)
