"""Calls from other threads: nobody waits for anybody at the end."""

from __future__ import annotations

import os
import threading

import pytest

from holdfast.runtime.loop import EventLoop
from holdfast.runtime.thread_calls import ThreadCalls

DEADLINE_S = 60.0


def test_an_end_does_not_wait_for_who_is_about_to_call() -> None:
    """As when a handler has interrupted `put`, and waits for the thread of the loop."""
    loop = EventLoop()
    calls = ThreadCalls(loop)
    bell = calls._bell
    with calls._lock:
        ending = threading.Thread(target=calls.close, daemon=True)
        ending.start()
        ending.join(DEADLINE_S)
        assert not ending.is_alive()
        os.fstat(bell)  # Who is about to ring it still can.
        calls.put(print, "this is never called")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(bell)
    assert not calls.calls
    loop.close()
