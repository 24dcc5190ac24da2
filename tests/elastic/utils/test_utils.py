"""`utils`: small tools, beside PyTorch's own.

A test that takes `utils` runs against both; the others are about ours alone.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from typing import Any

import pytest

from holdfast.elastic.utils import distributed
from holdfast.elastic.utils.data import CyclingIterator
from holdfast.elastic.utils.process_state import is_uninterruptible_state, read_proc_state

from ... import torch_versions
from ...free_ports import free_port

Module = Any
Utils = Callable[[str], Any]

BOTH = ["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]


@pytest.fixture(params=BOTH)
def utils(request: pytest.FixtureRequest) -> Utils:
    """Imports a module of `utils` by its name there."""

    def module(name: str = "") -> Any:
        return import_module(f"{request.param}.utils{name and '.'}{name}")

    return module


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("--rank=${local_rank}", "--rank=3"),
        ("${local_rank}${local_rank}", "33"),
        ("$local_rank", "3"),
        ("${other} $other $", "${other} $other $"),
        ("$$local_rank", "$local_rank"),
        ("${local_rank", "${local_rank"),
        (7, 7),
        (None, None),
    ],
)
def test_the_local_rank_is_filled_in(utils: Utils, argument: Any, becomes: Any) -> None:
    macros = utils("").macros
    assert macros.substitute([argument], "3") == [becomes]
    assert macros.local_rank == "${local_rank}"


def test_arguments_stay_as_they_were(utils: Utils) -> None:
    arguments = ["${local_rank}"]
    utils("").macros.substitute(arguments, "3")
    assert arguments == ["${local_rank}"]


def test_a_variable_is_had_or_named(utils: Utils, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "")
    assert utils("").get_env_variable_or_raise("SOME_VARIABLE") == ""
    monkeypatch.delenv("SOME_VARIABLE")
    with pytest.raises(ValueError, match="SOME_VARIABLE"):
        utils("").get_env_variable_or_raise("SOME_VARIABLE")


@pytest.mark.parametrize("name", ["api", "distributed"])
def test_a_port_is_held_at_every_address_and_nobody_listens(utils: Utils, name: str) -> None:
    torch_versions.needs((2, 15), utils(name))
    with utils(name).get_socket_with_port() as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((address, port))


def test_a_free_port_can_be_bound(utils: Utils) -> None:
    port = utils("distributed").get_free_port()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))


def test_a_machine_without_ipv6_has_ports_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = socket.socket

    def made(family: int = socket.AF_INET, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return plain(family, *more)

    monkeypatch.setattr(socket, "socket", made)
    with distributed.get_socket_with_port() as sock:
        assert sock.family == socket.AF_INET


def test_a_machine_without_ports_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError("Address already in use")

    monkeypatch.setattr(socket, "socket", Exhausted)
    with pytest.raises(RuntimeError, match="no port"):
        distributed.get_socket_with_port()


def test_loggers_are_named_after_who_asks(utils: Utils) -> None:
    get_logger = utils("logging").get_logger
    assert get_logger().name == __name__
    assert get_logger(None).name == __name__
    assert get_logger("some.name") is logging.getLogger("some.name")


@pytest.mark.parametrize(("variable", "level"), [(None, logging.WARNING), ("DEBUG", logging.DEBUG)])
def test_the_level_of_loggers_is_a_variable(
    utils: Utils, variable: str | None, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if variable is not None:
        monkeypatch.setenv("LOGLEVEL", variable)
    assert utils("logging").get_logger("levels").level == level
    assert utils("log_level").get_log_level() == "WARNING"


SPEAKS = """
import logging, sys
from holdfast.elastic.utils.logging import get_logger
said = get_logger("holdfast.something")
said.info("for the curious")
if "handler" in sys.argv:
    logging.basicConfig(format="by the program: %(message)s")
