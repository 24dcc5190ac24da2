"""What a rendezvous is made of: the same answers from ours and from PyTorch's."""

from __future__ import annotations

import dataclasses
import gc
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic import rendezvous as ours
from holdfast.elastic.rendezvous import registry as our_registry
from holdfast.elastic.rendezvous import utils as our_utils

Module = Any
BOTH = ["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]


@pytest.fixture(params=BOTH)
def api(request: pytest.FixtureRequest) -> Module:
    return import_module(f"{request.param}.rendezvous")


@pytest.fixture(params=BOTH)
def utils(request: pytest.FixtureRequest) -> Module:
    return import_module(f"{request.param}.rendezvous.utils")


def parameters(api: Module, backend: str = "backend", **settings: Any) -> Any:
    return api.RendezvousParameters(backend, "endpoint", "run", 1, 2, **settings)


@pytest.mark.torch
def test_every_public_name_of_pytorch_is_there() -> None:
    for name in ("", ".api", ".registry", ".utils"):
        theirs = import_module(f"torch.distributed.elastic.rendezvous{name}")
        own = import_module(f"holdfast.elastic.rendezvous{name}")
        assert set(theirs.__all__) <= set(own.__all__), name
        assert all(hasattr(own, public) for public in own.__all__)


@pytest.mark.parametrize("kind", ["Closed", "Timeout", "Connection", "State", "GracefulExit"])
def test_every_error_is_an_error_of_the_rendezvous(api: Module, kind: str) -> None:
    assert issubclass(getattr(api, f"Rendezvous{kind}Error"), api.RendezvousError)


# --- parameters ---------------------------------------------------------------------------


def test_parameters_hold_what_they_were_given(api: Module) -> None:
    given = api.RendezvousParameters("b", "e", "r", 1, 2, local_addr="here", key="value")
    assert (given.backend, given.endpoint, given.run_id) == ("b", "e", "r")
    assert (given.min_nodes, given.max_nodes, given.local_addr) == (1, 2, "here")
    assert given.config == {"key": "value"}
    assert (given.get("key"), given.get("none"), given.get("none", 3)) == ("value", None, 3)


@pytest.mark.parametrize(
    ("backend", "least", "most"), [("", 1, 1), (None, 1, 1), ("b", 0, 1), ("b", 2, 1)]
)
def test_parameters_that_cannot_be_are_refused(
    api: Module, backend: str, least: int, most: int
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        api.RendezvousParameters(backend, "e", "r", least, most)


@pytest.mark.parametrize("value", ["1", "True", "tRue", "t", "yes", "Y", 1, True])
def test_what_means_yes(api: Module, value: object) -> None:
    assert parameters(api, key=value).get_as_bool("key") is True


@pytest.mark.parametrize("value", ["0", "False", "faLse", "f", "no", "N", 0, False])
def test_what_means_no(api: Module, value: object) -> None:
    assert parameters(api, key=value).get_as_bool("key") is False


@pytest.mark.parametrize("value", ["01", "Flse", "on", "", 2, -1, 0.5, 1.0, []])
def test_what_is_neither_yes_nor_no(api: Module, value: object) -> None:
    with pytest.raises(ValueError, match="key"):
        parameters(api, key=value).get_as_bool("key")


def test_settings_that_are_not_there_have_their_default(api: Module) -> None:
    given = parameters(api)
    assert given.get_as_bool("key") is None
    assert given.get_as_bool("key", default=True) is True
    assert given.get_as_int("key") is None
    assert given.get_as_int("key", default=5) == 5


@pytest.mark.parametrize(
    ("value", "number"), [("0", 0), ("-10", -10), (" 7 ", 7), (3, 3), (2.7, 2)]
)
def test_numbers(api: Module, value: object, number: int) -> None:
    assert parameters(api, key=value).get_as_int("key") == number


@pytest.mark.parametrize("value", ["a", "0a", "3b", "abc", ""])
def test_what_is_not_a_number(api: Module, value: object) -> None:
    with pytest.raises(ValueError, match="key"):
        parameters(api, key=value).get_as_int("key")


# --- the registry -------------------------------------------------------------------------


def handler_of(api: Module, backend: str) -> Any:
    """A handler with nothing but the abstract methods."""

    class Handler(api.RendezvousHandler):  # type: ignore[misc]
        def get_backend(self) -> str:
            return backend

        def next_rendezvous(self) -> Any: ...

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None: ...

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return "run"

        def shutdown(self) -> bool:
            return True

    return Handler()


def test_a_handler_need_not_say_whether_its_store_can_be_used(api: Module) -> None:
    assert handler_of(api, "b").use_agent_store is False
    with pytest.raises(TypeError):
        api.RendezvousHandler()


def test_a_registered_maker_makes_the_handler(api: Module) -> None:
    registry = api.RendezvousHandlerRegistry()
    seen = []

    def create(given: Any) -> Any:
        seen.append(given)
        return handler_of(api, "backend")

    registry.register("backend", create)
    registry.register("backend", create)
    given = parameters(api)
    assert registry.create_handler(given).get_backend() == "backend"
    assert seen == [given]


def test_what_a_registry_refuses(api: Module) -> None:
    registry = api.RendezvousHandlerRegistry()
    registry.register("backend", lambda _: handler_of(api, "another"))
    with pytest.raises(ValueError, match=r"\w"):
        registry.register("", lambda _: None)
    with pytest.raises(ValueError, match="backend"):
        registry.register("backend", lambda _: None)
    with pytest.raises(ValueError, match="unknown"):
        registry.create_handler(parameters(api, "unknown"))
    with pytest.raises(RuntimeError, match="another"):
        registry.create_handler(parameters(api))


def test_the_registry_of_the_process_is_the_one_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ours.rendezvous_handler_registry, "_registry", {})
    ours.rendezvous_handler_registry.register("mine", lambda _: handler_of(ours, "mine"))
    found = our_registry.get_rendezvous_handler(parameters(ours, "mine"))
    assert found.get_backend() == "mine"


PACKAGE = """
loaded = []
class Handler:
    def __init__(self, params):
        self.params = params
    def get_backend(self):
        return "installed"
def get_handler():
    loaded.append(True)
    return Handler
def broken():
    raise OSError("no such device")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers handlers, written for PyTorch's launcher."""
    (tmp_path / "installed_handlers.py").write_text(PACKAGE)
    metadata = tmp_path / "installed_handlers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: installed-handlers\nVersion: 1\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[torchrun.handlers]\ninstalled = installed_handlers:get_handler\n"
        "broken = installed_handlers:broken\nmissing = no_such_module:get_handler\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "installed_handlers", raising=False)
    monkeypatch.setattr(ours.rendezvous_handler_registry, "_registry", {})


@pytest.mark.usefixtures("installed")
def test_a_handler_of_an_installed_package_is_found_and_loaded_once() -> None:
    for _ in range(2):
        given = parameters(ours, "installed")
        handler: Any = our_registry.get_rendezvous_handler(given)
        assert handler.params is given
    assert sys.modules["installed_handlers"].loaded == [True]


@pytest.mark.usefixtures("installed")
def test_what_was_registered_here_comes_before_what_is_installed() -> None:
    mine = handler_of(ours, "installed")
    ours.rendezvous_handler_registry.register("installed", lambda _: mine)
    assert our_registry.get_rendezvous_handler(parameters(ours, "installed")) is mine
    assert "installed_handlers" not in sys.modules


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"), [("broken", "no such device"), ("missing", "no_such_module")]
)
def test_a_package_that_cannot_be_loaded_is_told_to_who_asked(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        our_registry.get_rendezvous_handler(parameters(ours, name))


# --- what a rendezvous gives --------------------------------------------------------------


class DictStore(dict[str, bytes]):
    """As much of a store as is needed here."""

    def set(self, key: str, value: bytes) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_rank_0_says_where_and_the_others_learn_it(api: Module) -> None:
    store = DictStore()
    said = api.RendezvousStoreInfo.build(0, store, local_addr="here", server_port=1234)
    assert said == api.RendezvousStoreInfo(master_addr="here", master_port=1234)
    assert store == {"MASTER_ADDR": b"here", "MASTER_PORT": b"1234"}
    assert api.RendezvousStoreInfo.build(1, store, local_addr="there", server_port=9) == said
    assert dataclasses.asdict(said) == {"master_addr": "here", "master_port": 1234}


def test_without_an_address_rank_0_names_its_host(api: Module) -> None:
    said = api.RendezvousStoreInfo.build(0, DictStore(), None)
    assert said.master_addr == socket.getfqdn()
    assert 0 < said.master_port < 1 << 16


def test_a_port_that_was_found_is_held_for_the_workers_only() -> None:
    info = ours.RendezvousStoreInfo.build(0, DictStore())
    port = info.master_port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)):
        pass  # A server asks for a port by number and lets it be used again, as this does.
    del info
    gc.collect()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_what_came_of_a_rendezvous_can_be_read(api: Module) -> None:
    place, store = api.RendezvousStoreInfo("here", 1), object()
    info = api.RendezvousInfo(store, 1, 3, place)
    assert (info.store, info.rank, info.world_size) == (store, 1, 3)
    assert info.bootstrap_store_info is place


