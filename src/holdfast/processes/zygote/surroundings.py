"""What lies outside of modules, how an import changes it, and how that is done again.

An import fills modules; it may also set variables, filters and loggers, print, warn. What is laid
on the shelf has done so too early: it is taken back (`State.restore`), kept (`Change`), and done
again when a worker comes to that import. What cannot be is named (`State.unrepeatable`).

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from holdfast.processes.bare import private_names

    Logger = tuple[tuple[Any, ...], list[Any], list[Any]]
    """Level and switches of a logger, its handlers and its filters."""
else:
    import private_names

EVERY_LEVEL = 1
DECIMAL = 28, "ROUND_HALF_EVEN"
"""How `decimal` counts when it is loaded."""


class State:
    """What lies outside of modules, at one moment. Some modules are loaded, but hidden."""

    def __init__(self, hidden: dict[str, ModuleType]) -> None:
        warnings: Any = sys.modules.get("warnings")
        modules = {**hidden, **sys.modules}
        self.logging: Any = modules.get("logging")
        self.environ = dict(private_names.variables())
        self.filters = list(warnings.filters) if warnings else []
        self.format = getattr(warnings, "formatwarning", None)
        self.path = list(sys.path)
        self.finders = list(sys.meta_path)
        self.loggers = _loggers(self.logging)
        self.fixed = {**_of_interpreter(), **_of_library(modules), **_random_numbers(modules)}
        """What cannot be repeated, as far as what it belongs to is loaded."""

    def unrepeatable(self, later: State) -> str:
        """What was changed between the two and cannot be done again; else empty."""
        for what, value in self.fixed.items():
            if value != later.fixed.get(what, value):
                return what
        return ""

    def restore(self) -> None:
        """Set everything that can be repeated back to how it was."""
        for name in private_names.variables().keys() - self.environ.keys():
            del os.environ[os.fsdecode(name)]
        for name, value in self.environ.items():
            if private_names.variables().get(name) != value:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        sys.path[:] = self.path
        sys.meta_path[:] = self.finders
        _set_filters(self.filters)
        _set_format(self.format)
        for logger, now in _loggers(self.logging).items():
            before = self.loggers.get(logger, UNTOUCHED)
            if now != before:
                _change_logger(self.logging, logger, now, before)


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
        "sys.path_hooks": list(sys.path_hooks),
        "the standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "who traces or profiles": (sys.gettrace(), sys.getprofile()),
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


def _of_library(modules: dict[str, Any]) -> dict[str, Any]:
    """Of what the standard library keeps for the whole process."""
    of = modules.get
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
        found["how warnings are shown"] = warnings.showwarning
    if threading:
        found["threading.excepthook"] = threading.excepthook
    if locale:
        found["the locale"] = locale.setlocale(locale.LC_ALL)
    return found


def _random_numbers(modules: dict[str, Any]) -> dict[str, int]:
    """How far each generator is that is loaded: an import may draw from it, or seed it."""
    plain, numpy, torch = map(modules.get, ("random", "numpy.random", "torch.random"))
    states = {
        "random": plain and plain.getstate(),
        "numpy.random": numpy and (numpy.get_state()[1].tobytes(), numpy.get_state()[2]),
        "torch.random": torch and bytes(torch.get_rng_state().tolist()),
    }
    return {f"the numbers of {name}": hash(state) for name, state in states.items() if state}


UNTOUCHED: Logger = (0, True, False), [], []


def _loggers(logging: Any) -> dict[str, Logger]:
    """All but the root, which is not set back."""
    known = logging.root.manager.loggerDict.items() if logging else ()
    return {
        name: ((one.level, one.propagate, one.disabled), list(one.handlers), list(one.filters))
        for name, one in known
        if isinstance(one, logging.Logger)
    }


def _change_logger(logging: Any, name: str, before: Logger, after: Logger) -> None:
    """Do to it what led from one to the other, whatever else was done to it."""
    logger = logging.getLogger(name)
    if before[0] != after[0]:
        level, logger.propagate, logger.disabled = after[0]
        logging.Logger.setLevel(logger, level)  # Not what a class of its own makes of it.
    for own, old, new in zip((logger.handlers, logger.filters), before[1:], after[1:], strict=True):
        own[:] = [one for one in own if one not in old or one in new]
        own.extend(one for one in new if one not in old and one not in own)


class Said:
    """Keeps what would be shown of warnings, and what is logged at any level."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        """In their order: records of logging, and the arguments of warnings."""

    def __enter__(self) -> Said:
        logging, warnings = _loggers_and_warnings()
        self._shows, self._handles, self._level = (
            warnings.showwarning, logging.Logger.handle, logging.root.level,
        )  # fmt: skip

        def keep_warning(message: Any, category: Any, file: str, line: int, *_: Any) -> None:
            self.words.append((message, category, file, line))

        def keep_record(_: Any, record: Any) -> None:
            self.words.append(record)

        warnings.showwarning = self._keep_warning = keep_warning
        logging.Logger.handle = self._keep_record = keep_record
        logging.root.setLevel(EVERY_LEVEL)
        return self

    def __exit__(self, *_: object) -> None:
        logging, warnings = _loggers_and_warnings()
        if warnings.showwarning is self._keep_warning:
            warnings.showwarning = self._shows
        if logging.Logger.handle is self._keep_record:
            logging.Logger.handle = self._handles
        if logging.root.level == EVERY_LEVEL:
            logging.root.setLevel(self._level)


def _loggers_and_warnings() -> tuple[Any, Any]:
    import logging
    import warnings

    return logging, warnings


def _say(word: Any) -> None:
    """Show or log it now, as the program's filters, levels and handlers have it."""
    if isinstance(word, tuple):
        sys.modules["warnings"].warn_explicit(*word)
        return
    logger = sys.modules["logging"].getLogger(word.name)
    if logger.isEnabledFor(word.levelno):
        what = (word.msg, word.args, word.exc_info, word.funcName)
        place = (word.name, word.levelno, word.pathname, word.lineno)
        logger.handle(logger.makeRecord(*place, *what, None, word.stack_info))


