"""The key of a dashboard, and the names under which it answers.

Rules
1. Every request but those for the page itself needs the key. It is random, made at the agent's
   start and told only to users who may ask the job anyway. The page gets it in the fragment of its
   link, which browsers send nowhere, and sends it in a header: not in a cookie, which other ports
   of the host would get too, and not in an address, which may be logged. No form and no page from
   elsewhere can send that header.
2. It is compared in a time that tells nothing about it.
3. A request under a foreign name is refused: otherwise a page from elsewhere could have its own
   name point here. An address is no name, and cannot be pointed elsewhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable

from holdfast.transport.http_model import HttpResponse, PageRequest, text_response

KEY_BYTES = 24
_BEARER = "Bearer "

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)


def new_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


class PageAuth:
    """The check of each request before it is answered."""

    def __init__(self, key: str, names: Iterable[str] = ()) -> None:
        """`names` are those of this machine."""
        self._key = key.encode()
        self._names = {"localhost", *(name.lower() for name in names)}

    def refusal(self, request: PageRequest, *, open_to_all: bool = False) -> HttpResponse | None:
        """The refusal, if there is one; the page itself, without facts, is `open_to_all`."""
        if not self._is_our_name(request.headers.get("host", "")):
            return text_response(
                421, "this dashboard does not answer under that name: use its address"
            )
        if open_to_all:
            return None
        shown = request.headers.get("authorization", "")
        if not shown.startswith(_BEARER) or not self._fits(shown.removeprefix(_BEARER)):
            return text_response(401, "the key is missing or does not fit")
        return None

    def _fits(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._key)

    def _is_our_name(self, host: str) -> bool:
        name = _without_port(host).lower()
        return name in self._names or _is_address(name)


def _without_port(host: str) -> str:
    """`[::1]:80` is the address `::1`; what has several colons and no brackets is one, too."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and ":" not in name else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
