"""What a launcher brings along: a store in memory, and a handler of one node."""

import threading
from datetime import timedelta

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)


class MemoryStore:
    def __init__(self):
        self.values = {}
        self.timeout = timedelta(seconds=30)
        self._changed = threading.Condition()

    def set_timeout(self, timeout):
        self.timeout = timeout

    def set(self, key, value):
        with self._changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def add(self, key, amount):
        with self._changed:
            self.values[key] = str(int(self.values.get(key, 0)) + amount).encode()
            self._changed.notify_all()
            return int(self.values[key])

    def wait(self, keys, timeout=None):
        allowed = (timeout or self.timeout).total_seconds()
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self.values for key in keys), allowed):
                raise RuntimeError(f"{keys} did not come")

    def get(self, key):
        self.wait([key])
        return self.values[key]

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class OneNode(RendezvousHandler):
    """Meets with nobody; `newcomers` is how often it says that somebody waits."""

    def __init__(self, params=None, newcomers=0):
        self.params = params
        self.newcomers = newcomers
        self.rounds = 0
        self.told = []

    def get_backend(self):
        return self.params.backend if self.params else "one node"

    def next_rendezvous(self):
        self.rounds += 1
        self.newcomers = max(0, self.newcomers - 1)
        return RendezvousInfo(MemoryStore(), 0, 1, RendezvousStoreInfo("localhost", 29555))

    def is_closed(self):
        return False

    def set_closed(self):
        self.told.append("set_closed")

    def num_nodes_waiting(self):
        return self.newcomers

    def get_run_id(self):
        return self.params.run_id if self.params else "run"

    def shutdown(self):
        self.told.append("shutdown")
        return True
