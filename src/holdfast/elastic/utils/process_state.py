"""The state of a process, as the kernel's process table shows it."""

from __future__ import annotations

from holdfast.processes.stdlib_only.linux import read_process

__all__ = ["is_uninterruptible_state", "read_proc_state"]


def read_proc_state(pid: int) -> str | None:
    """The letter of its state (`R`, `S`, `D`, `Z` …), or None where there is no such process."""
    process = read_process(pid)
    return None if process is None else process.state


def is_uninterruptible_state(state: str | None) -> bool:
    """Whether that is a sleep that no signal ends, not even SIGKILL."""
    return state is not None and state.startswith("D")
