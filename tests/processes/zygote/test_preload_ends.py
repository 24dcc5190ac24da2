"""Where the reading of a program ends, and what it passes over."""

from __future__ import annotations

import operator
import sys
from pathlib import Path

import pytest

from holdfast.processes.zygote import program_prefix

from .plans import steps_of

OPENING = """
import abc, argparse, builtins, collections, contextlib, dataclasses, enum, functools, importlib
import importlib.util, logging, operator, os, pathlib, re, sys, threading, time, typing, warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Optional, TypeVar
import numpy as np
import names, hidden, pack.inner
def own(*a, **k): pass
class Own: x = 1
class Registry:
    def __init_subclass__(cls, **k): own()
class Meta(type): pass
rank = int(os.environ.get("RANK", 0))
"""
PASSED_OVER = r"""
'''text'''
pass
...
X: int
X: int = 1
X = Y = 1, 2
X, (Y, *Z) = 1, (2, 3)
X = [1, *(2, 3)]; Y = {**{}, 'a': 1}; Z = {1, 2}
X = -rank + 1 * 2 ** 3
X = rank if rank else 1
X = rank or own
X = rank > 1 and 'a' in str(rank)
X = own is None
X = lambda x=1: own(x)
X = [own, Own]
X = {'a': own}
X = collections.defaultdict(own)
X = argparse.ArgumentParser(); X.add_argument('--a', type=int); G = X.add_argument_group('g')
X = [i * 2 for i in range(rank) if i]
X = {k: v for k, v in os.environ.items() if k.startswith('A')}
X = f'{rank:3} {rank!r}'
X = 'a,b'.split(',')[0].strip()
X = os.environ['HOME'].split(':')
X = sys.argv[1:]
X = np.pi * 2; Y = np.float32
X = torch_dtype = np.dtype('float32')
X = 1; X += 1
__all__ = ['a']; __all__ += ['b']
X = 1; del X
assert rank >= 0, own()
def f(x: int, *, y: Optional[Own] = None, z=1 if 0 else 2) -> 'absent_x': own()
async def f(): await own()
def f(x=Own.x, y=names.X, z=os.sep): pass
@functools.lru_cache(maxsize=None)\ndef f(): pass
@functools.cache\ndef f(): pass
@contextlib.contextmanager\ndef f(): yield
@abc.abstractmethod\ndef f(): pass
@typing.overload\ndef f(): pass
@np.vectorize\ndef f(): pass
@np.anything(1, a=rank)\ndef f(): pass
class C: x = 1; y: int = 2
class C(Own, Generic[TypeVar('T')]): pass
class C(abc.ABC, metaclass=abc.ABCMeta): pass
class C(Exception):\n    def __init__(self): own()
class C(np.ndarray):\n    def __new__(cls): own()
class C(enum.Enum):\n    A = 1; B = enum.auto()\n    def name_of(self): own()
class C(typing.NamedTuple):\n    x: int = 1
class C:\n    @property\n    def x(self): pass\n    @x.setter\n    def x(self, v): pass
class C:\n    @staticmethod\n    def f(): pass\n    @classmethod\n    def g(cls): pass
@dataclass\nclass C:\n    x: list = field(default_factory=own)
@dataclasses.dataclass(frozen=True)\nclass C(Own):\n    x: int = 1
T = TypeVar('T', bound=Own)\ndef f(x: T | None) -> Own | None: pass
X = Path(__file__).resolve().parent / 'a'
X = pathlib.Path(os.environ['HOME']).expanduser().read_text()
X = logging.getLogger(__name__).getChild('a')
X = re.compile('a').match('b')
X = collections.namedtuple('X', 'a b')
X = threading.Lock(); Y = time.time()
X = importlib.util.find_spec('numpy') is not None
X = hasattr(np, 'ndarray') and getattr(np, 'x', None)
if rank == 0:\n    X = 1\nelse:\n    def f(): pass
if rank: import json
X = own.x
X = own == 1
X = [own][0]
X = f'{own}'
def f(x: own()): pass
X: own() = 1
class C(metaclass=Meta): pass
class C(Registry): pass
if rank == 0: raise SystemExit
"""
ENDS = r"""
for i in range(3):\n    X = i
if (n := rank) > 1: pass
global X
X = names.Place('a').exists()
X = functools.partial(own, 1)
X = argparse.ArgumentParser(); X.add_argument('--a', type=own)
@functools.wraps(own)\ndef f(): pass
print('a')
own()
x = own()
(lambda: 1)()
X = Own()
X = Own.x()
X = str(own)
X = sorted([1], key=own)
X = sorted([2], key=lambda x: 1)
X = max(1, 2, key=functools.partial(own))
X = list(map(own, [1]))
X = str(own())
X = Path(own())
X = {'a': own()}
X = [own() for _ in range(3)]
X = (own() if rank else 1)
X = rank and own()
X = f'{own()}'
X = f'{rank:{own()}}'
X = [Path := own for _ in (1,)]; Path('a')
X = __import__('xml', fromlist=['dom'])
from pathlib import Path as _x\nfrom listed import *\n_x('a')
X = (y := own())
X = lambda x=own(): x
X = [1]; X.append(own)
X.y = 1
os.x = 1
X = {}; X['a'] = 1
own.x = 1
os.environ.clear()
os.putenv('A', '1')
globals()['X'] = 1
setattr(os, 'x', 1)
exec('1')
eval('1')
open('x')
raise SystemExit
while rank: pass
while False: pass
with open('x') as f: pass
with contextlib.suppress(ImportError): import json
for x in os.environ: pass
for x in [1]: break
for x in range(100): pass
for x in [1]: own()
match rank:\n    case 1: pass
async def f(): pass\nX = await_ = own()
assert own()
del os.x
del sys.path[0]
del absent_x
def f(x=own()): pass
def f(*, x=own()): pass
@own\ndef f(): pass
@own()\ndef f(): pass
@functools.wraps(own())\ndef f(): pass
@(lambda f: f)\nclass C: pass
@dataclass(own)\nclass C: pass
class C(own()): pass
class C(metaclass=own()): pass
class C: own()
class C: x = own()
class C:\n    def f(self, x=own()): pass
class C:\n    @own\n    def f(self): pass
class C:\n    global rank\n    rank = 1
class C(enum.Enum): A = 'a'\nX = C.A.upper()
Path('x').mkdir()
Path('x').write_text('a')
Path(os.environ['HOME']).unlink()
logging.getLogger().setLevel(10)
logging.getLogger('a').info('b')
logging.basicConfig()
warnings.filterwarnings('ignore')
warnings.simplefilter('ignore')
os.makedirs('x')
os.chdir('/')
np.random.seed(1)
np.set_printoptions(precision=3)
sys.stdout.reconfigure(line_buffering=True)
importlib.import_module('.x', 'pack')
importlib.import_module(os.environ['X'])
importlib.reload(os)
hidden.Path('a')
from hidden import Path; Path('a')
def Path(x): own()\nPath('a')
class Path: pass\nPath('a')
Path = own; Path('a')
str = own; str('a')
X = [Path := own]; Path('a')
for Path in [1]: X = Path('a')
if rank: Path = own\nPath('a')
try:\n    Path = own\nexcept ImportError: pass\nPath('a')
from pathlib import *\nPath('a')
from starred import *\nstr('a')
def __import__(x): own()\n__import__('re')
X = dict(**{'a': own}, **{}); Y = sorted([1], key=X['a'])
X = dict(**own)
if rank == 0: own()
if rank == 0: import psutil
if rank == 0: import own as o
if rank == 0: os.environ['A'] = '1'
if rank == 0: pass\nelse: import psutil
try:\n    own()\nexcept Exception: pass
try:\n    pass\nexcept* OSError: pass
X = argparse.ArgumentParser(); X.parse_args()
X = argparse.ArgumentParser(); X.add_argument('--a', action=own)
X = argparse.ArgumentParser(formatter_class=own)
"""
EMPTY = {"own.py": "", "hidden.py": "def Path(x): system()\n"}


def read_behind(folder: Path, line: str) -> bool:
    """Whether the reading goes on behind a line of a program."""
    text = f"{OPENING}{line}\nimport decimal\n"
    steps = steps_of(folder, text, **EMPTY)
    assert "import numpy" in steps
    return "import decimal" in steps


def lines(text: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in text.strip().splitlines()]


@pytest.mark.parametrize("line", lines(PASSED_OVER))
def test_it_is_passed_over(tmp_path: Path, line: str) -> None:
    assert read_behind(tmp_path, line)


@pytest.mark.parametrize("line", lines(ENDS))
def test_it_ends_the_reading(tmp_path: Path, line: str) -> None:
    assert not read_behind(tmp_path, line)


def test_what_is_in_the_tables_is_there() -> None:
    """A name that is misspelled there would never be met."""
    import importlib

    for name in program_prefix.CALLS | program_prefix.KEEP:
        module, _, rest = name.partition(".")
        if module in sys.stdlib_module_names:
            assert operator.attrgetter(rest)(importlib.import_module(module))
