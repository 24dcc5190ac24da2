"""The exception with which user code says that trying again will not help."""

from __future__ import annotations


class NonRetryable(Exception):
    """Raised by a worker to end the job at once, whatever restarts are left.

    Any other exception says the same by having the attribute `non_retryable = True`: that
    is what is looked at, so that a library need not depend on Holdfast to say it.
    """

    non_retryable = True
