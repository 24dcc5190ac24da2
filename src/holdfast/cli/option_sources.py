"""The text of each option, and its source.

Rules
- The command line wins over `HOLDFAST_<NAME>`, which wins over `PET_<NAME>`, which wins over the
  option's older names, and those over the scheduler. An empty
  variable is no variable.
- A mistake is a `UsageError` that names its option, or the variable it came from.
- Nodes meet at an endpoint or at a master. A master from a weaker source than the
  endpoint is ignored: so an operator that sets `PET_MASTER_ADDR` can be overruled.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from msgspec import Struct

from holdfast.cli.table import BY_NAME, OPTIONS, Option
from holdfast.core.policy import texts
from holdfast.core.protocol.errors import UsageError

MASTER = ("master-addr", "master-port")


class Precedence(IntEnum):
    """Of several sources of one option the highest wins."""

    DETECTED = 0
    TORCHRUN = 1
    OURS = 2
    COMMAND_LINE = 3


class OptionText(Struct, frozen=True):
    """The text of an option, and its source."""

    text: str
    source: str
    """An option as it was spelled, a variable, or a scheduler."""
    level: Precedence = Precedence.COMMAND_LINE

    @property
    def origin(self) -> str:
        """The beginning of a sentence about a mistake."""
        from_variable = self.level in (Precedence.TORCHRUN, Precedence.OURS)
        return f"{self.source} in the environment" if from_variable else self.source


def collect(given: Mapping[str, OptionText], environ: Mapping[str, str]) -> dict[str, OptionText]:
    """The options of the command line and of the environment, by name."""
    options: dict[str, OptionText] = {}
    for option in OPTIONS:
        found = given.get(option.name) or _from_environment(option, environ)
        if found is not None:
            options[option.name] = found
    return _without_weaker_master(options)


def _from_environment(option: Option, environ: Mapping[str, str]) -> OptionText | None:
    for variable in option.environment:
        if text := environ.get(variable):
            ours = variable.startswith("HOLDFAST_")
            return OptionText(text, variable, Precedence.OURS if ours else Precedence.TORCHRUN)
    return None


def _without_weaker_master(options: dict[str, OptionText]) -> dict[str, OptionText]:
    endpoint = options.get("rdzv-endpoint")
    for name in MASTER:
        if endpoint and name in options and options[name].level < endpoint.level:
            del options[name]
    return options


def is_on(options: Mapping[str, OptionText], name: str) -> bool:
    """Whether a flag is given, and not as off. Raises `UsageError`."""
    return name in options and bool(_parsed(options[name], texts.flag))


def parse(options: Mapping[str, OptionText]) -> dict[str, Any]:
    """The values, by the names of options. Raises `UsageError`."""
    return {name: _parsed(text, BY_NAME[name].parse) for name, text in options.items()}


def _parsed(text: OptionText, parser: texts.Parser) -> object:
    try:
        return parser(text.text)
    except UsageError as error:
        raise UsageError(f"{text.origin}: {error.message}", error.hint) from None
