"""The doctor's page: for people, or as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.core.protocol.bounds import clean
from holdfast.doctor.facts import Finding, MachineFacts, has_errors
from holdfast.doctor.group import Examined, names_of
from holdfast.doctor.machine import size
from holdfast.doctor.sentences import some

WIDTH = 100
SHOWN = 20


class DoctorPage(Struct, frozen=True):
    """The whole of it, as `--json` prints it."""

    well: bool
    findings: tuple[Finding, ...]
    nodes: tuple[Examined, ...]


def page_of(reports: Sequence[Examined], found: Sequence[Finding]) -> DoctorPage:
    return DoctorPage(not has_errors(found), tuple(found), tuple(reports))


def lines(page: DoctorPage) -> Iterator[str]:
    """As people read it: what is wrong first, then what was found."""
    yield from _findings(page)
    yield ""
    if len(page.nodes) == 1:
        yield from _machine(page.nodes[0].facts)
    else:
        yield from _group(page.nodes)


def _findings(page: DoctorPage) -> Iterator[str]:
    yield verdict(page)
    for number, one in enumerate(page.findings[:SHOWN], start=1):
        where = f"{some(one.nodes)}: " if one.nodes and len(page.nodes) > 1 else ""
        if where and one.what.startswith(one.nodes[0]):
            where = ""
        yield ""
        yield from _wrapped(f"{number:2}. {one.level}: {where}{one.what}", "    ")
        yield from _wrapped(f"    fix: {one.fix}", " " * 9)
    if len(page.findings) > SHOWN:
        yield f"    … and {len(page.findings) - SHOWN} more (--json has all)"


def verdict(page: DoctorPage) -> str:
    """In one line."""
    errors = sum(1 for one in page.findings if one.level == "error")
    warnings = len(page.findings) - errors
    nodes = "this machine" if len(page.nodes) == 1 else f"{len(page.nodes)} nodes"
    if not page.findings:
        return f"no problems found on {nodes}"
    counted = ((errors, "error"), (warnings, "warning"))
    things = [f"{many} {what}{'' if many == 1 else 's'}" for many, what in counted if many]
    return f"{' and '.join(things)} on {nodes}, the most serious first"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(clean(text), WIDTH, subsequent_indent=indent, drop_whitespace=True) or [""]


def _machine(facts: MachineFacts) -> Iterator[str]:
    for name, value in _rows(facts):
        if value:
            yield from _wrapped(f"  {name:<14} {value}", " " * 17)


def _rows(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    yield "versions", _versions(facts)
    kernel = facts.kernel
    has = [
        word for word, there in (("pidfd", kernel.pidfd), ("subreaper", kernel.subreaper)) if there
    ]
    stacks = f"py-spy at {kernel.py_spy}" if kernel.py_spy else "no py-spy"
    yield "kernel", f"{kernel.release}: {', '.join(has)}; {stacks}"
    limits = facts.limits
    locked = limits.locked_memory_bytes
    may_lock = "any amount" if locked is None else size(locked)
    allowed = f"{_limit(limits.open_files)} open files, {_limit(limits.processes)} processes"
    yield "limits", f"{allowed}, {may_lock} of locked memory"
    if facts.memory_bytes is not None and facts.memory_free_bytes is not None:
        free = f"{size(facts.memory_free_bytes)} of {size(facts.memory_bytes)} free"
        yield "memory", f"{free}; {facts.processors} processors"
    for disk in facts.disks:
        free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
        yield disk.use.partition(" ")[0], f"{disk.path}: {free}"
    names = facts.names
    yield "name", f"{names.host} = {', '.join(names.addresses) or 'unknown'}"
    yield (
        "addresses",
        ", ".join(f"{one.address} ({one.name})" for one in facts.interfaces if not one.loopback),
    )
    yield "accelerators", f"{facts.accelerators or 'none'}"
    if facts.way is not None:
        here = (
            "here" if facts.way.is_here else "answers" if facts.way.answers else "does not answer"
        )
        yield "endpoint", f"{facts.way.endpoint} = {', '.join(facts.way.addresses)}: {here}"


def _limit(value: int | None) -> str:
    return "any number of" if value is None else str(value)


def _versions(facts: MachineFacts) -> str:
    torch = f"PyTorch {facts.torch}" if facts.torch else "no PyTorch"
    return f"Python {facts.python}, Holdfast {facts.holdfast}, {torch}"


def _group(reports: Sequence[Examined]) -> Iterator[str]:
    names = names_of(reports)
    width = max(len(name) for name in names.values())
    for report in reports[:SHOWN]:
        facts = report.facts
        trips = [dial.round_trip_s for dial in report.dials if dial.round_trip_s is not None]
        far = f", {max(trips) * 1000:.1f} ms to the farthest" if trips else ""
        gpus = f", {facts.accelerators} accelerators" if facts.accelerators else ""
        addresses = [one.address for one in facts.interfaces if not one.loopback]
        yield (
            f"  {names[report.rank]:<{width}}  {_versions(facts)}{gpus}; "
            f"{', '.join(addresses[:2])}{far}"
        )
    if len(reports) > SHOWN:
        yield f"  … and {len(reports) - SHOWN} more"
