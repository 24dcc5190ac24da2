"""The parts of pages that are made from the code: options, Python names, journal, status.

python tools/docs/reference_tables.py            say which pages are not up to date
python tools/docs/reference_tables.py --write    write them
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import holdfast
from holdfast.cli import help as run_help
from holdfast.cli import status_json
from holdfast.cli.main import USAGE
from holdfast.cli.table import GROUPS, OPTIONS, Option
from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent
from holdfast.core.election import ElectionEffect, ElectionEvent
from holdfast.core.node_io import NodeEffect, NodeEvent
from holdfast.core.policy.rendezvous_settings import SETTINGS
from holdfast.core.protocol.model import Blame, ErrorDetail, ExitStatus, Failure, Outcome

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
BEGIN = "<!-- made by tools/docs/reference_tables.py: begin -->\n"
END = "<!-- made by tools/docs/reference_tables.py: end -->\n"


def page_with(page: str, lines: Iterator[str]) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


# Options.


def options() -> Iterator[str]:
    for group in GROUPS:
        yield from (f"### {group}", "")
        if group in run_help.NOTES:
            yield from (f"{run_help.NOTES[group]}.", "")
        yield from ("| option | default | what it is for |", "|---|---|---|")
        yield from (_option(option) for option in OPTIONS if option.group == group)
        yield ""
    yield from ("### Settings of `--rdzv-conf`", "")
    yield from (", ".join(f"`{name}`" for name in SETTINGS) + ".", "")
    yield from ("### Other variables", "", "| variable | what it is for |", "|---|---|")
    yield from (f"| `{name.strip()}` | {_cell(words)} |" for name, words in run_help.VARIABLES)
    yield from (
        f"| `{name}` | the same as `--{option.name}`, where nothing else says it |"
        for option in OPTIONS
        for name in option.also_from
    )
    yield from ("", "### All commands", "", "```", USAGE.strip("\n"), "```", "")


def _option(option: Option) -> str:
    short = f"`-{option.short}`, " if option.short else ""
    value = f" {option.metavar.replace('|', ' or ')}" if option.metavar else ""
    mark = "" if option.ours else " ᵗ"
    note = f" ({option.note})" if option.note else ""
    default = f"`{option.default}`" if option.default else ""
    words = _cell(option.help + note)
    return f"| {short}`--{option.name}{value}`{mark} | {default} | {words} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Python.

LONG = 70
"""Parameters that take more room stand below each other."""

IN_A_WORKER = ("progress", "phase", "expires", "draining", "NonRetryable", "record")
IN_A_LAUNCHER = ("launch", "JobFailed", "UsageError", "HoldfastError", "register_backend")
RECORDS = (Outcome, Blame, Failure, ExitStatus, ErrorDetail)
"""What `JobFailed.outcome` is made of."""


def python() -> Iterator[str]:
    assert {*IN_A_WORKER, *IN_A_LAUNCHER} == {*holdfast.__all__}, "each name has its place"
    yield from ("## In a worker", "")
    for name in IN_A_WORKER:
        yield from _name(name)
    yield from ("## Where a job is launched", "")
    for name in IN_A_LAUNCHER:
        yield from _name(name)
    yield from ("## What `JobFailed.outcome` holds", "")
    for each in RECORDS:
        yield from (f"### `{each.__name__}`", "", *_words(each), "")
        yield from ("| field | type | |", "|---|---|---|", *_fields(each), "")


def _name(name: str) -> Iterator[str]:
    value = getattr(holdfast, name)
    yield from (f"### `holdfast.{name}`", "", "```python", _signature(name, value), "```", "")
    yield from (*_words(value), "")


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, BaseException):
        parents = ", ".join(parent.__name__ for parent in value.__bases__)
        return f"class holdfast.{name}({parents})"
    signature = inspect.signature(value)
    given = [re.sub(r": '([^']*)'", r": \1", str(each)) for each in signature.parameters.values()]
    result = "" if inspect.isclass(value) else f" -> {signature.return_annotation}"
    if len(", ".join(given)) > LONG:
        lines = (f"    {each},\n" for each in given)
        return f"holdfast.{name}(\n{''.join(lines)}){result}"
    return f"holdfast.{name}({', '.join(given)}){result}"


def _words(value: Any) -> list[str]:
    """What it says of itself; what is indented there is code."""
    made: list[str] = []
    for part in inspect.cleandoc(value.__doc__ or "").split("\n\n"):
        is_code = part.startswith(" ")
        code = ["```python", inspect.cleandoc("\n" + part), "```"]
        made += ["", *(code if is_code else [part])]
    return made[1:]


def _fields(each: type) -> list[str]:
    """The fields of a record, with the sentence that stands below each in the source."""
    (source,) = ast.parse(inspect.getsource(each)).body
    assert isinstance(source, ast.ClassDef), "a record is a class"
    types = get_type_hints(each)
    rows = []
    for field, after in zip(source.body, [*source.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            name = ast.unparse(field.target)
            rows.append(f"| `{name}` | {_type(types[name])} | {_cell(_said(after))} |")
    return rows


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value!r}`" for value in get_args(hint))
    if get_args(hint) and all(get_origin(each) is Literal for each in get_args(hint)):
        return ", ".join(map(_type, get_args(hint)))
    text = hint.__name__ if inspect.isclass(hint) and not get_args(hint) else str(hint)
    text = re.sub(r"Optional\[(\w+)\]", r"\1 | None", text)
    return f"`{re.sub(r'[a-z_]+[.]', '', text)}`".replace(" | ", "` or `")


def _said(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(words))):
            return " ".join(words.split())
    return ""


# The journal.

MACHINES = (
    ("agent", "what it is told", NodeEvent),
    ("agent", "what it asks for", NodeEffect),
    ("coordinator", "what it is told", CoordinatorEvent),
    ("coordinator", "what it asks for", CoordinatorEffect),
    ("election", "what it is told", ElectionEvent),
    ("election", "what it asks for", ElectionEffect),
)


def journal() -> Iterator[str]:
    for machine, what, union in MACHINES:
        yield from (f"`{machine}`, {what}:", "", "| type | fields | |", "|---|---|---|")
        for each in get_args(union):
            fields = ", ".join(f"`{name}`" for name in each.__struct_fields__)
            yield f"| `{each.__name__}` | {fields} | {_cell(_summary(each))} |"
        yield ""


def _summary(each: type) -> str:
    return " ".join((each.__doc__ or "").split("\n\n")[0].split())


# Status.

STATUS = (
    ("The job", status_json.JobStatus),
    ("`nodes`, each", status_json.NodeStatus),
    ("`workers`, each", status_json.WorkerStatus),
    ("`interruptions`, each", status_json.InterruptionStatus),
)


def status() -> Iterator[str]:
    for title, each in STATUS:
        yield from (f"## {title}", "", "| name | type | |", "|---|---|---|", *_fields(each), "")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "options.md": options,
    "python-api.md": python,
    "journal.md": journal,
    "status-json.md": status,
}


def page(name: str) -> str:
    """The page as it should be."""
    return page_with((REFERENCE / name).read_text(encoding="utf-8"), PAGES[name]())


if __name__ == "__main__":
    for each in PAGES:
        if (REFERENCE / each).read_text(encoding="utf-8") == page(each):
            continue
        print(f"{each} is not up to date")
        if "--write" in sys.argv[1:]:
            (REFERENCE / each).write_text(page(each), encoding="utf-8")
            print(f"{each} is written")
