"""What all verbs have in common: their help, and what a user hears whose words cannot be taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps

from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import HoldfastError, UsageError

Verb = Callable[[list[str]], int]


def verb(help_text: str) -> Callable[[Callable[[list[str]], int | None]], Verb]:
    """Make a verb of a function that takes the words after it, and raises what goes wrong.

    The verb returns the exit status. A function that returns none has succeeded.
    """

    def made_of(act: Callable[[list[str]], int | None]) -> Verb:
        @wraps(act)
        def run(words: list[str]) -> int:
            if any(word in ("-h", "--help") for word in words):
                print(help_text, end="")
                return exit_status.SUCCEEDED
            try:
                return act(words) or exit_status.SUCCEEDED
            except UsageError as error:
                return say_mistake(error)
            except HoldfastError as error:
                print(f"holdfast: {clean(str(error))}", file=sys.stderr)
                return exit_status.FAILED
            except BrokenPipeError:
                # Whoever was reading has seen enough; nor may the interpreter's own flush complain.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                return exit_status.SUCCEEDED

        return run

    return made_of


def say_mistake(error: UsageError) -> int:
    """Say what is wrong, and what would be right. Returns the exit status."""
    print(f"holdfast: {clean(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {clean(error.hint)}", file=sys.stderr)
    return exit_status.USAGE
