"""A document in etcd that is followed: what the registers over both of its APIs have in common.

Rules
1. `wait_for_change` reads once, then takes one event after the other from a connection of its own,
   which is kept from call to call. Where that breaks, the next call reads again.
2. Silence is not believed for long: a server that stands still keeps its connections. The register
   asks one that answers, then, whether there was no news.
3. Where the caller's version is newer than what is known, the events lag behind. A fresh read does
   not lag: then it is another etcd, which counts anew.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.registers.http import HttpClient
from holdfast.registers.register import RegisterSettings, Token

if TYPE_CHECKING:
    from threading import Lock


class KnownDocument(Struct, frozen=True):
    """The content of the register, and its version there."""

    content: bytes
    token: int


class FollowedRegister:
    """The parent of both. For one thread at a time."""

    def __init__(self, settings: RegisterSettings, http: HttpClient) -> None:
        from threading import Lock

        self._http = http
        self._patience_s = settings.holder_ttl_s / 2
        self._known: KnownDocument | None = None
        """The newest that was seen here, or none."""
        self._has_written = False
        self._is_following = False
        """Whether all events so far have been taken into account."""
        self._heard_at = 0.0
        self._in_use: Lock = Lock()

    # --- what each of them does in its own way --------------------------------------------

    def _read(self, deadline: float) -> None:
        """Learn what is there."""
        raise NotImplementedError

    def _take_event(self, deadline: float) -> bool | None:
        """Take in the next event: whether all was read anew for it; None when time is over."""
        raise NotImplementedError

    def _stop_watching(self) -> None:
        raise NotImplementedError

    # --- what they share ------------------------------------------------------------------

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._in_use:
            self._read(self._http.deadline())
            if not self._has_written:
                self._http.let_go()  # Who does not write reads rarely.
            return self._told()

    def wait_for_change(self, token: Token | None, timeout_s: float) -> tuple[bytes, Token] | None:
        """Block for news, each told once; None when the time is over.

        May take longer by one read. A lost connection raises, and the next call opens another.
        """
        with self._in_use:
            is_following, self._is_following = self._is_following, False
            try:
                found = self._wait(token, monotonic() + timeout_s, is_following)
                self._is_following = True
            finally:
                if not self._is_following:
                    self._stop_watching()
            return found

    def _wait(
        self, token: Token | None, deadline: float, is_following: bool
    ) -> tuple[bytes, Token] | None:
        if not is_following:
            self._read(self._http.deadline())
        if self._is_news(token, is_fresh=not is_following):
            return self._told()
        while (is_fresh := self._take_event(deadline)) is not None:
            self._heard_at = monotonic()
            if self._is_news(token, is_fresh):
                return self._told()
        return self._ask_after_silence(token)

    def _ask_after_silence(self, token: Token | None) -> tuple[bytes, Token] | None:
        if monotonic() - self._heard_at < self._patience_s:
            return None
        self._read(self._http.deadline())
        self._heard_at = monotonic()
        if not self._is_news(token, is_fresh=True):
            return None
        self._stop_watching()  # It should have told.
        return self._told()

    def _is_news(self, token: Token | None, is_fresh: bool) -> bool:
        """Whether the document differs from the caller's."""
        if self._known is None or self._known.token == token:
            return False
        return is_fresh or not isinstance(token, int) or self._known.token > token

    def _told(self) -> tuple[bytes, Token] | None:
        """The state, to be returned to the caller."""
        return None if self._known is None else (self._known.content, self._known.token)
