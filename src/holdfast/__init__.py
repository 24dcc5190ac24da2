"""Holdfast: the launcher that holds distributed jobs together.

    holdfast.launch(fn, *args, nproc=4)   run a function on 4 workers, get {rank: value}
    @holdfast.record                      leave the traceback where the launcher finds it
    holdfast.progress(step)               say how far a worker is
    holdfast.phase("checkpoint")          say what it is at; with `with`, until the block ends
    holdfast.expires(60, "loading")       with `with`: end this worker if the block takes longer
    holdfast.draining(step)               whether to save now, for a node that leaves or on request
    holdfast.NonRetryable                 raise it when a restart cannot help
    holdfast.register_backend(name, make) let --rdzv-backend mean a register of your own

Each name is imported when it is first used: workers import this package too, and should
not pay for the launcher.
"""

from __future__ import annotations

TYPE_CHECKING = False  # As in `typing`, whose import would cost every worker milliseconds.
if TYPE_CHECKING:
    from typing import Any

    from holdfast.agent.launch import launch
    from holdfast.core.protocol.errors import HoldfastError, JobFailed, UsageError
    from holdfast.registers.opening import register_backend
    from holdfast.worker.draining import draining
    from holdfast.worker.non_retryable import NonRetryable
    from holdfast.worker.progress import expires, phase, progress
    from holdfast.worker.record import record

__version__ = "0.2.0"

__all__ = [
    "HoldfastError",
    "JobFailed",
    "NonRetryable",
    "UsageError",
    "draining",
    "expires",
    "launch",
    "phase",
    "progress",
    "record",
    "register_backend",
]

_HOMES = {
    "HoldfastError": "holdfast.core.protocol.errors",
    "JobFailed": "holdfast.core.protocol.errors",
    "NonRetryable": "holdfast.worker.non_retryable",
    "UsageError": "holdfast.core.protocol.errors",
    "draining": "holdfast.worker.draining",
    "expires": "holdfast.worker.progress",
    "launch": "holdfast.agent.launch",
    "phase": "holdfast.worker.progress",
    "progress": "holdfast.worker.progress",
    "record": "holdfast.worker.record",
    "register_backend": "holdfast.registers.opening",
}


def __dir__() -> list[str]:
    """What is imported when it is first used is there, too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
