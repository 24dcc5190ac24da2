"""Import our dependencies without modules that they import and we do not need.

`msgspec` and `pathlib` import modules for features that a launcher never uses. Together those
take a tenth of the time in which `holdfast run` starts. While the two are imported, a stand-in is
found under such a name; then the name is free again, and later importers get the real one.

Rules
- A stand-in gets any attribute that its importer uses later from the real module, loaded then.
- A name that is loaded already is left alone, and so are its users.
- If a version of them needs more than a stand-in has, they are imported as usual.
- It is done in the process of the command `holdfast run` only: other processes import as
  usual.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType


class Later(ModuleType):
    """Stands for a module that is loaded when something of it is used.

    `functions` are taken from it while its importer is imported, and called later if at all.
    """

    def __init__(self, name: str, *functions: str) -> None:
        super().__init__(name)
        for function in functions:
            setattr(self, function, self._deferred(function))

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:  # Asked while the real one is hidden.
            raise AttributeError(f"{self.__name__} is not loaded yet, and {name} of it is needed")
        from importlib import import_module

        return getattr(import_module(self.__name__), name)

    def _deferred(self, name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            function = self.__getattr__(name)
            assert callable(function)
            return function(*arguments, **options)

        return call


def import_lightly() -> None:
    """Import `msgspec` and `pathlib`, for later importers."""
    hidden = {name: one for name, one in _stand_ins().items() if name not in sys.modules}
    for name, stand_in in hidden.items():
        sys.modules[name] = stand_in  # type: ignore[assignment]
    try:
        import pathlib  # noqa: F401

        import msgspec  # noqa: F401
    except (ImportError, AttributeError):
        pass  # They are imported again, with all their dependencies.
    finally:
        for name in hidden:
            del sys.modules[name]


def _stand_ins() -> dict[str, ModuleType | None]:
    platform = Later("platform")
    vars(platform)["system"] = lambda: os.uname().sysname
    return {
        # `msgspec` does without where it is missing. It is installed wherever PyTorch is, and
        # pulls in `inspect`.
        "typing_extensions": None,
        "platform": platform,  # `uuid`, which `msgspec` imports, asks whether this is AIX.
        "textwrap": Later("textwrap"),  # For the schemas of `msgspec`.
        "msgspec.inspect": Later("msgspec.inspect"),
        "msgspec._json_schema": Later("msgspec._json_schema", "schema", "schema_components"),
        "urllib.parse": Later("urllib.parse", "quote_from_bytes"),  # For `Path.as_uri`.
    }
