"""`holdfast where`: what `holdfast run` would detect here, without running anything.

It takes the options of `holdfast run`, so that a command can be checked by its first word alone.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping

from msgspec import Struct

from holdfast.cli import option_sources, options
from holdfast.cli.detection import Detected, line_about, statement
from holdfast.cli.verbs import VerbParser, verb_of_run
from holdfast.core.policy.config import JobConfig, Program

PARSER = VerbParser(
    "where",
    "Show what was detected about this machine and its scheduler: how many nodes the job has, "
    "which one this is, where they meet, and from which variable or option each of these comes. "
    "Runs nothing.",
    usage="holdfast where [--json] [options of holdfast run]",
    allow_abbrev=False,
)
PARSER.add_argument("--json", action="store_true", help="the same for programs")
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
    """One known fact, and its source."""

    value: str | int | None
    source: str


@verb_of_run(PARSER)
def where(asked: Namespace, words: list[str]) -> None:
    given, _ = options.split(words)
    detected = options.listen(given, os.environ, words)
    values = option_sources.parse(detected.options)
    config = options.configure(detected, values, _NOTHING, os.environ).config
    summary = " ".join(line_about(detected, config)) or "no scheduler placed this process"
    known = {option: _value(detected, config, option) for _, option in _ROWS}
    if not asked.json:
        print("\n".join([summary, *_lines(known, config)]))
        return
    import msgspec

    found = {
        "scheduler": detected.placement.scheduler if detected.placement else None,
        "summary": summary,
        "values": known,
        "hosts_the_meeting": config.is_host,
        "hidden_from_workers": config.hidden_variables,
    }
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _lines(known: Mapping[str, Origin], config: JobConfig) -> Iterator[str]:
    left = max(len(name) for name, _ in _ROWS) + 4
    middle = max(len(str(each.value)) for each in known.values() if each.value is not None) + 2
    for name, option in _ROWS:
        value, source = known[option].value, known[option].source
        if value is not None:
            yield f"  {name:<{left}}{value!s:<{middle}}{source}".rstrip()
    if config.is_host is not None:
        yield f"  {'coordinator':<{left}}{'this node' if config.is_host else 'another node'}"
    if config.hidden_variables:
        yield f"  {'workers do not see':<{left}}{', '.join(config.hidden_variables)}"


def _range(config: JobConfig) -> str:
    least, most = config.min_nodes, config.max_nodes
    return str(most) if least == most else f"{least}:{most}"


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