class Change:
    """What an import changed outside of modules, to be done again."""

    def __init__(
        self, before: State, after: State, printed: tuple[bytes, bytes], said: list[Any]
    ) -> None:
        self.printed = printed
        self.said = said
        self.set = {k: v for k, v in after.environ.items() if before.environ.get(k) != v}
        self.removed = [name for name in before.environ if name not in after.environ]
        self.filters = _added(before.filters, after.filters)
        self.format = after.format if after.format is not before.format else None
        self.path = _added(before.path, after.path)
        self.finders = _added(before.finders, after.finders)
        self.logging = after.logging
        self.loggers = {
            name: (before.loggers.get(name, UNTOUCHED), logger)
            for name, logger in after.loggers.items()
            if logger != before.loggers.get(name, UNTOUCHED)
        }

    def repeat(self, *, in_silence: bool = False) -> None:
        """Do it again; what was shown is left out where nobody is to see it twice."""
        for name, value in self.set.items():
            os.environ[os.fsdecode(name)] = os.fsdecode(value)
        for name in self.removed:
            os.environ.pop(os.fsdecode(name), None)
        _add(sys.path, self.path)
        _add(sys.meta_path, self.finders)
        if any(self.filters):
            warnings: Any = sys.modules["warnings"]
            filters = list(warnings.filters)
            _add(filters, self.filters)
            _set_filters(filters)
        _set_format(self.format)
        for logger, change in self.loggers.items():
            _change_logger(self.logging, logger, *change)
        if not in_silence:
            self._show()

    def _show(self) -> None:
        for descriptor, text in enumerate(self.printed, start=1):
            written = 0
            while written < len(text):
                written += os.write(descriptor, text[written:])
        for word in self.said:
            _say(word)


def _added(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """What is new: before the first of those that were there, and behind it."""
    new = [entry for entry in after if entry not in before]
    firsts = [after.index(entry) for entry in before if entry in after]
    first = min(firsts, default=len(after))
    front = [entry for entry in new if after.index(entry) < first]
    return front, [entry for entry in new if entry not in front]


def _add(target: list[Any], added: tuple[list[Any], list[Any]]) -> None:
    front, back = added
    target[:0] = [entry for entry in front if entry not in target]
    target.extend(entry for entry in back if entry not in target)


def _set_filters(filters: list[Any]) -> None:
    warnings: Any = sys.modules.get("warnings")
    if warnings and warnings.filters != filters:
        private_names.set_warning_filters(filters)


def _set_format(function: Any) -> None:
    """Have warnings written like this; None: as they are."""
    warnings: Any = sys.modules.get("warnings")
    if function is not None and warnings:
        warnings.formatwarning = function
