"""A Python that lacks one of the private names which Holdfast uses.

`TAKE_AWAY` is the text of a program, or of a `sitecustomize`, that takes a name out of the
interpreter which runs it, so that the next Python can be met today:

    TAKE_AWAY + taking_away("runpy._run_module_as_main")
"""

from __future__ import annotations

from pathlib import Path

from holdfast.processes.stdlib_only import private_names

TAKE_AWAY = '''
def take_away(module, attribute):
    """Take a name away, as `private_names.Name` has it."""
    import importlib

    holder = home = importlib.import_module(module)
    maker, is_made, _ = attribute.partition("().")
    *path, last = (maker if is_made else attribute).split(".")
    for part in path:
        holder = getattr(holder, part)
    if is_made:
        getattr(holder, last).__init__ = lambda *_, **__: None
    elif path == ["pythonapi"]:
        home.pythonapi = WithoutOne(last)
    else:
        delattr(holder, last)


class WithoutOne:
    """`ctypes.pythonapi` without one of its functions."""

    def __init__(self, gone):
        self.gone = gone

    def __getattr__(self, name):
        import ctypes

        if name == self.gone:
            raise AttributeError(name)
        return getattr(ctypes.PyDLL(None), name)
'''


def taking_away(name: str) -> str:
    """The line that takes this one away, after the text above."""
    entry = private_names.NAMES[name]
    return f"take_away({entry.module!r}, {entry.attribute!r})\n"


def write_sitecustomize(folder: Path, name: str, only_in: str = "") -> Path:
    """A folder for PYTHONPATH: an interpreter lacks the name if its command has that word in it.

    Without a name, nothing is lacking yet. What is added to the file, indented, is done there too.
    """
    folder.mkdir()
    condition = f"import sys\nif any({only_in!r} in word for word in sys.orig_argv):\n"
    action = taking_away(name) if name else "pass\n"
    (folder / "sitecustomize.py").write_text(f"{TAKE_AWAY}{condition}    {action}")
    return folder
