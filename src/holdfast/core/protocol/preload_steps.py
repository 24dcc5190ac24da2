"""The steps that a zygote takes ahead of its workers, as text: `import a.b`, `from a import b`."""

from __future__ import annotations

from collections.abc import Iterable

NO_IMPORT = ("environ ", "path ")
"""Steps that set a variable, or put a folder on the module path."""


def module_of(step: str) -> str:
    """The module that a step imports; empty if it imports none."""
    words = step.split(" ", 2)
    return words[1] if words[0] in ("import", "from") and len(words) > 1 else ""


def packages_of(steps: Iterable[str]) -> list[str]:
    """The packages that these steps import, or plain names of modules, in order."""
    modules = (module_of(step) or step for step in steps if not step.startswith(NO_IMPORT))
    return list(dict.fromkeys(module.partition(".")[0] for module in modules))


def without(steps: tuple[str, ...], step: str) -> tuple[str, ...]:
    """The steps without it: of `from a import b`, `import a` stays; `import a.b` goes with `a`."""
    module = module_of(step)
    if not module:
        return steps
    if step.startswith("from "):
        plain = f"import {module}"
        return tuple(dict.fromkeys(plain if each == step else each for each in steps))
    inside = module + "."
    return tuple(
        each for each in steps if each != step and not (module_of(each) + ".").startswith(inside)
    )


def brought_by(steps: tuple[str, ...]) -> frozenset[str]:
    """The modules that are imported after these steps, or plain names of modules, as far as known.

    With a module come the packages above it; a name that is taken from one may be a module too.
    """
    found: set[str] = set()
    for step in steps:
        if step.startswith(NO_IMPORT):
            continue
        module = module_of(step) or step
        names = step.partition(" import ")[2].split(", ") if step.startswith("from ") else []
        parts = module.split(".")
        found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
        found.update(f"{module}.{name}" for name in names)
    return frozenset(found)
