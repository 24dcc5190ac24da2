"""The page on which workers see that they are to save."""

from __future__ import annotations

import os

import pytest

from holdfast.core.node_io import ShowSaving
from holdfast.processes.saving_page import DrainPage
from holdfast.worker.draining import PAGE_SIZE, read


def test_no_worker_can_take_the_memory_from_under_the_others_and_the_agent() -> None:
    page = DrainPage()
    try:
        for size in (0, 2 * PAGE_SIZE):
            with pytest.raises(PermissionError):
                os.ftruncate(page.descriptor, size)
        page.show(ShowSaving(until=1.0, reason="a reason", step=4, serial=1, leaves=True))
        shown = read(os.pread(page.descriptor, PAGE_SIZE, 0))
        assert shown is not None
        assert shown["step"] == 4
    finally:
        page.close()
