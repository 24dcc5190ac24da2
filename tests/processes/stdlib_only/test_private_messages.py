"""Messages between agent, spawner and zygote: what is sent arrives, and mistakes are loud."""

from __future__ import annotations

import marshal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.processes.stdlib_only import private_messages
from holdfast.processes.stdlib_only.private_messages import (
    Execute,
    Exited,
    Fork,
    InCommon,
    Message,
    Preloaded,
    WarmWorker,
)


def sent(message: Message) -> Message:
    return Message.from_bytes(message.to_bytes())


def test_a_message_arrives_as_what_it_is_with_all_its_fields() -> None:
    arrived = sent(Execute(name="one", argv=["a", "b"], env={"A": "1"}, cpus=(0, 3)))
    assert isinstance(arrived, Execute)
    assert (arrived.name, arrived.argv, arrived.env) == ("one", ["a", "b"], {"A": "1"})
    assert arrived.cpus == (0, 3)


def test_what_was_not_said_is_as_the_class_has_it() -> None:
    arrived = sent(Preloaded(steps=("import a",), late=(), has_torch=False))
    assert isinstance(arrived, Preloaded)
    assert (arrived.reason, arrived.took_s, arrived.beside) == ("", 0.0, 0)


def test_what_the_one_in_the_middle_adds_is_passed_on() -> None:
    first = Preloaded(steps=(), late=(), has_torch=True)
    first.beside = True
    arrived = sent(first)
    assert isinstance(arrived, Preloaded)
    assert arrived.beside


def test_workers_to_be_forked_arrive_inside_their_request() -> None:
    worker = WarmWorker(
        name="0:1", kind="script", target="t.py", interpreter=("python",), command=["t.py"],
        argv=["t.py"], env={"RANK": "1"}, learns=True, descriptors=3, cpus=None,
    )  # fmt: skip
    arrived = sent(Fork(common=InCommon(shared_env={"A": "1"}, spawner=7), workers=[worker]))
    assert isinstance(arrived, Fork)
    (one,) = arrived.workers
    assert isinstance(one, WarmWorker)
    assert (one.name, one.env, one.keep) == ("0:1", {"RANK": "1"}, ())
    assert (arrived.common.shared_env, arrived.common.spawner) == ({"A": "1"}, 7)


def test_a_name_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(TypeError, match="no message is called Nonsense"):
        Message.from_bytes(marshal.dumps(("Nonsense", {})))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pid": 3, "status": 0}, "name"),
        ({"name": "one", "pid": 3, "status": 0, "code": 1}, "code"),
    ],
)
def test_a_field_that_is_missing_or_unknown_is_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(TypeError, match=f"Exited: missing or unknown: {named}$"):
        Exited(**fields)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=named):
        Message.from_bytes(marshal.dumps(("Exited", fields)))


def test_loading_it_loads_nothing_else() -> None:
    """It is a part of the spawner's start, and of the zygote's."""
    folder = str(Path(private_messages.__file__).parent)
    words = f"import sys; sys.path.insert(0, {folder!r}); before = set(sys.modules); "
    words += "import private_messages as new; print(sorted(set(sys.modules) - before))"
    said = subprocess.check_output([sys.executable, "-I", "-S", "-c", words], text=True)
    assert said.strip() == "['__future__', 'private_messages']"
