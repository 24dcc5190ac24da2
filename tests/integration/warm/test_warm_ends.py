"""A warm worker ends like a cold one, also when it was told to stop.

Two workers: the second fails once the first waits, so the first is told to stop. What it leaves
behind is in `$SAW-parts`, a line for each thing that was done while it ended.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig

import pytest

from .conftest import COLD, WARM, Program, Run

LIBRARY = """
    import os

    kept = []

    class Part:
        def __init__(self, name):
            self.name = name

        def __del__(self, write=os.write, open=os.open, flags=os.O_WRONLY | os.O_APPEND):
            if "RANK" in os.environ and os.environ["RANK"] == "0":
                file = open(os.environ["SAW"] + "-parts", flags | os.O_CREAT, 0o600)
                write(file, self.name.encode() + b"\\n")

    """
PARTS = """
    from library import Part
    part = Part("of the library")
    """

PROGRAM = """
    import library, parts
    import atexit, os, signal, sys, threading, time

    def stop(*_):
        ENDING

    def ready(name, wait=False):
        path = os.environ["SAW"] + "-" + name
        while wait and not os.path.exists(path):
            time.sleep(0.01)
        open(path, "w").close()

    if os.environ["RANK"] == "1":
        ready("ready", wait=True)
        sys.exit(9)
    print("out", end="")
    part = library.Part("of the program")
    ring = [library.Part("in a cycle")]
    ring.append(ring)
    atexit.register(library.Part, "at the exit")
    library.kept.append(open(os.environ["SAW"] + "-unflushed", "w"))
    library.kept[0].write("all of it")
    signal.signal(signal.SIGTERM, stop)
    ready("ready")
    while True:
        time.sleep(3600)
    """

ENDINGS = {
    "by an exit": ("sys.exit(3)", 3),
    "with a text": ("sys.exit('a text')", 1),
    "by an error": ("raise ValueError('text')", 1),
    "by a hook": ("sys.excepthook = lambda *_: sys.exit(4); raise ValueError", 4),
    "after a thread": (
        "threading.Thread(target=lambda: time.sleep(0.2) or print('thread')).start(); sys.exit()",
        0,
    ),
    "by an interrupt": ("raise KeyboardInterrupt", -2),
}
OF_THE_LIBRARY = "of the library"


def stopped(program: Program, how: str, ending: str) -> Run:
    """A run whose first worker ends in this way when it is told to stop."""
    program.write({"train.py": PROGRAM.replace("ENDING", ending)})
    program.write({"lib/library.py": LIBRARY, "lib/parts.py": PARTS})
    options = ("--nproc-per-node=2", "--max-restarts=0")
    path = {"PYTHONPATH": str(program.folder / "lib")}
    return program.run(how, "train.py", options=options, preload=("library", "parts"), env=path)


@pytest.mark.parametrize("how", [COLD, WARM])
@pytest.mark.parametrize("what", ENDINGS)
def test_what_a_program_does_at_its_end_is_done(program: Program, what: str, how: str) -> None:
    ending, status = ENDINGS[what]
    ran = stopped(program, how, ending)
    (ended,) = [one for one in ran.events("WorkerExited") if one["local_rank"] == 0]
    ended_with = {"code": None, "signal": -status} if status < 0 else {"code": status}
    assert ended_with.items() <= ended["status"].items()
    (results,) = program.results.iterdir()
    parts = (results / "saw-parts").read_text().splitlines()
    # Nothing of the program is taken apart while `sys` has a function of it.
    own = {"at the exit"} if "hook" in what else {"of the program", "in a cycle", "at the exit"}
    assert {*parts} == {OF_THE_LIBRARY, *own}
    assert (results / "saw-unflushed").read_text() == "all of it"
    assert ran.stdout.startswith(b"out")
    assert (b"thread" in ran.stdout) is ("thread" in what)


COUNTED = """
    #include <Python.h>
    static PyType_Slot slots[] = {{0, NULL}};
    static PyType_Spec spec = {"nanobind.nb_func", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "counted", NULL, -1, NULL};
    PyMODINIT_FUNC PyInit_counted(void) {
        PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
        PyModule_AddObject(made, "function", PyObject_CallNoArgs(type));
        return made;
    }
    """


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("counts", [False, True])
def test_what_holds_on_to_itself_is_taken_apart_where_a_library_counts_it(
    program: Program, counts: bool
) -> None:
    """Else nanobind tells of a leak when the interpreter ends; for others it takes time."""
    ring = f"{PARTS}ring = [Part('in a cycle')]\n    ring.append(ring)\n"
    program.write({"train.py": "import library, parts" + ", counted" * counts})
    program.write({"lib/library.py": LIBRARY, "lib/parts.py": ring, "counted.c": COUNTED})
    include = f"-I{sysconfig.get_path('include')}"
    built = ("-o", "lib/counted.so", "counted.c")
    subprocess.run(["cc", "-shared", "-fPIC", include, *built], cwd=program.folder, check=True)
    path = {"PYTHONPATH": str(program.folder / "lib")}
    preload = ("library", "parts", *(("counted",) * counts))
    assert program.run(WARM, "train.py", preload=preload, env=path).status == 0
    (results,) = program.results.iterdir()
    parts = (results / "saw-parts").read_text().splitlines()
    assert {*parts} == {OF_THE_LIBRARY, *(("in a cycle",) * counts)}
