"""Programs to read, with a tree of modules beside them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from holdfast.processes.zygote import preload

TREE = {
    "own.py": "import struct\nif __name__ == '__main__':\n    main()\n",
    "doing.py": "import struct\nprint()\n",
    "lacking.py": "import struct\nimport absent_x\n",
    "names.py": "from pathlib import Path\nPlace = Path\nimport os as system\nX = 'x'\n",
    "hidden.py": "def Path(x): system()\nTYPE_CHECKING = True\n",
    "starred.py": "from pathlib import *\n",
    "pack/__init__.py": "import string\n",
    "pack/inner.py": "from . import other\nfrom .other import y\nx = 1\n",
    "pack/other.py": "import struct\nfrom textwrap import dedent as y\n",
    "spread/part.py": "import struct\n",
    "spread/deep/down/part.py": "from . import other\n",
    "spread/deep/down/other.py": "import string\n",
    "queue.py": "import heapq\n",
    "round/__init__.py": "from . import one\n",
    "round/one.py": "from . import two\nimport struct\n",
    "round/two.py": "from . import one\nimport string\n",
    "elsewhere/far.py": "import struct\n",
    "elsewhere/json.py": "import string\n",
    "listed.py": "__all__ = ['_x']\ndef _x(a): own()\n",
}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def steps_of(folder: Path, text: str, **files: str) -> tuple[str, ...]:
    """The plan of a program with that text, beside the tree."""
    write(folder, {**TREE, **files, "program.py": text})
    return preload.plan(str(folder / "program.py"), str(folder), ())
