"""The one tree of errors.

HoldfastError                what we raise, always with a message for the user
├── UsageError               the user's input cannot be accepted: one sentence, a hint
├── JobFailed                the job ended without success; carries the outcome
└── UnsupportedPlatform      this machine lacks what Holdfast requires
NonRetryable                 raised by *user* code: restarting will not help
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.protocol.model import Outcome


class HoldfastError(Exception):
    """Anything that Holdfast itself reports as an error."""


class UsageError(HoldfastError):
    """Input that cannot be accepted. `hint` names acceptable input."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class JobFailed(HoldfastError):
    """The job ended without success. `journal` is the path of its journal."""

    def __init__(self, outcome: Outcome, report: str, journal: str = "") -> None:
        super().__init__(report)
        self.outcome = outcome
        self.journal = journal


class UnsupportedPlatform(HoldfastError):
    """The operating system lacks what Holdfast requires (Linux, pidfd, subreaper)."""
