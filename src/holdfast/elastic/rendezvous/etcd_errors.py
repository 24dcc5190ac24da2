"""What a client of etcd's v2 API raises, under the names that users of python-etcd catch.

    EtcdException
    ├── EtcdKeyError                     what a key is, or is not
    │   ├── EtcdKeyNotFound, EtcdNotFile, EtcdNotDir, EtcdAlreadyExist, EtcdRootReadOnly
    ├── EtcdValueError (ValueError)      what was asked does not hold, or makes no sense
    │   ├── EtcdCompareFailed, EtcdDirNotEmpty
    ├── EtcdConnectionFailed             no answer came
    │   └── EtcdWatchTimedOut            a watch saw nothing in its time
    └── EtcdInsufficientPermissions, EtcdLeaderElectionInProgress, EtcdWatcherCleared,
        EtcdEventIndexCleared

In a program that has imported python-etcd, what is raised is one of its errors as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = [
    "EtcdAlreadyExist",
    "EtcdCompareFailed",
    "EtcdConnectionFailed",
    "EtcdDirNotEmpty",
    "EtcdEventIndexCleared",
    "EtcdException",
    "EtcdInsufficientPermissions",
    "EtcdKeyError",
    "EtcdKeyNotFound",
    "EtcdLeaderElectionInProgress",
    "EtcdNotDir",
    "EtcdNotFile",
    "EtcdRootReadOnly",
    "EtcdValueError",
    "EtcdWatchTimedOut",
    "EtcdWatcherCleared",
]


class EtcdException(Exception):
    """`payload` is what the server said, if it said anything."""

    def __init__(self, message: str | None = None, payload: Any = None) -> None:
        super().__init__(message)
        self.payload = payload


class EtcdKeyError(EtcdException):
    """A key is not what it should be."""


class EtcdKeyNotFound(EtcdKeyError):
    """There is no such key."""


class EtcdNotFile(EtcdKeyError):
    """The key is a folder."""


class EtcdNotDir(EtcdKeyError):
    """The key is no folder."""


class EtcdAlreadyExist(EtcdKeyError):
    """The key is there, and should not be."""


class EtcdRootReadOnly(EtcdKeyError):
    """The root cannot be changed."""


class EtcdValueError(EtcdException, ValueError):
    """What was asked does not hold, or makes no sense."""


class EtcdCompareFailed(EtcdValueError):
    """The key is not as it was expected to be."""


class EtcdDirNotEmpty(EtcdValueError):
    """The folder has something in it."""


class EtcdConnectionFailed(EtcdException):
    """No answer came."""

    def __init__(
        self,
        message: str | None = None,
        payload: Any = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message, payload)
        self.cause = cause


class EtcdWatchTimedOut(EtcdConnectionFailed):
    """Nothing happened in the time that a watch had."""


class EtcdInsufficientPermissions(EtcdException):
    """The user may not do that."""


class EtcdLeaderElectionInProgress(EtcdException):
    """The cluster has no leader now."""


class EtcdWatcherCleared(EtcdException):
    """The server has forgotten the watch."""


class EtcdEventIndexCleared(EtcdException):
    """The server remembers nothing as old as that."""


_BY_CODE: dict[int, type[EtcdException]] = {
    100: EtcdKeyNotFound,
    101: EtcdCompareFailed,
    102: EtcdNotFile,
    104: EtcdNotDir,
    105: EtcdAlreadyExist,
    107: EtcdRootReadOnly,
    108: EtcdDirNotEmpty,
    110: EtcdInsufficientPermissions,
    301: EtcdLeaderElectionInProgress,
    400: EtcdWatcherCleared,
    401: EtcdEventIndexCleared,
}
_BY_STATUS = {401: 110, 404: 100}
_VALUES = range(200, 211)


_of_both: dict[tuple[object, object], type[EtcdException]] = {}


def raised(kind: type[EtcdException]) -> type[EtcdException]:
    """The class to raise: also python-etcd's of that name, where the program uses that.

    Whoever catches one of its errors has imported it; so it need not be imported here.
    """
    theirs = getattr(sys.modules.get("etcd"), kind.__name__, None)
    if not (isinstance(theirs, type) and issubclass(theirs, Exception)):
        return kind
    pair = (kind, theirs)
    if pair not in _of_both:
        _of_both[pair] = type(kind.__name__, pair, {"__module__": kind.__module__})
    return _of_both[pair]


def error_of(status: int, payload: Mapping[str, Any]) -> EtcdException:
    """What to raise for an answer that is none."""
    code = _BY_STATUS.get(status, payload.get("errorCode", 0))
    kind = EtcdValueError if code in _VALUES else _BY_CODE.get(code, EtcdException)
    said = " : ".join(str(payload[key]) for key in ("message", "cause") if payload.get(key))
    return raised(kind)(said or f"etcd answered {status}", {**payload, "status": status})
