"""A TCP proxy that stands between a register and its servers, and does what networks do.

Rules
- Requests and answers are passed on whole, as they come, until somebody says otherwise.
- What is lost, held or refused is decided when it passes, for connections old and new.
- A request that was delivered is delivered also when its client has gone meanwhile.
- Nothing waits for a time: what is held back is held until it is let go.
"""

from __future__ import annotations

import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote


class Proxy:
    """Listens on a port of its own for each of some servers, and treats them all alike."""

    def __init__(self, servers: str) -> None:
        """`servers` is a comma list of hosts and ports, and so is `endpoint`."""
        self._listening = [socket.create_server(("127.0.0.1", 0)) for _ in servers.split(",")]
        self.endpoint = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self._listening)
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._is_open = True
        self.refuses = False
        """New connections are closed at once."""
        self.swallows = False
        """Connections are accepted, and nothing passes in either direction."""
        self.marks: tuple[bytes, ...] = ()
        """What the request contains that something happens to."""
        self.loses_answer = False
        self.refuses_after_loss = False
        self.meanwhile: Callable[[], object] = lambda: None
        self.holds_request = False
        self.holds_answers = False
        self.happened = threading.Event()
        """Set when the marked request was lost or held, as was asked for."""
        self.losses = 0
        self.answered = threading.Event()
        """Set when a server has answered a request that was held."""
        self.let_go = threading.Event()
        for listening, server in zip(self._listening, servers.split(","), strict=True):
            threading.Thread(target=self._accept, args=(listening, server), daemon=True).start()

    # --- what tests say -------------------------------------------------------------------

    def forward(self) -> None:
        """Pass on everything, from now on."""
        with self._lock:
            self.refuses = self.swallows = self.loses_answer = self.holds_request = False
            self.holds_answers = self.refuses_after_loss = False
            self.marks = ()
        self.let_go.set()

    def refuse(self) -> None:
        """No connection is there, and none can be made."""
        self.refuses = True
        self._cut_all()

    def swallow(self) -> None:
        """All is silence, as if a firewall began to drop everything."""
        self.swallows = True

    def lose_answer_to(
        self,
        content: bytes,
        *,
        refuse_afterwards: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Deliver the request that carries the content; when its answer comes, hang up instead.

        Between the two, `meanwhile` is called.
        """
        self._mark(content)
        self.refuses_after_loss = refuse_afterwards
        self.meanwhile = meanwhile
        self.loses_answer = True

    def hold_request_with(self, content: bytes) -> None:
        """Keep back the request that carries the content, until `release`."""
        self._mark(content)
        self.holds_request = True

    def hold_answers(self) -> None:
        """Keep back all answers, until `release`."""
        self.let_go.clear()
        self.holds_answers = True

    def release(self) -> None:
        """Deliver what was kept back, and keep back nothing more."""
        self.forward()

    def is_to_lose(self) -> bool:
        """Whether an answer is to be lost; one is, however many links ask at once."""
        with self._lock:
            loses, self.loses_answer = self.loses_answer, False
            if loses:
                self.losses += 1
                self.marks = ()
        return loses

    def _mark(self, content: bytes) -> None:
        self.happened.clear()
        self.answered.clear()
        self.let_go.clear()
        # However the register writes it: plain, in JSON, or in a form.
        encoded = b64encode(content)
        self.marks = (content, encoded, encoded.rstrip(b"="), quote(content).encode())

    # --- how it works ---------------------------------------------------------------------

    def _accept(self, listening: socket.socket, place: str) -> None:
        host, _, port = place.rpartition(":")
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return  # It was closed.
            if self.refuses or not self._is_open:
                client.close()
                continue
            try:
                server = socket.create_connection((host, int(port)), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            link = Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.start()

    def _cut_all(self) -> None:
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.cut()

    def close(self) -> None:
        self._is_open = False
        self.let_go.set()
        for listening in self._listening:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # Wakes `accept`.
            listening.close()
        self._cut_all()


class Link:
    """One client's connection, and the one to the server that was made for it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._is_marked = False

    def start(self) -> None:
        for run in (self._carry_requests, self._carry_answers):
            threading.Thread(target=run, daemon=True).start()

    def cut(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _carry_requests(self) -> None:
        proxy = self._proxy
        recent = b""
        with suppress(OSError):
            while data := self._client.recv(65536):
                if proxy.swallows:
                    continue
                recent = (recent + data)[-65536:]
                if any(mark in recent for mark in proxy.marks):
                    recent = b""
                    self._is_marked = True
                    if proxy.holds_request:
                        proxy.happened.set()
                        proxy.let_go.wait()
                self._server.sendall(data)
        # A client that has given up does not take back what it said.
        if not self._is_marked:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)

    def _carry_answers(self) -> None:
        proxy = self._proxy
        with suppress(OSError):
            while data := self._server.recv(65536):
                if proxy.swallows:
                    continue
                if self._is_marked and proxy.is_to_lose():
                    self._lose()
                    return
                if self._is_marked:
                    proxy.answered.set()
                if proxy.holds_answers:
                    proxy.happened.set()
                    proxy.let_go.wait()
                self._client.sendall(data)
        self.cut()

    def _lose(self) -> None:
        """The server has answered, so it is done; the client learns nothing of it."""
        proxy = self._proxy
        proxy.meanwhile()
        proxy.refuses = proxy.refuses_after_loss
        proxy.happened.set()  # Before the client can know of it.
        if proxy.refuses:
            proxy._cut_all()
        self.cut()
