"""Registers work in threads, and msgspec crashes if two threads first meet a type at once.

So what reads answers is made when the module is imported, never in a call.
"""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast.core.protocol
import holdfast.registers

FOLDERS = (holdfast.registers, holdfast.core.protocol)


def made_in_a_call(source: str) -> list[int]:
    """The lines on which something is decoded by a type, not by a decoder that is there."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and any(word.arg == "type" for word in node.keywords)
    ]


def test_nothing_is_decoded_by_a_type_that_no_decoder_was_made_for() -> None:
    found = [
        f"{path}:{line}"
        for folder in FOLDERS
        for path in sorted(Path(folder.__path__[0]).glob("*.py"))
        for line in made_in_a_call(path.read_text())
    ]
    assert not found, "make a decoder at the top of the module:\n" + "\n".join(found)


def test_such_a_call_is_found() -> None:
    assert made_in_a_call("import msgspec\nmsgspec.json.decode(body, type=Answer)\n") == [2]
