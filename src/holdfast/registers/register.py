"""The register: one document with compare-and-set, in a store that many machines reach.

Anything with the two calls of `Register` can carry a job. They block, and come from one thread
at a time: the agent runs a register off its loop. A store that can do more may offer more:
`wait_for_change` (then nobody has to ask again and again), `forget_after` and `keep_for` (then
nothing is left of a job that is over), `holder_expired` (then a machine that fell silent is known
to be silent by a machine that comes later).

Rules
1. `get_state` returns None where nothing was ever written. A read may be stale only where the
   store offers no better.
2. `set_state` without a token sets only where nothing is. A token that does not match changes
   nothing. Either way it returns what is there now, its token, and whether it was set.
3. Where it is not known whether a write happened, `RegisterUnreachable` is raised. Contents are
   unique, so the same write may be tried again within a call: finding exactly one's own content
   means that it was set. Finding another's then means nothing: it may have come over one's own.
4. What will not change by asking again (credentials, certificates) raises `RegisterRefused`.
5. A call ends within `call_timeout_s`, whatever the store does; an endpoint that is silent costs
   `endpoint_timeout_s` of it.
6. No secret is in the text of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, field

from holdfast.core.protocol.errors import HoldfastError

Token: TypeAlias = Any
"""Names a version of the content; compared with `==`, otherwise opaque."""


class RegisterUnreachable(HoldfastError):
    """No answer came: a write may or may not have happened."""


class RegisterRefused(HoldfastError):
    """The store answered, and will not serve us."""


class Register(Protocol):
    """All that a job needs of a store."""

    def get_state(self) -> tuple[bytes, Token] | None:
        """The content and its token, or None where nothing is."""
        ...

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Set it if `token` is still right: what is there then, its token, whether it was set."""
        ...


@runtime_checkable
class WaitsForChange(Protocol):
    """A register that can tell when its content changes."""

    def wait_for_change(self, token: Token | None, timeout_s: float) -> tuple[bytes, Token] | None:
        """Block until the content's token differs from `token`; None when the time is over.

        A register that can tell of an expired holder returns then too, with an unchanged token.
        """
        ...


@runtime_checkable
class Forgets(Protocol):
    """A register that can let go of the document of a job that is over."""

    def forget_after(self, seconds: float) -> None:
        """The content need not be kept longer than this, from now on. It is not written again."""
        ...


@runtime_checkable
class KeepsForATime(Protocol):
    """A register whose document ends by itself some time after it was last written."""

    def keep_for(self, seconds: float) -> None:
        """Let what is written from now on expire this long after its writer has gone."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A register that holds something which should be let go of."""

    def close(self) -> None:
        """Release connections and what is held, never the document."""
        ...


class Credentials(Struct, frozen=True):
    """Secrets, which are in no configuration."""

    user: str = ""
    password: str = field(default="")

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password={'…' if self.password else ''!r})"


class RegisterSettings(Struct, frozen=True):
    """The address of a document, and the time-outs of its store."""

    backend: str
    endpoint: str
    """As the user gave it: hosts and ports, or a path."""
    run_id: str
    options: Mapping[str, str] = {}
    """The user's `--rdzv-conf`."""
    credentials: Credentials = Credentials()
    call_timeout_s: float = 2.5
    endpoint_timeout_s: float = 0.8
    holder_ttl_s: float = 4.0
    """The silence of the last writer after which it counts as expired."""
    keep_s: float = 660.0
    """Time to live of a document that nobody uses any more, in stores that expire keys."""
