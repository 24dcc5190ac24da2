"""Every private name of Python that is used: it is there, it does what it is for, and it is listed.

What a name is for is shown in a process of its own, which may change what it likes. What comes of
one that is gone is shown by taking it away there; for whole jobs that is done in
`tests/integration/warm/test_warm_private_names.py`, and for functions in
`tests/elastic/multiprocessing/test_multiprocessing_private_names.py`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.processes.stdlib_only import private_names

from ...taking_away import TAKE_AWAY, taking_away

SOURCE = Path(holdfast.__file__).parent
STDLIB_ONLY = "holdfast.processes.stdlib_only"
DEADLINE_S = 60.0


def run(text: str, folder: Path) -> list[str]:
    """Run a program that has the module; the lines it prints."""
    program = folder / "program.py"
    program.write_text(
        "from holdfast.processes.stdlib_only import private_names\n" + textwrap.dedent(text)
    )
    ended = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


# --- whether it is there ------------------------------------------------------------------


@pytest.mark.parametrize("name", private_names.NAMES)
def test_this_python_has_it(name: str) -> None:
    assert name not in private_names.missing()


def test_one_that_is_gone_is_named(tmp_path: Path) -> None:
    """Each is taken away in a fork of its own."""
    text = f"{TAKE_AWAY}import posix\nprint(private_names.missing(), flush=True)\n"
    for name in private_names.NAMES:
        told = f"print({name!r} in private_names.missing(), flush=True)"
        in_child = (taking_away(name).strip(), told, "posix._exit(0)")
        text += f"child = posix.fork()\nif not child: {'; '.join(in_child)}\n"
        text += "posix.waitpid(child, 0)\n"
    before, *after = run(text, tmp_path)
    assert before == "[]"
    assert dict(zip(private_names.NAMES, after, strict=True)) == dict.fromkeys(
        private_names.NAMES, "True"
    )


def test_a_module_that_is_gone_lacks_all_its_names(tmp_path: Path) -> None:
    module = "concurrent.futures.thread"
    text = f"import sys\nsys.modules[{module!r}] = None\nprint(private_names.missing())"
    assert run(text, tmp_path) == [str([f"{module}._threads_queues"])]


def test_what_is_not_loaded_is_not_needed_yet(tmp_path: Path) -> None:
    name = "concurrent.futures.thread._threads_queues"
    text = (
        TAKE_AWAY
        + taking_away(name)
        + textwrap.dedent("""
        import os, sys
        pools = sys.modules.pop('concurrent.futures.thread')
        print(private_names.why_not(private_names.FORK))
        sys.modules['concurrent.futures.thread'] = pools
        print(private_names.why_not(private_names.FORK))
        print(private_names.why_not(private_names.WARM_START), flush=True)
        os._exit(0)  # The end of the interpreter would miss it.
    """)
    )
    version = ".".join(map(str, sys.version_info[:3]))
    why = f"Python {version} has no {name}, which the start method 'fork' needs"
    assert run(text, tmp_path) == ["", why, ""]


def test_a_zygote_can_tell_at_once_what_it_lacks(tmp_path: Path) -> None:
    text = """
        import sys
        from holdfast.processes.zygote import zygote_server
        needed = [name for name in private_names.NAMES.values() if 'a warm start' in name.users]
        print({name.module for name in needed} - set(sys.modules))
    """
    assert run(text, tmp_path) == ["set()"]


STDLIB_ONLY = "holdfast.processes.stdlib_only"
LOADED = [
    "__future__",
    "holdfast",
    "holdfast.processes",
    STDLIB_ONLY,
    f"{STDLIB_ONLY}.private_names",
]


def test_loading_it_loads_nothing_else(tmp_path: Path) -> None:
    text = f"""
        import subprocess, sys
        words = 'import sys; before = set(sys.modules); import {STDLIB_ONLY}.private_names; '
        words += 'print(*sorted(set(sys.modules) - before))'
        print(subprocess.check_output([sys.executable, '-S', '-c', words], text=True), end='')
    """
    packages = f"__future__ holdfast holdfast.processes {STDLIB_ONLY}"
    assert run(text, tmp_path) == [f"{packages} {STDLIB_ONLY}.private_names"]


# --- what it is for -----------------------------------------------------------------------


def test_signals_are_plain_numbers() -> None:
    signals = private_names.plain_signals()
    assert {type(number) for number in signals.valid_signals()} == {int}
    assert signals.SIGKILL in signals.valid_signals()
    assert signals.pthread_sigmask(signals.SIG_BLOCK, []) == set()
    assert signals.getsignal(signals.SIGUSR1) == signals.SIG_DFL


def test_without_plain_signals_the_others_do(tmp_path: Path) -> None:
    text = """
        import signal, sys
        sys.modules['_signal'] = None
        print(private_names.plain_signals() is signal)
    """
    assert run(text, tmp_path) == ["True"]


@pytest.mark.parametrize("gone", ["", "import sys, socket\nsys.modules['_socket'] = None\n"])
def test_a_pair_of_sockets_is_connected(gone: str, tmp_path: Path) -> None:
    text = """
        ours, theirs = private_names.socket_pair()
        ours.send(b'word')
        print(theirs.recv(4), type(ours).__module__)
    """
    module = "socket" if gone else "_socket"
    assert run(gone + textwrap.dedent(text), tmp_path) == [f"b'word' {module}"]


def test_a_module_is_run_as_the_interpreter_does(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("print(__name__, __spec__.name)")
    text = "import runpy\nprivate_names.module_runner(runpy)('module')"
    assert run(text, tmp_path) == ["__main__ module"]


def test_what_a_frozen_dictionary_is_given_is_collected(tmp_path: Path) -> None:
    text = """
        import gc, weakref
        class Thing: pass
        names = {'old': []}
        gc.freeze()
        private_names.refill(names, {'new': Thing()})
        print(list(names), gc.is_tracked(names))
        names['itself'] = names
        thing = weakref.ref(names['new'])
        del names
        gc.collect()
        print(thing())
    """
    assert run(text, tmp_path) == ["['new'] True", "None"]


def test_no_audit_hook_is_added_anywhere() -> None:
    """One cannot be removed again, and makes every `id()` twenty times as slow."""
    assert not [path for path in SOURCE.rglob("*.py") if "addaudithook" in path.read_text()]


def test_whoever_asks_for_a_variable_is_seen(tmp_path: Path) -> None:
    text = """
        import os
        environment = private_names.class_of_environment()
        for name in ('__getitem__', '__setitem__', '__delitem__', '__iter__'):
            def seen(*arguments, name=name, method=vars(environment)[name]):
                print(name, *map(str, arguments[1:]))
                return method(*arguments)
            setattr(environment, name, seen)
        os.environ['a'] = 'b'
        os.environ.get('a')
        del os.environ['a']
        next(iter(os.environ))
        print(os.environ.decodekey(b'a'), os.environb.decodekey(b'a'))
    """
    seen = ["__setitem__ a b", "__getitem__ a", "__delitem__ a", "__iter__", "a b'a'"]
    assert run(text, tmp_path) == seen


def test_a_process_that_was_packed_runs_in_a_fresh_interpreter(tmp_path: Path) -> None:
    text = """
        import io, os, subprocess
        from multiprocessing import get_context, reduction

        class Packing:
            DupFd = int
            @staticmethod
            def duplicate_for_child(number):
                asked.append(number)
                return number

        asked = []
        made = get_context('spawn').Process(target=print, args=('another',))
        cargo = io.BytesIO()
        private_names.set_packing(Packing)
        private_names.give(made, 3, target=os._exit)
        main = private_names.preparation_data('title')
        print(main['name'], [name for name in main if name.startswith('init_main')])
        private_names.pickler(cargo).dump({'name': 'title'})
        private_names.pickler(cargo).dump(made)
        reduction.DupFd(7)
        private_names.set_packing(None)
        reading, writing = os.pipe()
        os.write(writing, cargo.getvalue())
        command = private_names.spawn_command(None, reading)
        ended = subprocess.run(command, pass_fds=[reading], stderr=subprocess.PIPE)
        print(asked, ended.returncode, ended.stderr)
    """
    assert run(text, tmp_path) == ["title ['init_main_from_path']", "[7] 3 b''"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_tracker_is_found(is_gone: bool, tmp_path: Path) -> None:
    """Where it can, without starting one."""
    text = f"""
        from multiprocessing import resource_tracker
        tracker = resource_tracker._resource_tracker
        if {is_gone}:
            del resource_tracker._resource_tracker
        print(private_names.tracker_descriptor() is None)
        resource_tracker.ensure_running()
        print(private_names.tracker_descriptor() == tracker._fd)
    """
    assert run(text, tmp_path) == [str(not is_gone), "True"]


def test_a_process_that_was_made_is_carried_out_in_a_fork(tmp_path: Path) -> None:
    text = """
        import os, sys
        from multiprocessing import get_context, parent_process

        def work(*arguments):
            print(arguments, parent_process().pid == os.getppid(), flush=True)
            sys.exit(3)

        made = get_context('fork').Process(target=work, args=('call', -1))
        reading, writing = os.pipe()
        if os.fork() == 0:
            private_names.give(made, private_names.given(made)[0], reading)
            os._exit(private_names.carry_out(made, reading))
        print(reading, os.waitstatus_to_exitcode(os.wait()[1]))
    """
    first, second = run(text, tmp_path)
    reading = second.split()[0]
    assert (first, second) == (f"('call', {reading}) True", f"{reading} 3")


def test_the_fork_of_a_thread_of_a_pool_can_end(tmp_path: Path) -> None:
    text = """
        import os, warnings
        from concurrent.futures import ThreadPoolExecutor, thread
        warnings.simplefilter('ignore')  # That a process with threads is forked.

        def fork():
            pid = os.fork()
            if pid == 0:
                private_names.forget_pools()
                thread._python_exit()
                os._exit(3)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(fork).result())
    """
    assert run(text, tmp_path) == ["3"]


# --- that there are no others -------------------------------------------------------------

DOCUMENTED = {"_asdict", "_exit", "_getframe", "_fields_", "_thread"}
"""Names with an underscore that the manual has all the same."""
UNDOCUMENTED = {
    f"multiprocessing.{name}"
    for name in ("context", "forkserver", "reduction", "resource_tracker", "spawn", "util")
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.AST) -> Iterator[str]:
    """The private names that Holdfast itself gives to something."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                yield node.attr


