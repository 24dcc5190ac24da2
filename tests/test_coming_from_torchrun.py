"""docs/start/coming-from-torchrun.md names every flag, variable and name, and no other."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.table import OPTIONS
from holdfast.elastic.agent.server.worker_group import PASSED_ON
from holdfast.processes import environment, own_environment

from . import torch_versions

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "start" / "coming-from-torchrun.md"
CASES = REPOSITORY / "tests" / "elastic" / "cases"
PACKAGE = "holdfast.elastic"
VERDICTS = {"same", "better", "different", "new"}
OF_A_WORKER, OF_AN_AGENT = "Of a worker:", "Read by the agent, or by the process that launches:"
VARIABLE = re.compile(r"(HOLDFAST|TORCHELASTIC|TORCH)_[A-Z_]+[A-Z]|PYTHON_EXEC|USE_LIBUV|LOGLEVEL")
PRIVATE = {"HOLDFAST_HOOK", "HOLDFAST_HOOK_PYTHONPATH"}
"""Between a process and the hook in it, which removes them before anybody sees them."""
DEADLINE_S = 100

TABLE = r"(^\|.*\|\n)+"
NOT_HERE = {"--use-env", "--nproc-per", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
"""Of PyTorch's, and named on the page to say so."""

Row = list[str]


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(title: str, text: str | None = None) -> str:
    """What stands under a heading, up to the next of the same level or above."""
    text = page() if text is None else text
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title}"
    level, rest = len(found[1]), found[2]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[Row]:
    """The rows of the first table in a text, without its heading."""
    table = re.search(TABLE, text, re.MULTILINE)
    assert table is not None, "there is no table"
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table[0].splitlines()][2:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)


def modules() -> Iterator[str]:
    root = importlib.import_module(PACKAGE)
    for found in pkgutil.walk_packages(root.__path__, f"{PACKAGE}."):
        yield found.name.removeprefix(f"{PACKAGE}.")


def statements(module: str) -> list[ast.stmt]:
    """Those of the source: some modules need PyTorch to be imported."""
    spec = importlib.util.find_spec(f"{PACKAGE}.{module}")
    assert spec is not None, f"there is no {PACKAGE}.{module}"
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text()).body


def public_names(module: str) -> set[str]:
    """What `__all__` names, and what the module has that it takes all names of."""
    found: set[str] = set()
    for node in statements(module):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            found |= public_names(node.module.removeprefix(f"{PACKAGE}."))
    return found


def names_to_import(module: str) -> set[str]:
    """All that can be imported from a module, public or not."""
    found = public_names(module)
    for node in statements(module):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target) for target in node.targets}
    return found


def sections_of_modules() -> dict[tuple[str, ...], str]:
    """The tables of names, by the modules that their headings name."""
    text = section("Every name")
    titles = re.findall(r"^### (`.*)$", text, re.MULTILINE)
    return {tuple(quoted(title)): section(title, text) for title in titles}


