"""The installed PyTorch, and what came with which version (docs/reference/versions.md)."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

Version = tuple[int, int]

OPTIONS: dict[str, Version] = {
    "--shutdown-timeout": (2, 11),
    "--log-line-prefix-template": (2, 14),
    "--print-completion": (2, 14),
}
"""Options of torchrun that some versions of the range do not have."""


NAMES: dict[str, Version] = {"rendezvous.etcd_store:EtcdStore.barrier": (2, 11)}
"""The same for names of the API that are left out here (`elastic/surface_differences.py`)."""


def installed() -> Version:
    """Its major and minor version; (0, 0) where there is none."""
    try:
        found = re.match(r"(\d+)\.(\d+)", version("torch"))
    except PackageNotFoundError:
        found = None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def to_come(of: dict[str, Version] = OPTIONS) -> set[str]:
    """Those of these that the installed one does not have yet."""
    return {name for name, since in of.items() if installed() < since}


def needs(since: Version, module: Any) -> None:
    """Skip a test if this module is PyTorch's, and older."""
    if module.__name__.startswith("torch.") and installed() < since:
        pytest.skip(f"came with PyTorch {since[0]}.{since[1]}, and this is an older one")
