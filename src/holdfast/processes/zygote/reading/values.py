"""What is known of the value of a name.

Known       worked out: an immutable constant (or, before it has a name, a list)
Plain       not known, but an object of a built-in or installed type: using it runs
            nothing of the program's. Its kind says which methods are in the tables
Thing       a module, or what is reached through one, by its full name: `os.environ`
OwnModule   a module of the program
OwnClass    a class of the program whose making ran nothing of the program's
Own         anything else, which may run the program's own code when it is used
"""

from __future__ import annotations

from msgspec import Struct


class Unforeseeable(Exception):
    """From here on, reading does not tell what the program does."""


class Absent(Exception):
    """An import that fails, with the exception that it raises in a worker."""

    def __init__(self, module: str, raises: str = "ModuleNotFoundError") -> None:
        super().__init__(module)
        self.raises = raises


class Known(Struct):
    value: object


class Plain(Struct):
    kind: str = ""


class Thing(Struct):
    name: str


class OwnModule(Struct):
    name: str


class OwnClass(Struct, eq=False):
    """`names` are those of its body; a class that `is_simple` has no base but simple ones."""

    names: dict[str, Value]
    is_simple: bool
    is_enumeration: bool = False


class Own(Struct):
    pass


Value = Known | Plain | Thing | OwnModule | OwnClass | Own

BUILT_IN = Plain("built-in")
"""A string, number or container of such, of which only the type is known."""

DECORATOR = Plain("decorator")
"""What may stand above a definition, and has no effect that an import could notice."""


def is_built_in(value: Value) -> bool:
    return isinstance(value, Known) or value == BUILT_IN


def is_foreign(value: Value) -> bool:
    """Whether using it runs nothing of the program's own."""
    return isinstance(value, Known | Plain | Thing)


def either(one: Value, other: Value) -> Value:
    """What is known of a value that is one of two."""
    if isinstance(one, Known) and isinstance(other, Known):
        same = type(one.value) is type(other.value) and one.value == other.value
        return one if same else BUILT_IN
    if one == other:
        return one
    if is_built_in(one) and is_built_in(other):
        return BUILT_IN
    return Plain() if is_foreign(one) and is_foreign(other) else Own()


class Scope:
    """The names of a module, a class body or a comprehension."""

    def __init__(
        self,
        names: dict[str, Value] | None = None,
        outer: Scope | None = None,
        is_comprehension: bool = False,
        after_star: bool = False,
    ) -> None:
        self.names = {} if names is None else names
        self.outer = outer
        self.is_comprehension = is_comprehension
        self.after_star = after_star
        """Whether names may have come from `from installed import *`."""

    def look_up(self, name: str) -> Value | None:
        if name in self.names:
            return self.names[name]
        if self.outer is not None:
            return self.outer.look_up(name)
        return Plain() if self.after_star else None

    def bind(self, name: str, value: Value) -> None:
        if isinstance(value, Known) and isinstance(value.value, list | dict):
            value = BUILT_IN  # It may change from now on.
        self.names[name] = value

    def bind_all_unknown(self) -> None:
        """After a star: any name may be another one now."""
        for name, value in self.names.items():
            self.names[name] = Plain() if is_foreign(value) else Own()
        self.after_star = True

    def join(self, others: list[dict[str, Value]]) -> None:
        """Have the names as they are after one of several ways to go, not known which."""
        for names in others:
            for name in self.names.keys() | names.keys():
                mine, theirs = self.names.get(name), names.get(name)
                both = mine is not None and theirs is not None
                self.names[name] = either(mine, theirs) if both else Own()  # type: ignore[arg-type]
