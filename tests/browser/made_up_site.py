"""A dashboard of a made-up job that serves by itself, in a thread, while a test looks at it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import KEY, Served, SiteOf

ALIVE_S = 1.0
"""A page is to notice soon that nothing comes any more."""


class MadeUpSite:
    """Its loop runs in a thread; what a test wants done there is called there."""

    def __init__(self, job: MadeUpJob, site_of: SiteOf | None = None) -> None:
        self.job = job
        self._ours, self._theirs = socket.socketpair()
        self._calls: list[Callable[[], object]] = []
        self._is_over = False
        self._served = Served(job, ALIVE_S, site_of)
        host, port = self._served.address
        self.url = f"http://{host}:{port}/"
        self.link = f"{self.url}#key={KEY}"
        self._served.loop.add_reader(self._theirs.fileno(), self._called)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def call(self, what: Callable[[], object]) -> None:
        """Do this on the loop, soon."""
        self._calls.append(what)
        self._ours.send(b"!")

    def _called(self) -> None:
        self._theirs.recv(100)
        while self._calls:
            self._calls.pop(0)()

    def _run(self) -> None:
        self._served.loop.run_until(lambda: self._is_over)
        self._served.loop.remove_reader(self._theirs.fileno())
        self._served.close()

    def close(self) -> None:
        def end() -> None:
            self._is_over = True

        if self._thread.is_alive():
            self.call(end)
            self._thread.join()
        self._ours.close()
        self._theirs.close()
