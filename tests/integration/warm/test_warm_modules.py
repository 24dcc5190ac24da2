"""Modules are found where a cold worker finds them, and loaded when it would load them."""

from __future__ import annotations

import compileall
import sys
import zipfile

import pytest

from holdfast.processes.zygote import preload, reasons

from .conftest import Program, Same

SHADOWS = {
    "one that the program imports": ("queue", "import queue\nprint(queue.MINE)"),
    "one that the launcher needs": ("selectors", "import selectors\nprint(selectors.MINE)"),
    "one that another module imports": ("heapq", "import sched\nprint(sched.heapq.MINE)"),
    "an installed package": ("numpy", "import numpy\nprint(numpy.MINE)"),
    "a built-in module, which wins": ("time", "import time\nprint(hasattr(time, 'MINE'))"),
    "one of ours": ("linux", "import linux, wire, fitness\nprint(linux.MINE, wire.MINE)"),
    "one that is not ours": ("zygote", "import zygote\nprint(zygote.MINE)"),
    "only by the folder's name": ("data", "import json\nimport heapq\nprint(json, heapq)"),
}


@pytest.mark.thorough(
    but=("one that the launcher needs", "one that the program imports", "an installed package")
)
@pytest.mark.parametrize("what", SHADOWS)
def test_a_module_beside_the_program_wins_as_it_does_cold(program: Program, what: str) -> None:
    name, text = SHADOWS[what]
    mine = "MINE = 'mine'\nheappush = heappop = None\n"
    files = {f"{name}.py": mine, "wire.py": mine, "fitness.py": mine, "json/data.txt": ""}
    program.write({"program.py": text, **files})
    each = program.each("program.py", hows=("plain", "cold", "maybe warm"))
    endings = [each[how].ending for how in each]
    assert endings[0][0] == 0
    assert endings == endings[:1] * 3


def test_modules_named_like_ours_do_not_keep_a_program_cold(same: Same) -> None:
    names = ["linux", "wire", "fitness", "run_as_main", "zygote", "zygote_server", "preload"]
    names += ["private_names", "private_messages"]
    files = {f"{name}.py": f"print({name!r})" for name in names}
    text = "\n".join(f"import {name}" for name in names)
    assert same("program.py", files={**files, "program.py": text}).stdout.count(b"\n") == 9


def test_a_module_that_hides_one_that_is_loaded_already_is_a_reason_to_start_cold(
    program: Program,
) -> None:
    program.write({"program.py": "import socket", "socket.py": ""})
    run = program.run("cold all the same", "program.py")
    assert run.starts == [False]
    (lost,) = run.events("ZygoteLost")
    assert lost["reason"] == reasons.hidden("socket")


def test_the_tree_of_the_program_is_never_run_by_the_zygote(program: Program) -> None:
    """Not even the program's part of a package that is spread over several folders."""
    library = program.folder.parent / "library"
    for folder, name in ((library, "far"), (program.folder, "near")):
        (folder / "spread").mkdir(parents=True)
        text = "import os\nwith open(os.environ['SEEN'], 'a') as f: f.write(__name__ + ' ')\n"
        (folder / "spread" / f"{name}.py").write_text(text)
    seen = program.folder.parent / "seen"
    program.write({"program.py": "import spread.far\nimport spread.near"})
    env = {"PYTHONPATH": str(library), "SEEN": str(seen)}
    options = ("--nproc-per-node=2", "--preload=spread.far,spread.near")
    run = program.run("warm", "program.py", options=options, env=env)
    assert seen.read_text().split().count("spread.near") == 2
    assert [event["module"] for event in run.events("ModuleRejected")] == ["import spread.near"]
    (ready,) = run.events("ZygoteReady")
    assert "import spread.far" in ready["preloaded"]
    assert "import spread.near" not in ready["preloaded"]


def test_a_variable_that_the_program_sets_before_an_import_counts(same: Same) -> None:
    text = """
        import os
        os.environ['OPENBLAS_NUM_THREADS'] = '2'
        import numpy
        numpy.ones((500, 500)) @ numpy.ones((500, 500))
        print(len(os.listdir('/proc/self/task')))
        """
    same("program.py", files={"program.py": text}, env={"OPENBLAS_NUM_THREADS": "1"})


def test_a_folder_that_the_program_puts_first_counts(same: Same) -> None:
    text = """
        import sys
        sys.path.insert(0, 'lib')
        import numpy
        import sched
        print(numpy.MINE, sched.MINE)
        """
    files = {"lib/numpy.py": "MINE = 1", "lib/sched.py": "MINE = 2", "program.py": text}
    assert same("program.py", files=files).stdout == b"1 2\n"


def test_a_launcher_behind_a_symbolic_link_leaves_nothing_on_the_path(program: Program) -> None:
    link = program.folder.parent / "link"
    link.symlink_to(preload.__file__.removesuffix("/holdfast/processes/zygote/preload.py"))
    program.write({"program.py": "import sys\nprint(sys.path)"})
    run = program.run("warm", "program.py", env={"PYTHONPATH": str(link)})
    assert b"holdfast/processes" not in run.stdout
    assert run.stdout == program.run("plain", "program.py", env={"PYTHONPATH": str(link)}).stdout


# Programs that are not plain source.


def test_an_archive_runs_in_the_same_way(same: Same, program: Program) -> None:
    with zipfile.ZipFile(program.folder / "program.zip", "w") as archive:
        archive.writestr("__main__.py", "import inner, sys\nprint(sys.argv, sys.path[0], __file__)")
        archive.writestr("inner.py", "")
    assert same("program.zip", "a", files={}).status == 0


def test_a_compiled_file_runs_in_the_same_way(same: Same, program: Program) -> None:
    program.write({"program.py": "import sys\nprint(__file__, __loader__.path)\nsys.exit(4)"})
    compileall.compile_file(program.folder / "program.py", legacy=True, quiet=2)
    assert same("program.pyc", files={}).status == 4


def test_a_folder_runs_cold_in_the_same_way(program: Program) -> None:
    program.write({"folder/__main__.py": "import sys\nprint(sys.argv, sys.path[0], __file__)"})
    each = program.each("folder", "a", hows=("plain", "cold", "cold all the same"))
    endings = [run.ending for run in each.values()]
    assert endings[0][0] == 0
    assert endings == endings[:1] * 3


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="`cgi` is there up to Python 3.12")
def test_a_deprecated_module_is_complained_about_at_the_line_that_imports_it(same: Same) -> None:
    warm = same("program.py", files={"program.py": "import os\nimport cgi\n"})
    assert b"program.py:2: DeprecationWarning" in warm.stderr


def test_warnings_about_syntax_are_the_workers_alone(program: Program) -> None:
    """The launcher reads the program too, and has nothing to say about it."""
    program.write({"program.py": "print('\\d')"})
    run = program.run("warm", "program.py", env={"PYTHONWARNINGS": "always"})
    assert b"invalid escape sequence" in run.stderr
    assert "invalid escape sequence" not in run.console
