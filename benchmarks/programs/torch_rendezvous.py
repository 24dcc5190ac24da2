"""Let N nodes join one round of torch's own rendezvous, and say how long it took.

Each node is a thread with a connection to the store of its own. The threads are spread over
one process per core, because those of one process would wait for each other's interpreter.
The clock starts when all are connected: PyTorch asks the name server for the name of every
address that connects, and where answers are lost that takes five or ten seconds.
"""

# isort: off
import stamp
import os
import sys
import threading
import time

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry

ADDRESS = "127.0.0.1"
PROCESSES = len(os.sched_getaffinity(0))


class Share:
    """The nodes of one process."""

    def __init__(self, port: int, size: int, share: int) -> None:
        self.parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"{ADDRESS}:{port}",
            run_id="bench",
            min_nodes=size,
            max_nodes=size,
            local_addr=ADDRESS,
            is_host=False,
        )
        self.connected = threading.Barrier(share + 1)
        self.begun = threading.Event()
        self.ranks: list[int] = []
        self.threads = [threading.Thread(target=self.join) for _ in range(share)]

    def join(self) -> None:
        """One node: returns when it knows its rank."""
        handler = registry.get_rendezvous_handler(self.parameters)
        self.connected.wait()
        self.begun.wait()
        self.ranks.append(handler.next_rendezvous().rank)

    def run(self, ready: int, go: int) -> bool:
        """Whether all have joined."""
        for thread in self.threads:
            thread.start()
        self.connected.wait()
        os.write(ready, b".")
        os.read(go, 1)
        self.begun.set()
        for thread in self.threads:
            thread.join()
        return len(self.ranks) == len(self.threads)


size, port = int(sys.argv[1]), int(sys.argv[2])
is_ready, ready = os.pipe()
go, start = os.pipe()
is_up, up = os.pipe()
children = []
for place in range(PROCESSES):
    pid = os.fork()
    if pid == 0:
        os.close(start)
        os.close(up)
        os.read(is_up, 1)
        share = Share(port, size, size // PROCESSES + (place < size % PROCESSES))
        os._exit(0 if share.run(ready, go) else 1)
    children.append(pid)
store = TCPStore(ADDRESS, port, is_master=True, multi_tenant=True, wait_for_workers=False)
os.close(up)
for _ in children:
    os.read(is_ready, 1)
begun = time.monotonic()
os.close(start)
if any(os.waitpid(pid, 0)[1] for pid in children):
    sys.exit("not all nodes joined")
stamp.report(begun)