@functools.cache
def variables_in_the_source() -> set[str]:
    found = set()
    for path in (REPOSITORY / "src" / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if VARIABLE.fullmatch(node.value) else set()
    return found - PRIVATE


def variables_of(table: str) -> set[str]:
    text = section("Every variable").partition(table)[2]
    return {name for row in rows(text) for name in quoted(row[0])}


def test_every_flag_has_its_line() -> None:
    named = [name for row in rows(section("Every flag")) for name in quoted(row[0])]
    known = [f"--{option.name}" for option in OPTIONS]
    known += [f"-{option.short}" for option in OPTIONS if option.short]
    assert sorted(named) == sorted(known)


def test_what_torchrun_does_not_have_is_called_new() -> None:
    called_new = {quoted(row[0])[0] for row in rows(section("Every flag")) if row[1] == "new"}
    assert called_new == {"-n", *(f"--{option.name}" for option in OPTIONS if option.ours)}


@pytest.mark.torch
def test_every_flag_of_torchrun_has_its_line() -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    theirs = {word for action in get_args_parser()._actions for word in action.option_strings}
    theirs = {word for word in theirs if "_" not in word} - {"-h", "--help"}
    not_new = [row for row in rows(section("Every flag")) if row[1] != "new"]
    assert {name for row in not_new for name in quoted(row[0])} == theirs | torch_versions.to_come()


def test_every_variable_has_its_line() -> None:
    of_a_worker = {
        *environment.PER_WORKER,
        *environment.SAME_IN_ALL,
        *PASSED_ON,
        "HOLDFAST_CHANNEL",
    }
    assert of_a_worker <= variables_of(OF_A_WORKER)
    known = variables_in_the_source() | of_a_worker
    assert variables_of(OF_A_WORKER) | variables_of(OF_AN_AGENT) == known


def test_every_secret_is_said_to_be_kept_from_workers() -> None:
    text = section("Every variable").partition(OF_AN_AGENT)[2]
    kept = {quoted(row[0])[0] for row in rows(text) if "workers do not get it" in row[2]}
    assert kept == set(own_environment.SECRETS)


def test_every_module_with_public_names_has_its_table() -> None:
    told = [module for titles in sections_of_modules() for module in titles]
    assert sorted(told) == sorted(module for module in modules() if public_names(module))


@pytest.mark.parametrize("titles", sections_of_modules(), ids=lambda titles: titles[0])
def test_every_public_name_has_its_line(titles: tuple[str, ...]) -> None:
    named = [name for row in rows(sections_of_modules()[titles]) for name in quoted(row[0])]
    assert len(named) == len(set(named)), "a name has two lines"
    assert set().union(*map(public_names, titles)) - set(named) == set(), "a name has no line"
    assert set(named) - set().union(*map(names_to_import, titles)) == set(), "there is no such name"


def test_the_seams_are_there() -> None:
    agents = importlib.import_module(f"{PACKAGE}.agent.server.local_elastic_agent")
    source = "".join(
        Path(importlib.import_module(f"{PACKAGE}.agent.server.{name}").__file__ or "").read_text()
        for name in ("api", "local_elastic_agent")
    )
    methods, attributes, more, start, barrier = rows(section("Seams"))
    for name in quoted(methods[1]):
        assert callable(getattr(agents.LocalElasticAgent, name))
    for name in [*quoted(attributes[1]), *quoted(more[1])]:
        assert re.search(rf"self\.{name}\b.* = ", source), f"agents have no {name}"
    for where, names in (start, barrier):
        module = importlib.import_module(f"{PACKAGE}.{quoted(where)[0]}")
        assert all(hasattr(module, name) for name in quoted(names))


def test_every_line_says_how_it_compares() -> None:
    texts = [section("Every flag"), *sections_of_modules().values()]
    texts += [section("Every variable").partition(it)[2] for it in (OF_A_WORKER, OF_AN_AGENT)]
    for row in (row for text in texts for row in rows(text)):
        assert row[1] in VERDICTS, row
        assert row[2] or row[1] == "same", f"it is not said why: {row}"


def test_no_line_of_a_table_lacks_a_cell() -> None:
    for table in re.finditer(TABLE, page(), re.MULTILINE):
        lines = table[0].splitlines()
        assert {line.count("|") for line in lines} == {lines[0].count("|")}, lines[0]


def test_no_flag_or_variable_is_named_that_is_not_there() -> None:
    flags = {f"--{option.name}" for option in OPTIONS} | NOT_HERE
    spelled = re.findall(r"(?<![\w-])--[a-z][a-z_-]*", page())
    assert {word.replace("_", "-") for word in spelled} - flags == set()
    named = {found[0] for found in re.finditer(rf"\b({VARIABLE.pattern})\b", page())}
    assert named - variables_in_the_source() - NOT_HERE == set()


def test_the_cases_are_where_the_table_says() -> None:
    cases = rows(section("The fourteen cases"))
    assert [row[0] for row in cases] == [str(number) for number in range(1, 15)]
    for number, _, file in cases:
        text = (CASES / quoted(file)[0]).read_text()
        assert f"def test_case_{int(number):02}_" in text, f"case {number} is not in {file}"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page()):
        path, _, anchor = target.partition("#")
        place = (PAGE.parent / path).resolve() if path else PAGE
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            assert anchor in {anchor_of(heading) for heading in headings}, target


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_python_of_the_page_is_python() -> None:
    assert blocks("python")
    for block in blocks("python"):
        ast.parse(block)


def test_the_port_of_the_launcher_prints_what_the_page_shows(tmp_path: Path) -> None:
    (script,) = [block for block in blocks("python") if "elastic_launch" in block]
    (session,) = [block for block in blocks("console") if block.startswith("$ sed")]
    (tmp_path / "launch.py").write_text(script)
    commands = [line.removeprefix("$ ") for line in session.splitlines() if line.startswith("$ ")]
    shown = [line for line in session.splitlines() if not line.startswith("$ ")]
    ended = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.stdout.splitlines() == shown, ended.stderr
    assert ended.returncode == 0
    assert "torch" not in (tmp_path / "launch.py").read_text()
