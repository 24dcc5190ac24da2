"""Watches what modules read of the environment and the arguments while they are imported ahead.

Some variables differ from worker to worker or from round to round (`RANK`). Asking for the value of
one by its name, setting it, or reading `sys.argv` is a *request* that only a worker can answer:
`ask` is called, and decides. That such a variable is there is the same in every worker.

A loop over the whole environment meets the names of a worker's variables, each with a stand-in for
its value. Nothing comes of a stand-in that is passed over (`if name.startswith("TQDM_")`); to use
one is a request; one that is kept in a dictionary, because the environment was copied, is replaced
by the value once there is a worker (`fill_in`); one that is kept elsewhere is told.

Standard library only: for the zygote.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref

from holdfast.processes.stdlib_only import private_names
from holdfast.processes.zygote import reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_METHODS = ("__getitem__", "__setitem__", "__delitem__", "__iter__", "__contains__")
_NOT_A_USE = frozenset({
    "__class__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__init__",
    "__init_subclass__", "__new__", "__setattr__", "__sizeof__", "__subclasshook__",
    "__getnewargs__",
})  # fmt: skip
"""What Python itself asks of any object."""
Environment: Any = private_names.class_of_environment()


class NameInPassing(str):
    """The name of a worker's variable, met by code that goes through all of them."""

    __slots__ = ()


class ValueInPassing(str):
    """Stands for the value of such a variable. To use it is to ask for the value."""

    name: str
    watch: EnvironmentWatch


def _as_request(method: str) -> Any:
    def use(self: ValueInPassing, *operands: Any, **options: Any) -> Any:
        return getattr(self.watch.answer(self.name), method)(*operands, **options)

    return use


for _method in dir(str):
    if _method not in _NOT_A_USE:
        setattr(ValueInPassing, _method, _as_request(_method))
ValueInPassing.__int__ = lambda self: int(self.watch.answer(self.name))  # type: ignore[attr-defined]
ValueInPassing.__float__ = lambda self: float(self.watch.answer(self.name))  # type: ignore[attr-defined]
ValueInPassing.__radd__ = lambda self, left: left + self.watch.answer(self.name)  # type: ignore[attr-defined]


def _looking(name: str) -> Any:
    """A method of lists that says first that it was called."""
    plain = getattr(list, name)

    def look_first(self: Arguments, *operands: Any) -> Any:
        self.look()
        return plain(self, *operands)

    return look_first


class Arguments(list):  # type: ignore[type-arg]
    """`sys.argv` while modules are imported: tells when it is looked at."""

    look: Callable[[], None]
    __getitem__ = _looking("__getitem__")
    __iter__ = _looking("__iter__")
    __len__ = _looking("__len__")
    __contains__ = _looking("__contains__")
    __add__ = _looking("__add__")


class EnvironmentWatch:
    """Watches from `begin` to `end`. `ask(verb, what)` may return only in a worker, or at all."""

    def __init__(
        self, names: Iterable[str], always_set: Iterable[str], ask: Callable[[str, str], None]
    ) -> None:
        self.names_read: set[str] = set()
        """All names that were asked for, a worker's or not."""
        self._names = tuple(names)
        self._always_set = frozenset(always_set)
        self._ask = ask
        self._plain = {name: vars(Environment).get(name) for name in _METHODS}
        self._inherited_contains = Environment.__contains__
        self._handed_out: list[weakref.ref[ValueInPassing]] = []
        self._arguments: Arguments | None = None

    def begin(self) -> None:
        Environment.__getitem__ = self._reading(self._plain["__getitem__"])
        Environment.__setitem__ = self._changing(self._plain["__setitem__"], "sets")
        Environment.__delitem__ = self._changing(self._plain["__delitem__"], "removes")
        Environment.__iter__ = self._going_through(self._plain["__iter__"])
        Environment.__contains__ = self._looking_for(self._inherited_contains)
        self._argv = sys.argv
        sys.argv = self._arguments = Arguments(sys.argv)
        self._arguments.look = lambda: self._ask("reads", reasons.COMMAND_LINE)

    def end(self) -> None:
        """Watch no longer. Idempotent; what was handed out goes on to ask `answer`."""
        for name, method in self._plain.items():
            if method is not None:
                setattr(Environment, name, method)
            elif name in vars(Environment):
                delattr(Environment, name)
        if self._arguments is not None:
            self._arguments.look = lambda: None
            if sys.argv is self._arguments:
                sys.argv = self._argv

    def answer(self, name: str) -> str:
        """The value of a worker's variable, for code that has a stand-in of it."""
        if vars(Environment)["__getitem__"] is not self._plain["__getitem__"]:
            self._ask("reads", name)
        return os.environ.get(name, "")

    def copies(self) -> list[tuple[dict[Any, Any], Any, str]]:
        """The dictionaries that keep stand-ins: each with the key, and the variable's name."""
        found = []
        for value, holder in self._holders():
            if type(holder) is dict:
                keys = [key for key, held in holder.items() if held is value]
                found += [(holder, key, value.name) for key in keys]
        return found

    def kept_elsewhere(self) -> bool:
        """Whether a stand-in is kept in something else than a dictionary."""
        self._handed_out = [ref for ref in self._handed_out if ref() is not None]
        if self._handed_out:
            gc.collect()
        return any(type(holder) is not dict for _, holder in self._holders())

    def _holders(self) -> list[tuple[ValueInPassing, Any]]:
        """Every stand-in that is still there, with each object that keeps it."""
        values = [value for value in (ref() for ref in self._handed_out) if value is not None]
        return [
            (value, holder)
            for value in values
            for holder in gc.get_referrers(value)
            if holder is not values and type(holder).__name__ not in ("frame", "generator")
        ]

    # What `os.environ` does meanwhile.

    def _reading(self, method: Any) -> Any:
        def getitem(this: Any, key: Any) -> Any:
            if type(key) is NameInPassing:
                return self._stand_in(key)
            name = _text(key)
            self.names_read.add(name)
            if name in self._names:
                self._ask("reads", name)
            return method(this, key)

        return getitem

    def _changing(self, method: Any, verb: str) -> Any:
        def change(this: Any, key: Any, *value: Any) -> None:
            if _text(key) in self._names:
                self._ask(verb, _text(key))
            method(this, key, *value)

        return change

    def _going_through(self, method: Any) -> Any:
        def iterate(this: Any) -> Iterator[Any]:
            yield from method(this)
            if this is os.environ:
                yield from map(NameInPassing, self._names)
            else:
                yield from map(os.fsencode, self._names)  # `os.environb`: each is asked for.

        return iterate

    def _looking_for(self, method: Any) -> Any:
        def contains(this: Any, key: Any) -> bool:
            if _text(key) in self._always_set:
                self.names_read.add(_text(key))
                return True
            return bool(method(this, key))

        return contains

    def _stand_in(self, name: str) -> ValueInPassing:
        value = ValueInPassing("")
        value.name, value.watch = str(name), self
        self._handed_out.append(weakref.ref(value))
        return value


def fill_in(copies: list[tuple[dict[Any, Any], Any, str]]) -> None:
    """In a worker: copies of the environment get the worker's own values."""
    for holder, key, name in copies:
        if name in os.environ:
            holder[key] = os.environ[name]
        else:
            holder.pop(key, None)


def _text(key: Any) -> str:
    return os.fsdecode(key) if isinstance(key, str | bytes) else ""