def taken_names(tree: ast.AST) -> Iterator[str]:
    """What private names a module takes: imported, after a dot, by `getattr` or in `vars`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) or name == "pythonapi":
                yield name
            case ast.Subscript(slice=ast.Constant(value=str(name))) if is_private(name):
                yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name):
                yield name
            case ast.Import():
                yield from (alias.name for alias in node.names if is_foreign(alias.name))
            case ast.ImportFrom(module=str(module), level=0) if not module.startswith("holdfast"):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
                yield from filter(is_foreign, names)


def is_foreign(module: str) -> bool:
    """Whether it is a module, or a name in one, that nobody has promised."""
    return module in UNDOCUMENTED or any(map(is_private, module.split(".")))


def takes(text: str, own: set[str]) -> set[str]:
    return set(taken_names(ast.parse(text))) - own - DOCUMENTED


OF_OTHER_PACKAGES = {
    "_WorkerServer",  # of PyTorch, for `control_plane`
    "_machines_cache",  # of python-etcd: the servers of a client that it is given
}


def test_nothing_else_takes_a_private_name() -> None:
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    own = {name for text in texts.values() for name in own_names(ast.parse(text))}
    del texts[SOURCE / "processes" / "stdlib_only" / "private_names.py"]
    own |= OF_OTHER_PACKAGES
    found = {str(path): names for path, text in texts.items() if (names := takes(text, own))}
    assert not found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import runpy\nrunpy._run_module_as_main()", "_run_module_as_main"),
        ("getattr(made, '_bootstrap')()", "_bootstrap"),
        ("vars(pool)['_threads_queues']", "_threads_queues"),
        ("import _signal", "_signal"),
        ("from os import _Environ", "os._Environ"),
        ("from multiprocessing import spawn", "multiprocessing.spawn"),
        ("from multiprocessing.spawn import get_command_line", "multiprocessing.spawn"),
        ("ctypes.pythonapi.Py_IncRef(it)", "pythonapi"),
    ],
)
def test_one_that_is_taken_elsewhere_is_found(text: str, name: str) -> None:
    assert takes(text, {"_own"}) == {name}


def test_what_is_our_own_or_in_the_manual_is_no_private_name() -> None:
    assert not takes("import os\nself._own = other._own\nos._exit(self.__dict__)", {"_own"})