# --- how things are written ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, ("localhost", 123)),
        ("", ("localhost", 123)),
        ("  ", ("localhost", 123)),
        ("host", ("host", 123)),
        (" host.name-1 ", ("host.name-1", 123)),
        ("host:0", ("host", 0)),
        ("host:65535", ("host", 65535)),
        ("10.0.0.1:29400", ("10.0.0.1", 29400)),
        ("[::1]", ("::1", 123)),
        ("[2001:db8::1]:29400", ("2001:db8::1", 29400)),
        ("2001:db8::1:29400", ("2001:db8::1", 29400)),
    ],
)
def test_endpoints(utils: Module, endpoint: str | None, expected: tuple[str, int]) -> None:
    assert utils.parse_rendezvous_endpoint(endpoint, 123) == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        "host:",
        "host:port",
        "host:65536",
        "host:-1",
        "host:123456",
        ":80",
        "[]:80",
        "a b",
        "ho/st:1",
        "~",
    ],
)
def test_what_is_not_an_endpoint(utils: Module, endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        utils.parse_rendezvous_endpoint(endpoint, 123)


def test_a_default_that_is_no_port_is_handed_on(utils: Module) -> None:
    assert utils.parse_rendezvous_endpoint("host", -1) == ("host", -1)


def test_ipv6_without_brackets_and_port_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match=r"\[::1\]"):
        our_utils.parse_rendezvous_endpoint("::1", 123)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": "1"}),
        (" a = 1 , b=x=y ", {"a": "1", "b": "x=y"}),
    ],
)
def test_settings(utils: Module, text: str, expected: dict[str, str]) -> None:
    assert utils._parse_rendezvous_config(text) == expected


@pytest.mark.parametrize("text", ["=1", "a", "a=", "a=1,", "a=1,,b=2", ","])
def test_what_are_not_settings(utils: Module, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        utils._parse_rendezvous_config(text)


def test_whether_a_host_is_this_one(utils: Module) -> None:
    for own in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        assert utils._matches_machine_hostname(own), own
    assert not utils._matches_machine_hostname("192.0.2.1")