said.warning("for all")
"""


@pytest.mark.parametrize(
    ("level", "program", "lines"),
    [
        (None, [], ["for all"]),
        (None, ["handler"], ["by the program: for all"]),
        ("INFO", [], ["holdfast.something: for the curious", "holdfast.something: for all"]),
        ("INFO", ["handler"], ["holdfast.something: for the curious", "by the program: for all"]),
    ],
)
def test_who_sets_the_level_sees_what_is_said(
    level: str | None, program: list[str], lines: list[str]
) -> None:
    """Once: by us, or by the handlers of the program."""
    environment = {name: value for name, value in os.environ.items() if name != "LOGLEVEL"}
    if level is not None:
        environment["LOGLEVEL"] = level
    command = [sys.executable, "-c", SPEAKS, *program]
    ended = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    seen = ended.stderr.splitlines()
    assert len(seen) == len(lines)
    assert all(line.endswith(words) for line, words in zip(seen, lines, strict=True)), seen


def test_the_state_of_a_process_is_a_letter(utils: Utils) -> None:
    torch_versions.needs((2, 11), utils(""))
    states = utils("process_state")
    assert states.read_proc_state(os.getpid()) in ("R", "S")
    assert states.read_proc_state(2**22 + 1) is None
    assert [states.is_uninterruptible_state(s) for s in ("D", "D+", "S", None)] == [
        True,
        True,
        False,
        False,
    ]
    assert read_proc_state(os.getpid()) == "R"
    assert not is_uninterruptible_state("Z")


# --- data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "start"), [(1, 0), (3, 0), (3, 1), (3, 2), (2, 5), (0, 0)])
def test_epochs_follow_each_other(utils: Utils, n: int, start: int) -> None:
    def epoch(number: int) -> Any:
        begun.append(number)
        return iter([number * 10, number * 10 + 1] if number != 1 else [])

    begun: list[int] = []
    items = list(islice(utils("data").CyclingIterator(n, epoch, start_epoch=start), 100))
    epochs = range(start, max(n, start + 1))
    assert begun == list(epochs)
    assert items == [e * 10 + i for e in epochs if e != 1 for i in (0, 1)]


def test_an_iterator_that_ended_stays_at_its_end(utils: Utils) -> None:
    iterator = utils("data").CyclingIterator(2, lambda _: iter([1]))
    assert iter(iterator) is iterator
    assert list(iterator) == [1, 1]
    assert list(iterator) == []


def test_any_number_of_empty_epochs_is_passed() -> None:
    assert list(CyclingIterator(100_000, lambda e: [] if e < 99_999 else ["end"])) == ["end"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("length", "replicas", "start"), [(10, 2, 0), (10, 3, 0), (10, 3, 4), (7, 4, 2), (5, 1, 4)]
)
def test_the_sampler_deals_as_pytorchs_does(length: int, replicas: int, start: int) -> None:
    dealt: dict[str, list[Any]] = {}
    for package in ("holdfast.elastic", "torch.distributed.elastic"):
        sampler_of = import_module(f"{package}.utils.data").ElasticDistributedSampler
        dealt[package] = []
        for rank in range(replicas):
            sampler = sampler_of(range(length), replicas, rank, start_index=start)
            for epoch in (0, 5):
                sampler.set_epoch(epoch)
                dealt[package].append((len(sampler), list(sampler), sampler.total_size))
    ours, theirs = dealt.values()
    assert ours == theirs
    assert {i for _, indices, _ in ours[::2] for i in indices} == set(range(start, length))


@pytest.mark.torch
def test_a_rest_smaller_than_the_group_is_dealt_again() -> None:
    sampler_of = import_module("holdfast.elastic.utils.data").ElasticDistributedSampler
    dealt = [list(sampler_of(range(10), 5, rank, start_index=8)) for rank in range(5)]
    assert [len(indices) for indices in dealt] == [1] * 5
    assert {i for indices in dealt for i in indices} == {8, 9}


@pytest.mark.torch
def test_a_sampler_cannot_start_outside_its_data(utils: Utils) -> None:
    sampler_of = utils("data").ElasticDistributedSampler
    with pytest.raises(ValueError, match="10"):
        sampler_of(range(10), 2, 0, start_index=10)
    with pytest.raises(TypeError):
        sampler_of(iter(()), 2, 0)


@pytest.mark.torch
def test_a_sampler_cannot_start_before_its_data() -> None:
    sampler_of = import_module("holdfast.elastic.utils.data").ElasticDistributedSampler
    with pytest.raises(ValueError, match="-1"):
        sampler_of(range(10), 2, 0, start_index=-1)


# --- PyTorch's store ----------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.usefixtures("pytorch_in_this_process")
def test_a_store_is_made_and_has_a_port(utils: Utils) -> None:
    store = utils("distributed").create_c10d_store(is_server=True, server_addr="localhost")
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert store.port > 0


@pytest.mark.torch
@pytest.mark.usefixtures("pytorch_in_this_process")
def test_clients_join_a_store_of_the_other_kind() -> None:
    from concurrent.futures import ThreadPoolExecutor

    theirs = import_module("torch.distributed.elastic.utils.distributed")
    for server, client in ((distributed, theirs), (theirs, distributed)):
        port = free_port()
        with ThreadPoolExecutor(2) as pool:
            made = pool.submit(server.create_c10d_store, True, "localhost", port, 2, 30)
            joined = pool.submit(client.create_c10d_store, False, "localhost", port, 2, 30)
            made.result().set("key", "value")
            assert joined.result().get("key") == b"value"


@pytest.mark.torch
@pytest.mark.usefixtures("pytorch_in_this_process")
def test_a_port_that_nobody_could_know_is_refused(utils: Utils) -> None:
    with pytest.raises(ValueError, match="server_port"):
        utils("distributed").create_c10d_store(True, "localhost", world_size=2)


@pytest.mark.torch
def test_a_client_without_a_port_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="server_port"):
        distributed.create_c10d_store(False, "localhost")


@pytest.mark.torch
@pytest.mark.usefixtures("pytorch_in_this_process")
def test_a_port_that_is_taken_is_an_error(utils: Utils) -> None:
    with distributed.get_socket_with_port() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match="in use"):
            utils("distributed").create_c10d_store(True, "localhost", port, timeout=5)


# --- without PyTorch ----------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # every import of it fails
import holdfast.elastic.events.api, holdfast.elastic.events.handlers, holdfast.elastic.metrics
import holdfast.elastic.multiprocessing.errors.handlers
import holdfast.elastic.utils.distributed, holdfast.elastic.utils.logging
import holdfast.elastic.utils.process_state, holdfast.elastic.utils.store
from holdfast.elastic.utils.data import CyclingIterator
try:
    from holdfast.elastic.utils.data import ElasticDistributedSampler
except ImportError as error:
    print(error)
"""


def test_everything_but_the_sampler_is_imported_without_pytorch() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        env=environ,
        timeout=60,
        check=True,
    )
    assert "torch" in ended.stdout
