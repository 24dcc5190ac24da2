"""`holdfast where`: what `holdfast run` would find out about this place, without running anything.

It takes the options of `holdfast run`, so that a command can be looked at by its first word alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct

from holdfast.cli import option_sources, options
from holdfast.cli.detection import Detected, line_about, statement
from holdfast.cli.verbs import say_mistake
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError

USAGE = """\
Usage: holdfast where [--json] [options of holdfast run]

Says where this process was placed, and by which scheduler: how many nodes the job has, which one
this is, where they meet, and from which variable or option each of these comes. Runs nothing.

  --json  the same for programs
"""
_JSON = "--json"
_NOTHING = Program(kind="script", target="train.py")
_DEFAULT = "default"
_ROWS = (
    ("nodes", "nnodes"),
    ("this node's rank", "node-rank"),
    ("workers here", "nproc-per-node"),
    ("meeting place", "rdzv-endpoint"),
    ("run id", "rdzv-id"),
)


class Origin(Struct, frozen=True):
    """One thing that is known, and from where."""

    value: str | int | None
    source: str


class Whereabouts(Struct, frozen=True):
    """All that `holdfast where` says."""

    scheduler: str | None
    summary: str
    values: dict[str, Origin]
    hosts_the_meeting: bool | None
    """Whether the coordinator is on this node; None: that is found out from the meeting place."""
    hidden_from_workers: tuple[str, ...]


def where(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    try:
        as_json = words[:1] == [_JSON]
        return _show(words[as_json:], as_json=as_json)
    except options.HelpRequested:
        print(USAGE, end="")
        return exit_status.SUCCEEDED
    except UsageError as error:
        return say_mistake(error)


def _show(words: list[str], *, as_json: bool) -> int:
    given, _ = options.split(words)
    detected = options.listen(given, os.environ, words)
    values = option_sources.parse(detected.options)
    parsed = options.configure(detected, values, _NOTHING, os.environ)
    found = _whereabouts(detected, parsed.config)
    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(_lines(found)))
    return exit_status.SUCCEEDED


def _lines(found: Whereabouts) -> Iterator[str]:
    yield found.summary
    left = max(len(name) for name, _ in _ROWS) + 4
    shown = [str(origin.value) for origin in found.values.values() if origin.value is not None]
    middle = max(map(len, shown)) + 2
    for name, option in _ROWS:
        value = found.values[option]
        if value.value is not None:
            yield f"  {name:<{left}}{value.value!s:<{middle}}{value.source}".rstrip()
    if found.hosts_the_meeting is not None:
        host = "this node" if found.hosts_the_meeting else "another node"
        yield f"  {'coordinator':<{left}}{host}"
    if found.hidden_from_workers:
        yield f"  {'workers do not see':<{left}}{', '.join(found.hidden_from_workers)}"


def _range(config: JobConfig) -> str:
    least, most = config.min_nodes, config.max_nodes
    return str(most) if least == most else f"{least}:{most}"


def _whereabouts(detected: Detected, config: JobConfig) -> Whereabouts:
    placement = detected.placement
    return Whereabouts(
        scheduler=placement.scheduler if placement else None,
        summary=" ".join(line_about(detected, config)) or "no scheduler placed this process",
        values={option: _value(detected, config, option) for _, option in _ROWS},
        hosts_the_meeting=config.is_host,
        hidden_from_workers=config.hidden_variables,
    )


def _value(detected: Detected, config: JobConfig, option: str) -> Origin:
    several = config.max_nodes > 1
    value: str | int | None = {
        "nnodes": _range(config),
        "node-rank": config.node_rank,
        "nproc-per-node": config.slots,
        "rdzv-endpoint": config.rendezvous.endpoint if several else None,
        "rdzv-id": config.run_id if several else None,
    }[option]
    text = statement(detected.options, option)
    if text is None or value is None:
        return Origin(value, "" if value is None else _DEFAULT)
    return Origin(value, text.source)
