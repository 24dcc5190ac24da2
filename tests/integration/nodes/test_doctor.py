"""`holdfast doctor` on several hosts: what is wrong between them is found."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.doctor import sentences

from ..conftest import job_environment
from .hosts import Host, Network, Streams

pytestmark = pytest.mark.root

PATIENCE_S = 150.0


def examine(
    network: Network, folder: Path, holdfast: Path, *more: str, **variables: dict[str, str]
) -> dict[str, tuple[int, str]]:
    """What each host ends with and says."""
    words = ("doctor", f"--nnodes={len(network.hosts)}", "--rdzv-endpoint=10.77.0.1:29400")
    running: list[tuple[Host, subprocess.Popen[bytes]]] = []
    for host in network.hosts:
        env = {**job_environment({}), **variables.get(host.name, {})}
        with (folder / host.name).open("wb") as out:
            streams = Streams(stdout=out)
            process = host.run([holdfast, *words, *more], env=env, cwd=folder, streams=streams)
        running.append((host, process))
    ended = {host.name: process.wait(PATIENCE_S) for host, process in running}
    return {name: (status, (folder / name).read_text()) for name, status in ended.items()}


@pytest.mark.thorough
def test_hosts_that_reach_each_other_are_well(
    make_network: Callable[[int], Network], tmp_path: Path, holdfast: Path
) -> None:
    ended = examine(make_network(3), tmp_path, holdfast, f"--shared={tmp_path}")
    assert [status for status, _ in ended.values()] == [0, 0, 0], ended
    (page,) = [text for _, text in ended.values() if "to the farthest" in text]
    assert "on 3 nodes" in page
    assert "error" not in page


def test_a_host_behind_a_firewall_and_one_with_other_variables_are_found(
    make_network: Callable[[int], Network], tmp_path: Path, holdfast: Path
) -> None:
    """The second host reaches the first, and the third host's addresses lead nowhere from it."""
    network = make_network(3)
    for address in ("10.77.0.3", "fd77::3"):
        kind = "-6" if ":" in address else "-4"
        blind = ["ip", kind, "route", "add", "unreachable", address]
        subprocess.run([*network.hosts[1].entry, *blind], check=True)
    variables = {"host3": {"NCCL_SOCKET_IFNAME": "ib0"}}
    ended = examine(network, tmp_path, holdfast, **variables)
    assert [status for status, _ in ended.values()] == [1, 1, 1], ended
    (page,) = [text for _, text in ended.values() if "fix:" in text]
    what, _ = sentences.unreachable("host2", "host3", [("10.77.0.3", "|")])
    assert f"error: {what.partition('|')[0]}" in page
    assert "error: host3: NCCL_SOCKET_IFNAME=ib0, and there is no interface ib0 here" in page
    assert page.index("error") < page.index("warning:")


def test_an_endpoint_out_of_reach_is_said_without_waiting_for_it(
    make_network: Callable[[int], Network], tmp_path: Path, holdfast: Path
) -> None:
    network = make_network(1)
    env = job_environment({})
    words = ("doctor", "--nnodes=2", "--rdzv-endpoint=192.0.2.7:29400")
    with (tmp_path / "out").open("wb") as out:
        process = network.hosts[0].run([holdfast, *words], env=env, streams=Streams(stdout=out))
    assert process.wait(PATIENCE_S) == 1
    assert "error: 192.0.2.7:29400 (192.0.2.7) cannot be reached" in (tmp_path / "out").read_text()
