"""Timers that end a worker which is stuck: `with expires(after=60): ...`.

A worker takes a timer for a stretch of code and gives it back after it. A server, in the
process that watches the workers, kills a worker whose timer ran out. Servers and clients need
no agent:

    queue = multiprocessing.get_context("spawn").Queue()
    server = LocalTimerServer(queue)
    server.start()
    ...
    # in the worker
    configure(LocalTimerClient(queue))
    with expires(after=60):
        ...
"""

from holdfast.elastic.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    configure,
    expires,
)
from holdfast.elastic.timer.file_based_local_timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
)
from holdfast.elastic.timer.local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
