"""Lists of nodes, written out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.core.protocol.errors import UsageError
from holdfast.placement.node_lists import daemons, expand

WORDS = st.from_regex(r"[a-z][a-z.-]{0,4}", fullmatch=True)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A range as it is written, and what it means."""
    width = draw(st.integers(1, 4))
    first = draw(st.integers(0, 10**width - 1))
    last = first + draw(st.integers(0, 12))
    numbers = [str(number).zfill(width) for number in range(first, last + 1)]
    written = numbers[0] if first == last else f"{numbers[0]}-{numbers[-1]}"
    return written, numbers


@st.composite
def names(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A name with brackets, and the names it means."""
    written = draw(WORDS)
    meant = [written]
    for _ in range(draw(st.integers(0, 2))):
        parts = draw(st.lists(ranges(), min_size=1, max_size=3))
        after = draw(st.text("abx-", max_size=3))
        written += "[" + ",".join(text for text, _ in parts) + "]" + after
        numbers = [number for _, listed in parts for number in listed]
        meant = [front + number + after for front in meant for number in numbers]
    return written, meant


LISTS = st.lists(names(), min_size=1, max_size=4)


@given(LISTS)
def test_a_list_means_its_names_in_order(parts: list[tuple[str, list[str]]]) -> None:
    written = ",".join(text for text, _ in parts)
    assert expand(written) == [name for _, meant in parts for name in meant]


CONFIGURATION = """\
ClusterName=none
SlurmctldHost=localhost
NodeName=n1
PartitionName=work Nodes=ALL
"""


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cluster that is not there: scontrol wants one, even to read a list."""
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text(CONFIGURATION)
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="there is no scontrol here")
@settings(max_examples=60, deadline=None)
@given(LISTS)
def test_a_list_means_what_it_means_to_slurm(
    slurm_conf: Path, parts: list[tuple[str, list[str]]]
) -> None:
    written = ",".join(text for text, _ in parts)
    shown = subprocess.run(
        ["scontrol", "show", "hostnames", written],
        env={**os.environ, "SLURM_CONF": str(slurm_conf)},
        capture_output=True,
        text=True,
        check=False,
    )
    assume(shown.stdout)  # Ours takes some lists that Slurm never writes, and refuses.
    assert expand(written) == shown.stdout.split()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],gpu-[1-2]x", ["n01", "n02", "n03", "n7", "gpu-1x", "gpu-2x"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_what_slurm_writes(written: str, meant: list[str]) -> None:
    assert expand(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("host[1:5,1-2]@0(3)", ["host5", "host1", "host2"]),
        ("host[1:1-2]@0(2)", ["host1", "host2"]),
        ("n[3:8-11],login@0(5)", ["n008", "n009", "n010", "n011", "login"]),
        ("n[2:1-2].site@0(2)", ["n01.site", "n02.site"]),
    ],
)
def test_what_open_mpi_writes(written: str, meant: list[str]) -> None:
    assert daemons(written) == meant


@pytest.mark.parametrize(
    "written", ["", "n[1", "n1]", "n[]", "n[a]", "n[3-1]", "n[1-2", "n[[1]]", "n[1--2]", "a,,b"]
)
def test_what_is_no_list_is_refused(written: str) -> None:
    with pytest.raises(UsageError):
        expand(written)


@pytest.mark.parametrize("written", ["n[0-99999999999]", "a[0-9999]b[0-9999]", "n[1-9]" * 30])
def test_a_list_that_would_never_end_is_refused(written: str) -> None:
    with pytest.raises(UsageError):
        expand(written)
