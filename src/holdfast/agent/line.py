"""A node's line to the coordinator: the client, whose files for TLS are read beside the loop.

They are read at every dial, since somebody may be replacing them while the job runs, and a lease
may depend on how soon the coordinator is reached again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.control.client import Client, Handlers
from holdfast.core.errors import UsageError
from holdfast.core.messages import FromNode
from holdfast.core.model import Endpoint

if TYPE_CHECKING:
    import ssl

    from holdfast.agent.contact import Owner
    from holdfast.control.auth import Security, TlsFiles

FILES_WAIT = "no coordinator can be dialled until then"


class Read(Struct, frozen=True):
    """What came of reading them."""

    context: ssl.SSLContext | None = None
    problem: UsageError | None = None


class Line:
    """As `control.client.Client`, but that no dial waits for a disk."""

    def __init__(self, owner: Owner, security: Security, handlers: Handlers) -> None:
        self._client = Client(owner.loop, owner.config.run_id, owner.node, security, handlers)
        self._files, self._disk = security.tls, owner.disk
        self._number = 0
        """Of dials and ends: what was read for an earlier one is of no use."""

    def dial(
        self,
        endpoints: Sequence[Endpoint],
        timeout_s: float,
        refuse: Callable[[UsageError], None],
    ) -> None:
        """Connect to one of them. `refuse` is told when the files for TLS cannot be used."""
        self.close()
        if self._files is None:
            self._client.dial(endpoints, timeout_s)
            return
        number = self._number

        def go_on(found: Read) -> None:
            if number != self._number:
                return
            if found.problem is not None:
                refuse(found.problem)
            else:
                self._client.dial(endpoints, timeout_s, found.context)

        place = self._files.certificate or self._files.authority or ""
        lane = self._disk.lane("certificates", place, FILES_WAIT)
        lane.do(partial(_read, self._files), go_on)

    def send(self, message: FromNode) -> bool:
        return self._client.send(message)

    def close(self) -> None:
        """End the connection, or the dialling, silently."""
        self._number += 1
        self._client.close()


def _read(files: TlsFiles) -> Read:
    from holdfast.control.tls import client_context

    try:
        return Read(client_context(files))
    except UsageError as error:
        return Read(problem=error)
