"""What a user hears whose words cannot be taken: what is wrong, and what would be right."""

from __future__ import annotations

import sys

from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError


def say_mistake(error: UsageError) -> int:
    """Say it on standard error. Returns the exit status of the verb."""
    print(f"holdfast: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return exit_status.USAGE
