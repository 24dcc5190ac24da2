"""A dashboard of a made-up job, on a real server, and a client that reads its stream."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.dashboard.made_up import MadeUpJob
from tests.waiting import loop_until

from holdfast.dashboard.pages import ALIVE_S
from holdfast.dashboard.site import Site, live_site, read_page
from holdfast.runtime.loop import EventLoop
from holdfast.transport.http_server import HttpServer

KEY = "a-key-for-tests"
SiteOf = Callable[[EventLoop, str], Site]


class Served:
    """All of it on one loop, which runs while a test waits for something."""

    def __init__(
        self, job: MadeUpJob, alive_s: float = ALIVE_S, site_of: SiteOf | None = None
    ) -> None:
        """`site_of` is asked for another site than that of the job."""
        self.loop, self.job = EventLoop(), job
        job.later = self.loop.call_later
        self.problems: list[str] = []
        self._asked: list[Asked] = []
        if site_of is not None:
            self.site = site_of(self.loop, KEY)
        else:
            self.site, self.feed = live_site(self.loop, job, KEY, read_page(), alive_s)
        self.server = HttpServer(self.loop, self.site.routes, self.problems.append)
        self.address = self.server.listen()

    def until(self, is_so: Callable[[], object]) -> None:
        loop_until(self.loop, is_so, look_every_s=0.01)

    def run_for_a_while(self, seconds: float) -> None:
        over: list[bool] = []
        self.loop.call_later(seconds, over.append, True)
        self.loop.run_until(lambda: bool(over))

    def ask(self, target: str, method: str = "GET", body: bytes = b"", **headers: str) -> Asked:
        self._asked.append(Asked(self, target, method, body, headers))
        return self._asked[-1]

    def close(self) -> None:
        for one in self._asked:
            one.close()
        self.site.close()
        self.server.close()
        self.loop.close()
        assert not self.problems


class Asked:
    """One request, and what comes of it."""

    def __init__(
        self, served: Served, target: str, method: str, body: bytes, headers: dict[str, str]
    ) -> None:
        self._served = served
        self._received = b""
        self.is_ended = False
        self._socket = socket.create_connection(served.address)
        self._socket.setblocking(False)
        known = {"Host": "127.0.0.1", "Authorization": f"Bearer {KEY}", **headers}
        if body:
            known["Content-Length"] = str(len(body))
        head = "".join(f"{n.replace('_', '-')}: {v}\r\n" for n, v in known.items() if v)
        self._socket.send(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        served.loop.add_reader(self._socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        received = self._socket.recv(1 << 20)
        self._received += received
        if not received:
            self.is_ended = True
            self.close()

    @property
    def status(self) -> int:
        return int(self._received.split(b" ", 2)[1]) if b"\r\n" in self._received else 0

    @property
    def body(self) -> bytes:
        return self._received.partition(b"\r\n\r\n")[2]

    def until_whole(self) -> Asked:
        def is_whole() -> bool:
            head, found, body = self._received.partition(b"\r\n\r\n")
            lengths = [
                int(line.split(b":")[1])
                for line in head.lower().splitlines()
                if line.startswith(b"content-length")
            ]
            return bool(found) and len(body) >= (lengths[0] if lengths else 0)

        self._served.until(is_whole)
        return self

    def json(self) -> Any:
        return json.loads(self.body)

    def messages(self) -> dict[str, list[Any]]:
        """What a stream has told so far, by kind."""
        found: defaultdict[str, list[Any]] = defaultdict(list)
        text = b"".join(_chunks(self.body)).decode()
        for block in text.split("\n\n")[:-1]:
            kind, _, data = block.partition("\n")
            found[kind.removeprefix("event: ")].append(json.loads(data.removeprefix("data: ")))
        return found

    def until_told(self, kind: str, is_meant: Callable[[Any], object] = lambda told: True) -> Any:
        def meant() -> list[Any]:
            return [told for told in self.messages()[kind] if is_meant(told)]

        self._served.until(meant)
        return meant()[-1]

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._served.loop.remove_reader(self._socket.fileno())
            self._socket.close()


def _chunks(body: bytes) -> list[bytes]:
    """The pieces of a body that is sent as it comes, as far as they are whole."""
    found = []
    while b"\r\n" in body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if len(rest) < length + 2:
            break
        found.append(rest[:length])
        body = rest[length + 2 :]
    return found
