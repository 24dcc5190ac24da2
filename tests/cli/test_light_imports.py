"""What is left out while `holdfast run` starts is there for whoever asks for it later."""

from __future__ import annotations

import subprocess
import sys

HIDDEN = "{'typing_extensions', 'platform', 'textwrap', 'msgspec.inspect', 'urllib.parse'}"
LIGHTLY = "import sys; from holdfast.cli import light_imports; light_imports.import_lightly(); "


def output_of(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_a_launcher_never_comes_to_is_not_loaded() -> None:
    assert output_of(f"{LIGHTLY} print({HIDDEN} & set(sys.modules))") == "set()"


def test_what_was_left_out_is_loaded_when_it_is_used() -> None:
    code = f"""{LIGHTLY}
import msgspec, pathlib
class Point(msgspec.Struct):
    '''
    A point.
    '''
    x: int
print(msgspec.json.schema(Point)["$defs"]["Point"]["description"])
print(type(msgspec.inspect.type_info(int)).__name__)
print(pathlib.Path("/a b").as_uri())
"""
    assert output_of(code).splitlines() == ["A point.", "IntType", "file:///a%20b"]


def test_whoever_imports_it_afterwards_gets_the_real_one() -> None:
    code = f"""{LIGHTLY}
import platform, textwrap, urllib.parse, uuid, msgspec.inspect
print(platform.python_version(), textwrap.shorten("a  b", 9), urllib.parse.quote("/a b"))
print(uuid.UUID(int=1), msgspec.inspect.__spec__.name)
"""
    version = ".".join(map(str, sys.version_info[:3]))
    expected = [
        f"{version} a b /a%20b",
        "00000000-0000-0000-0000-000000000001 msgspec.inspect",
    ]
    assert output_of(code).splitlines() == expected


def test_what_is_loaded_already_is_left_alone() -> None:
    code = f"""import textwrap, urllib.parse, msgspec.inspect
before = (textwrap, urllib.parse, msgspec.inspect)
{LIGHTLY}
print(before == tuple(sys.modules[one.__name__] for one in before))
"""
    assert output_of(code) == "True"


def test_where_more_is_asked_of_a_stand_in_all_is_imported_as_ever() -> None:
    code = """import sys; from holdfast.cli import light_imports
light_imports._stand_ins = lambda: {"datetime": light_imports.Later("datetime")}
light_imports.import_lightly()
print("msgspec" in sys.modules, "datetime" in sys.modules)
import datetime, msgspec
print(msgspec.json.encode(datetime.date(2026, 11, 18)).decode())
"""
    assert output_of(code).splitlines() == ["False False", '"2026-11-18"']
