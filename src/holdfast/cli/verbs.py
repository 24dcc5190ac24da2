"""Common parts of all verbs but `run`: parsing of arguments, and messages about mistakes.

`run` has a table of options of its own: `argparse` would cost a sixth of the time to start.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import HoldfastError, UsageError

WIDEST = 100


class _HelpFormatter(HelpFormatter):
    """Text in paragraphs, in lines that a terminal shows whole."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, WIDEST))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = (super(_HelpFormatter, self)._fill_text(each, width, indent)
                  for each in text.split("\n\n"))  # fmt: skip
        return "\n\n".join(filled)


class VerbParser(ArgumentParser):
    """The options of a verb. A mistake is a `UsageError`; underscores are dashes, as in `run`."""

    def __init__(self, name: str, about: str, **settings: Any) -> None:
        self.shown_options: list[str] = []
        """All that its help lists."""
        super().__init__(
            f"holdfast {name}", description=about, formatter_class=_HelpFormatter, **settings
        )

    def add_argument(self, *names: Any, **settings: Any) -> Action:
        action = super().add_argument(*names, **settings)
        if action.help != SUPPRESS:
            self.shown_options += action.option_strings
        return action

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"`{self.prog} --help` shows its options")

    def read(self, words: Sequence[str]) -> Namespace:
        """All words, options and names in any order. Raises `UsageError`."""
        found, unknown = self.parse_known_intermixed_args([*map(with_dashes, words)])
        if unknown:
            self.error(f"unexpected argument: {unknown[0]!r}")
        return found


def with_dashes(word: str) -> str:
    """An option as it is listed, however it was spelled."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


class Verb:
    """Takes the words after its name, and returns the exit status."""

    def __init__(self, parser: VerbParser, act: Callable[[list[str]], int | None]) -> None:
        self.parser, self._act = parser, act

    def __call__(self, words: list[str]) -> int:
        return ending_of(lambda: self._act(words))


def verb(parser: VerbParser) -> Callable[[Callable[[Namespace], int | None]], Verb]:
    """Make a verb of a function that takes parsed arguments, and raises on failure.

    A function that returns no exit status has succeeded.
    """
    return lambda act: Verb(parser, lambda words: act(parser.read(words)))


def verb_of_run(
    parser: VerbParser,
) -> Callable[[Callable[[Namespace, list[str]], int | None]], Verb]:
    """The same for a verb that takes the options of `holdfast run` beside its own."""
    return lambda act: Verb(parser, lambda words: act(*parser.parse_known_args(words)))


def ending_of(act: Callable[[], int | None]) -> int:
    """Run it, and print failures. Returns the exit status."""
    try:
        status = act() or exit_status.SUCCEEDED
        sys.stdout.flush()
        return status
    except SystemExit as ended:  # Its help was asked for.
        return int(ended.code or exit_status.SUCCEEDED)
    except UsageError as error:
        return say_mistake(error)
    except HoldfastError as error:
        print(f"holdfast: {clean(str(error))}", file=sys.stderr)
        return exit_status.FAILED
    except BrokenPipeError:
        # The reader has closed the pipe; nor may the interpreter's own flush complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exit_status.SUCCEEDED


def say_mistake(error: UsageError) -> int:
    """Print the mistake, and a hint. Returns the exit status."""
    print(f"holdfast: {clean(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {clean(error.hint)}", file=sys.stderr)
    return exit_status.USAGE
