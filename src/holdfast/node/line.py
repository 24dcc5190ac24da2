"""A node's line to the coordinator over real sockets; the files for TLS are read beside the loop.

They are read at every dial, since somebody may be replacing them while the job runs, and a lease
may depend on how soon the coordinator is reached again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Tenure
from holdfast.node.ports import LineHandlers
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Loop
from holdfast.transport.client import Client
from holdfast.transport.dialling import Identity

if TYPE_CHECKING:
    import ssl

    from holdfast.transport.auth import TlsFiles

FILES_WAIT = "no coordinator can be dialled until then"


class FilesRead(Struct, frozen=True):
    """What came of reading them."""

    context: ssl.SSLContext | None = None
    problem: UsageError | None = None


class RealLine:
    """As `transport.client.Client`, but that no dial waits for a disk."""

    def __init__(self, loop: Loop, who: Identity, disk: Disk, handlers: LineHandlers) -> None:
        self._client = Client(loop, who.job, who.node, who.security, self)
        self._files, self._disk, self._handlers = who.security.tls, disk, handlers
        self._number = 0
        """Of dials and ends: what was read for an earlier one is of no use."""

    def dial(self, endpoints: Sequence[Endpoint], timeout_s: float) -> None:
        self.close()
        if self._files is None:
            self._client.dial(endpoints, timeout_s)
            return
        number = self._number

        def go_on(found: FilesRead) -> None:
            if number != self._number:
                return
            if found.problem is not None:
                self._handlers.on_unusable(found.problem)
            else:
                self._client.dial(endpoints, timeout_s, found.context)

        place = self._files.certificate or self._files.authority or ""
        lane = self._disk.lane("certificates", place, FILES_WAIT)
        lane.do(partial(_read, self._files), go_on)

    def send(self, message: FromNode) -> None:
        self._client.send(message)

    def close(self) -> None:
        self._number += 1
        self._client.close()

    # What the client says.

    def on_connected(self, server_nonce: bytes, local_address: str) -> None:
        self._handlers.on_connected(local_address)

    def on_lost(self, reason: str, permanent: bool) -> None:
        self._handlers.on_line_lost(reason, permanent)

    def on_message(self, instance: int, epoch: int, message: ToNode) -> None:
        self._handlers.on_told(Tenure(instance, epoch), message)

    def on_tether(self, fd: int) -> None:
        self._handlers.on_own_tether(fd)


def _read(files: TlsFiles) -> FilesRead:
    from holdfast.transport.tls import client_context

    try:
        return FilesRead(client_context(files))
    except UsageError as error:
        return FilesRead(problem=error)
