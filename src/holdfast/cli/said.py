"""What somebody said about each option, and who.

Rules
- The command line wins over `HOLDFAST_<NAME>`, which wins over `PET_<NAME>`, which wins over the
  older names that an option also listens to, and those over what a scheduler says. An empty
  variable is no variable.
- A mistake is a `UsageError` that names its option, or the variable it came from.
- Where nodes meet is said by an endpoint or by a master. If the endpoint was said by somebody
  stronger, the master is not meant: so an operator that sets `PET_MASTER_ADDR` can be overruled.
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


class Level(IntEnum):
    """Who has the last word: the higher one."""

    DETECTED = 0
    TORCHRUN = 1
    OURS = 2
    COMMAND_LINE = 3


class Statement(Struct, frozen=True):
    """The text of an option, and who said it."""

    text: str
    source: str
    """An option as it was spelled, a variable, or what a scheduler says."""
    level: Level = Level.COMMAND_LINE

    @property
    def origin(self) -> str:
        """What a sentence about a mistake begins with."""
        from_variable = self.level in (Level.TORCHRUN, Level.OURS)
        return f"{self.source} in the environment" if from_variable else self.source


def gather(given: Mapping[str, Statement], environ: Mapping[str, str]) -> dict[str, Statement]:
    """What was said, on the command line or in the environment, by the names of options."""
    said: dict[str, Statement] = {}
    for option in OPTIONS:
        found = given.get(option.name) or _from_environment(option, environ)
        if found is not None:
            said[option.name] = found
    return _without_weaker_master(said)


def _from_environment(option: Option, environ: Mapping[str, str]) -> Statement | None:
    for variable in option.environment:
        if text := environ.get(variable):
            ours = variable.startswith("HOLDFAST_")
            return Statement(text, variable, Level.OURS if ours else Level.TORCHRUN)
    return None


def _without_weaker_master(said: dict[str, Statement]) -> dict[str, Statement]:
    endpoint = said.get("rdzv-endpoint")
    for name in MASTER:
        if endpoint and name in said and said[name].level < endpoint.level:
            del said[name]
    return said


def is_on(said: Mapping[str, Statement], name: str) -> bool:
    """Whether a flag was said, and not said to be off. Raises `UsageError`."""
    return name in said and bool(_parsed(said[name], texts.flag))


def parse(said: Mapping[str, Statement]) -> dict[str, Any]:
    """The values, by the names of options. Raises `UsageError`."""
    return {name: _parsed(text, BY_NAME[name].parse) for name, text in said.items()}


def _parsed(said: Statement, parser: texts.Parser) -> object:
    try:
        return parser(said.text)
    except UsageError as error:
        raise UsageError(f"{said.origin}: {error.message}", error.hint) from None
