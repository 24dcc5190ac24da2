"""What lies outside of modules, and what importing one changes there.

An import fills modules; it may also set variables, filters and loggers, print, warn. What is
imported ahead of its time does so too early. Where that can show, the worker imports it by itself.

Rules
1. What belongs to the whole process (`State.fixed`) and what is printed, warned of or logged has
   its time: an import that changes or says any of it is not done early.
2. Variables, loggers and filters of warnings (`Settings`) may be set early, as long as the program
   has not set the same before: then the later one of the two would not be the one that holds.

Standard library only: for the zygote and its workers.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
import time

from holdfast.processes.stdlib_only import private_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVERY_LEVEL = 1
DECIMAL = 28, "ROUND_HALF_EVEN"
"""How `decimal` counts when it is loaded."""
FINDS_NOTHING = frozenset({"ReloadDetector"})
"""Finders that only look on: absl's."""
LOGGER, ROOT = "logger ", "root"
DISABLED = "loggers that were there are disabled"
FILTER = "filter "
MODULE = "module "
"""Beside the names of variables, these tell what was set."""
ALL = "*"
"""In place of what was set, where that is too much to be told."""
UNTOUCHED = 0, True, (), ()
SHOWN_AT_FIRST = 30
"""The level from which on a record is shown that nobody has asked for."""


class Settings:
    """What a program sets, and imports set too, at one moment."""

    def __init__(self, ahead: Mapping[str, str | None] | None = None) -> None:
        """`ahead` are variables as the program is going to set them; None: removed."""
        self.variables = dict(private_names.variables())
        for name, value in (ahead or {}).items():
            self.variables.pop(os.fsencode(name), None)
            if value is not None:
                self.variables[os.fsencode(name)] = os.fsencode(value)
        self.loggers, self.disabled = _loggers()
        filters = getattr(sys.modules.get("warnings"), "filters", ())
        self.filters = {_name_of(one) for one in filters if one[0] != "ignore"}
        """Of two that ignore, it makes no difference which one comes first."""
        self.modules = _set_in_modules()

    def changed(self) -> list[str]:
        """What differs now: names of variables, of loggers, and what concerns all loggers."""
        now = Settings()
        found = self.changed_variables()
        found += [
            LOGGER + name
            for name, one in now.loggers.items()
            if one != self.loggers.get(name, UNTOUCHED)
        ]
        found += [DISABLED] * (not now.disabled <= self.disabled)
        found += [FILTER + name for name in now.filters ^ self.filters]
        return found + [MODULE + name for name in now.modules ^ self.modules]

    def changed_variables(self) -> list[str]:
        """The names of those that have another value now, or are there or gone."""
        before, after = self.variables, private_names.variables()
        names = {*before, *after} if before != after else ()
        return [os.fsdecode(n) for n in names if before.get(n) != after.get(n)]


def _set_in_modules() -> set[str]:
    """What modules make of numbers by now, where that is not what it is at first."""
    loaded = {name: sys.modules.get(name) for name in {"torch", "jax"} - _being_imported()}
    torch, jax = loaded.get("torch"), getattr(loaded.get("jax"), "config", None)
    at_first = {"get_default_dtype": "torch.float32", "get_default_device": "cpu"}
    found = {
        f"torch.{name}"
        for name, value in at_first.items()
        if hasattr(torch, name) and str(getattr(torch, name)()) != value
    }
    return found | {"jax.config.jax_enable_x64"} if getattr(jax, "jax_enable_x64", 0) else found


def _being_imported() -> set[str]:
    """Modules in whose import we are: they can be asked nothing yet."""
    found, frame = set(), sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>":
            found.add(frame.f_globals.get("__name__", ""))
    return found


def _name_of(one: tuple[Any, ...]) -> str:
    return f"{one[0]} {one[2].__name__} {one[1:2]} {one[3:]}".replace(",", "")


def _loggers() -> tuple[dict[str, tuple[Any, ...]], set[str]]:
    """Level, switches, handlers and filters of each; and those that are disabled."""
    logging: Any = sys.modules.get("logging")
    known = [*logging.root.manager.loggerDict.items(), (ROOT, logging.root)] if logging else []
    found = [(name, one) for name, one in known if isinstance(one, logging.Logger)]
    return (
        {n: (one.level, one.propagate, (*one.handlers,), (*one.filters,)) for n, one in found},
        {name for name, one in found if one.disabled},
    )


