"""The key of a dashboard, and the headers of its answers.

Every request but those for the page itself needs the key. It is random, made at the agent's start
and told only to users who may ask the job anyway. The page gets it in the fragment of its link,
which browsers send nowhere, and sends it in a header: not in a cookie, which other ports of the
host would get too, and not in an address, which may be logged. No form and no page from elsewhere
can send that header, under whatever name such a page has itself resolved to this address.
"""

from __future__ import annotations

import hmac
import secrets

from holdfast.transport.http_model import PageRequest

KEY_BYTES = 24
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


def fits(key: str, request: PageRequest) -> bool:
    """Whether the request shows the key, compared in a time that tells nothing about it."""
    shown = request.headers.get("authorization", "")
    return hmac.compare_digest(shown.encode(), f"Bearer {key}".encode())
