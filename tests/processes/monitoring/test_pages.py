"""What a worker writes into its page is what the agent reads: both in real processes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.processes.monitoring.pages import RoundPages
from holdfast.worker import page as layout
from holdfast.worker.progress import expires

DEADLINE_S = 60


@pytest.fixture
def pages() -> Iterator[RoundPages]:
    pages = RoundPages(3)
    yield pages
    pages.close()


def run(pages: RoundPages, code: str, local_rank: int = 0) -> str:
    """Run this in a worker's stead; returns what it printed."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    variables = {"PYTHONPATH": path, layout.VARIABLE: pages.variable(local_rank)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_a_worker_that_says_nothing_has_given_no_sign(pages: RoundPages) -> None:
    run(pages, "import holdfast")
    assert pages.read(0) is None


def test_where_a_worker_can_still_ask_is_the_step_after_its_last(pages: RoundPages) -> None:
    run(pages, "import holdfast\nholdfast.draining()\nholdfast.progress(9)")
    assert pages.next_ask(0) is None, "it has named no step"
    run(pages, "import holdfast\nholdfast.draining(0)")
    assert pages.next_ask(0) == 1
    run(pages, "import holdfast\nholdfast.draining(7)\nholdfast.draining(2**70)")
    assert pages.next_ask(0) == 8
    assert pages.next_ask(1) is None


def test_each_worker_has_a_page_of_its_own(pages: RoundPages) -> None:
    for rank in (0, 2):
        run(pages, f"import holdfast\nholdfast.progress({rank + 40})", rank)
    signs = [pages.read(rank) for rank in range(3)]
    assert [sign and sign.step for sign in signs] == [40, None, 42]


def test_the_last_step_counts_also_of_a_worker_that_was_killed(pages: RoundPages) -> None:
    code = """
import os, signal, holdfast
for step in range(1000):
    holdfast.progress(step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run(pages, code)
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 999


def test_a_phase_lasts_until_the_end_of_its_block(pages: RoundPages) -> None:
    run(pages, "import holdfast\nholdfast.phase('warm-up')\nwith holdfast.phase('eval'): pass")
    sign = pages.read(0)
    assert sign is not None
    assert (sign.phase, sign.step) == ("warm-up", None)


def test_a_change_of_phase_is_a_sign_and_no_step(pages: RoundPages) -> None:
    code = "import time, holdfast\nholdfast.progress(7)\ntime.sleep(0.3)\nholdfast.phase('eval')"
    run(pages, code)
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 7
    assert sign.step_age_s >= sign.age_s + 0.3


def test_the_wait_in_one_phase_says_nothing_of_another(pages: RoundPages) -> None:
    code = """
import time, holdfast
holdfast.progress(1)
holdfast.progress(2)
with holdfast.phase("checkpoint"):
    time.sleep(0.3)
holdfast.progress(3)
"""
    run(pages, code)
    sign = pages.read(0)
    assert sign is not None
    assert sign.phase == ""
    assert 0 < sign.longest_s < 0.3
    run(pages, "import holdfast\nholdfast.phase('checkpoint')")
    sign = pages.read(0)
    assert sign is not None
    assert sign.phase == "checkpoint"
    assert sign.longest_s >= 0.3


def test_before_a_wait_has_ended_nothing_is_known_of_it(pages: RoundPages) -> None:
    run(pages, "import holdfast\nholdfast.progress(1)\nholdfast.phase('eval')")
    sign = pages.read(0)
    assert sign is not None
    assert (sign.phase, sign.longest_s) == ("eval", 0.0)


def test_more_phases_than_a_page_has_room_for_have_no_name(pages: RoundPages) -> None:
    code = "import holdfast\nfor n in range(40): holdfast.phase(f'phase {n}')"
    run(pages, code)
    sign = pages.read(0)
    assert sign is not None
    assert sign.phase == ""


@pytest.mark.parametrize("name", ["", "\\0", "ä" * 100, "x" * 4000, "\\x1b[31m", "\\udcff"])
def test_any_text_can_name_a_phase_and_what_is_read_can_be_shown(
    pages: RoundPages, name: str
) -> None:
    run(pages, f"import holdfast\nholdfast.progress(1)\nholdfast.phase('{name}')")
    sign = pages.read(0)
    assert sign is not None
    assert sign.phase.isprintable()


def test_a_step_of_more_than_64_bits_is_no_step(pages: RoundPages) -> None:
    run(pages, "import holdfast\nholdfast.progress(5)\nholdfast.progress(2**70)")
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 5


def test_a_child_of_the_worker_speaks_for_it(pages: RoundPages) -> None:
    code = """
import subprocess, sys, holdfast
for step in range(10): holdfast.progress(step)
subprocess.run([sys.executable, "-c", "import holdfast; holdfast.progress(77)"], check=True)
"""
    run(pages, code)
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 77
    assert sign.longest_s < 10, "what the child did not see begin is no wait of it"


def test_signs_make_no_system_call_and_open_nothing(pages: RoundPages) -> None:
    code = """
import os, holdfast
holdfast.progress(0)
before = os.listdir("/proc/self/fd")
for step in range(100): holdfast.progress(step)
holdfast.phase("x")
print(os.listdir("/proc/self/fd") == before)
"""
    assert run(pages, code) == "True\n"


def test_whatever_is_in_a_page_can_be_read(pages: RoundPages) -> None:
    for value in (2**63 - 1, -1, -(2**63)):
        page = layout.open_page({layout.VARIABLE: pages.variable(1)})
        assert page.is_shared
        page.bytes[:] = struct.pack("q", value) * (layout.SIZE // 8)
        sign = pages.read(1)
        assert sign is None or (sign.phase.isprintable() and sign.age_s >= 0)


@pytest.mark.parametrize("place", ["", "@", "@0", "/no/such@0", "/dev/null@0", "/dev/null@x"])
def test_a_page_that_cannot_be_had_is_one_that_nobody_reads(place: str) -> None:
    page = layout.open_page({layout.VARIABLE: place})
    assert not page.is_shared
    page.words[layout.STEP] = 5


def test_nothing_of_the_pages_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    RoundPages(4).close()
    assert os.listdir("/proc/self/fd") == before


def test_a_scope_that_is_over_is_named_and_one_that_has_ended_is_not(pages: RoundPages) -> None:
    code = """
import holdfast
with holdfast.expires(1000, "outer"):
    with holdfast.expires(1e-9, "over and left"): pass
    holdfast.expires(1e-9, "inner").__enter__()
    holdfast.expires(1e-9, "later").__enter__()
"""
    run(pages, code)
    assert pages.expired(0) == "inner"
    assert pages.expired(1) == ""


def test_more_scopes_than_a_page_has_room_for_have_no_deadline(pages: RoundPages) -> None:
    code = """
import holdfast
scopes = [holdfast.expires(1000, str(n)).__enter__() for n in range(40)]
holdfast.expires(1e-9, "beyond").__enter__()
for scope in scopes: scope.__exit__(None, None, None)
"""
    run(pages, code)
    assert pages.expired(0) == ""


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_that_is_over_before_it_begins_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds from now"):
        expires(seconds)


CUTS_OFF = """
import os
from holdfast.worker import page
path = os.environ[page.VARIABLE].rpartition("@")[0]
for size in (0, 1 << 20):
    try:
        os.truncate(path, size)
    except OSError as error:
        print(error.strerror)
"""


def test_no_worker_can_take_the_memory_from_under_its_agent(pages: RoundPages) -> None:
    run(pages, "import holdfast\nholdfast.progress(3)")
    assert run(pages, CUTS_OFF) == "Operation not permitted\n" * 2
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 3