class State:
    """What lies outside of modules, at one moment."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.filters = list(getattr(sys.modules.get("warnings"), "filters", ()))
        self.finders = [f for f in sys.meta_path if type(f).__name__ not in FINDS_NOTHING]
        self.fixed = {**_of_interpreter(), **_of_library(), **_random_numbers()}
        """What has its time, as far as what it belongs to is loaded."""

    def broken(self) -> str:
        """What was changed since then and has its time; else empty."""
        later = State()
        for what, value in self.fixed.items():
            if value != later.fixed.get(what, value):
                return what
        if later.finders[: len(self.finders)] != self.finders:
            return "sys.meta_path"  # Behind those that are there, one finds only what is its own.
        if any(one not in later.filters for one in self.filters):
            return "the filters of warnings"
        return ""

    def set_by(self) -> set[str]:
        """What was set since then, in the words of `Settings.changed`."""
        return set(self.settings.changed())

    def concerned_by(self, changed: set[str]) -> set[str]:
        """What of this would have made a difference to what was set since then."""
        found, now = set(), State()
        if now.settings.loggers.keys() != self.settings.loggers.keys():
            found.add(DISABLED)
        if now.filters != self.filters:
            found |= {name for name in changed if name.startswith(FILTER)}
        return found & changed


def _of_interpreter() -> dict[str, Any]:
    signals = private_names.plain_signals()
    mask = os.umask(0)
    os.umask(mask)
    return {
        "the signal handlers": [signals.getsignal(number) for number in signals.valid_signals()],
        "sys.excepthook": sys.excepthook,
        "sys.displayhook": sys.displayhook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.breakpointhook": sys.breakpointhook,
        "sys.path": list(sys.path),
        "sys.path_hooks": list(sys.path_hooks),
        "the standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "the trace and profile functions": (sys.gettrace(), sys.getprofile()),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the limit of digits": sys.get_int_max_str_digits(),
        "the built-in names": {name: id(value) for name, value in vars(builtins).items()},
        "the garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "the working directory": os.getcwd(),
        "the umask": mask,
        "the priority": os.nice(0),
        "the time zone": time.tzname,
    }


def _of_library() -> dict[str, Any]:
    """Of what the standard library keeps for the whole process."""
    of: Any = sys.modules.get
    logging, warnings, threading, locale = map(of, ("logging", "warnings", "threading", "locale"))
    sockets, processes, decimal = map(of, ("socket", "multiprocessing", "decimal"))
    numbers = decimal.getcontext() if decimal else None
    found: dict[str, Any] = {
        "the timeout of sockets": sockets.getdefaulttimeout() if sockets else None,
        "the precision of decimal": (numbers.prec, numbers.rounding) if numbers else DECIMAL,
        "the start method": processes.get_start_method(allow_none=True) if processes else None,
    }
    if logging:
        found["the root logger"] = (logging.root.level, *logging.root.handlers)
        found["how loggers are made"] = logging.getLoggerClass(), logging.getLogRecordFactory()
        found["what is logged at all"] = logging.root.manager.disable
    if warnings:
        found["how warnings are shown"] = warnings.showwarning, warnings.formatwarning
    if threading:
        found["threading.excepthook"] = threading.excepthook
    if locale:
        found["the locale"] = locale.setlocale(locale.LC_ALL)
    return found


def _random_numbers() -> dict[str, int]:
    """How far each generator is that is loaded: an import may draw from it, or seed it."""
    of: Any = sys.modules.get
    plain, numpy, torch = map(of, ("random", "numpy.random", "torch.random"))
    states = {
        "random": plain and plain.getstate(),
        "numpy.random": numpy and (numpy.get_state()[1].tobytes(), numpy.get_state()[2]),
        "torch.random": torch and bytes(torch.get_rng_state().tolist()),
    }
    return {f"the numbers of {name}": hash(state) for name, state in states.items() if state}


class Noticed:
    """Notices warnings that would be shown, and which loggers are used."""

    def __init__(self) -> None:
        self.is_shown = False
        self.by: set[str] = set()
        """Loggers whose records show only where the program has set one of these."""

    def __enter__(self) -> Noticed:
        logging, warnings = _loggers_and_warnings()
        self._shows, self._handles, self._level = (
            warnings.showwarning, logging.Logger.handle, logging.root.level,
        )  # fmt: skip

        def notice_warning(*_: Any, **__: Any) -> None:
            self.is_shown = True

        def notice_record(logger: Any, record: Any) -> None:
            self.is_shown = self.is_shown or record.levelno >= SHOWN_AT_FIRST
            while logger is not None:
                self.by.add(LOGGER + logger.name)
                logger = logger.parent

        warnings.showwarning = self._notice_warning = notice_warning
        logging.Logger.handle = self._notice_record = notice_record
        logging.root.setLevel(EVERY_LEVEL)
        return self

    def __exit__(self, *_: object) -> None:
        logging, warnings = _loggers_and_warnings()
        if warnings.showwarning is self._notice_warning:
            warnings.showwarning = self._shows
        if logging.Logger.handle is self._notice_record:
            logging.Logger.handle = self._handles
        if logging.root.level == EVERY_LEVEL:
            logging.root.setLevel(self._level)


def _loggers_and_warnings() -> tuple[Any, Any]:
    import logging
    import warnings

    return logging, warnings
