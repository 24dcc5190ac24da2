"""Whether a failed worker had other versions, or other arguments, than all the others.

Each node reports its workers' versions, as `name version, name version`, with their failure or
stop. A package counts only if all other nodes that have it have the same one: where every
node differs, that is how the job is run. Where workers of several nodes failed, the one that is
different has to differ from two at least.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.policy.root_cause import Cause
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.model import Failure

TOLD = 3


def difference(first: Failure, others: Iterable[Failure]) -> str:
    """In words, or empty: `host2 has torch 2.12.0, all others 2.13.0`."""
    its = _read(first.versions)
    elsewhere: dict[str, set[str]] = {}
    for other in others:
        if other.node != first.node:
            for name, version in _read(other.versions).items():
                elsewhere.setdefault(name, set()).add(version)
    found = [
        f"{name} {version}, all others {next(iter(elsewhere[name]))}"
        for name, version in its.items()
        if len(elsewhere.get(name, ())) == 1 and version not in elsewhere[name]
    ]
    return f"{first.host} has {'; '.join(found[:TOLD])}" if found else ""


def odd_one(cause: Cause) -> tuple[Failure, str] | None:
    """The first failure of the node that is different, and the difference."""
    if not cause.also_failed:
        words = difference(cause.first, cause.everybody)
        return (cause.first, words) if words else None
    nodes = {one.node: one for one in reversed(cause.everybody)}
    found = [(one, words) for one in nodes.values() if (words := difference(one, cause.everybody))]
    return found[0] if len(found) == 1 and len(nodes) > 2 else None


def _read(listed: str) -> dict[str, str]:
    pairs = (clean(entry).partition(" ") for entry in listed.split(", "))
    return {name: version for name, _, version in pairs if version}
