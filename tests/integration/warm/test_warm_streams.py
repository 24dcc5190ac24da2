"""Standard streams: pipes, files, a terminal; and who of several workers gets the input."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Each, Program

OBSERVER = Path(__file__).parent / "programs" / "observer.py"
LIBRARY = "import os, sys\nos.environ['ON_A_TERMINAL'] = str(sys.stdout.isatty())"
STREAMS = ["standard_input", "standard_output", "standard_error", "open_descriptors", "session"]
Saw = dict[str, Any]
"""What the observer says, by the name of what it looked at."""


@pytest.fixture(scope="module")
def piped(shared_program: Program) -> Each:
    shared_program.write({"observer.py": OBSERVER.read_text()})
    return shared_program.each("observer.py", redirect=False)


@pytest.mark.parametrize("what", STREAMS[:-1])
def test_streams_that_are_pipes_look_the_same(piped: Each, what: str) -> None:
    warm, cold, plain = (piped[how].saw[0][what] for how in ("warm", "cold", "plain"))
    assert warm == cold == plain


def run_on_terminal(program: Program, how: str) -> Saw:
    """Run the observer with a terminal as its standard streams; returns what it saw."""
    results = program.results / how
    results.mkdir(parents=True)
    (results.parent / "library.py").write_text(LIBRARY)
    launcher = program.launcher(how, results, redirect=False)
    launcher += ["--preload=library"] if how == "warm" else []
    saw = results / "saw"
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [*launcher, "observer.py"],
            cwd=program.folder,
            env={**os.environ, "SAW": str(saw), "PYTHONPATH": str(results.parent)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        output = b""
        try:
            while part := os.read(master, 4096):
                output += part
        except OSError:
            pass  # nobody has the other side any more
        assert process.wait(90) == 0, output.decode()
    finally:
        os.close(master)
    found: Saw = json.loads(renumbered(saw.with_name("saw.0").read_text()))
    return found


def renumbered(text: str) -> str:
    """Terminals counted as they are met: their own numbers are the whole machine's."""
    met = list(dict.fromkeys(re.findall(r"/dev/pts/\d+", text)))
    return re.sub(r"/dev/pts/\d+", lambda found: f"terminal {met.index(found[0])}", text)


@pytest.fixture(scope="module")
def on_terminal(shared_program: Program) -> dict[str, Saw]:
    shared_program.write({"observer.py": OBSERVER.read_text()})
    return {how: run_on_terminal(shared_program, how) for how in ("plain", "cold", "warm")}


@pytest.mark.parametrize("what", STREAMS)
def test_streams_that_are_a_terminal_look_the_same(on_terminal: dict[str, Saw], what: str) -> None:
    assert on_terminal["warm"][what] == on_terminal["cold"][what]


@pytest.mark.parametrize("what", STREAMS[:3])
def test_a_worker_on_a_terminal_sees_one(on_terminal: dict[str, Saw], what: str) -> None:
    assert on_terminal["warm"][what]["calls"] == on_terminal["plain"][what]["calls"]
    assert on_terminal["warm"][what]["calls"][0] is True


def test_while_importing_there_is_no_terminal(on_terminal: dict[str, Saw]) -> None:
    assert on_terminal["warm"]["environment"]["ON_A_TERMINAL"] == "False"


READ = """
    import json, os, sys
    with open(os.environ["SAW"] + "." + os.environ["RANK"], "w") as file:
        json.dump([sys.stdin.read(), os.environ["RANK"], sys.argv], file)
    """


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_the_first_worker_gets_the_input_and_the_others_none(program: Program, how: str) -> None:
    options = ("--nproc-per-node=3",)
    program.write({"program.py": READ})
    words = ("program.py", "${local_rank}", "x${local_rank}y")
    run = program.run(how, *words, options=options, stdin=b"some\ntext")
    assert run.saw == [
        ["some\ntext", "0", ["program.py", "0", "x0y"]],
        ["", "1", ["program.py", "1", "x1y"]],
        ["", "2", ["program.py", "2", "x2y"]],
    ]
