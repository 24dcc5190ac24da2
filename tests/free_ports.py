"""Ports that can be promised to a server before it runs.

Rules
- Nobody who asks the kernel for any port, and no outgoing connection, gets a promised one:
  neither between the promise and the server's start, nor while a server that was killed is
  down. Tests run beside each other, so whatever the kernel gives to anyone may be gone by then.
- No port is promised twice in a run, whichever of its processes asks.

How it works: the kernel picks only from a range of its own, so we pick from below it. Each
process of a parallel run has a share of the numbers; it begins somewhere in it, lest two runs on
one machine begin at the same place, and passes over what somebody listens on.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST, LAST = 15_000, 65_535
ENOUGH = 10_000
SHARES = 16
"""More than the processes of a run: beyond that, two of them share."""
KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(address: str = "127.0.0.1") -> int:
    """A port on which nobody listens now, and that nobody gets by chance."""
    return next(number for number in _numbers if _can_be_bound(address, number))


def free_ports(address: str, number: int) -> list[int]:
    return [free_port(address) for _ in range(number)]


def _share() -> Iterator[int]:
    end = int(KERNEL_RANGE.read_text().split()[0])
    if end - FIRST < ENOUGH:  # A machine where the kernel picks from nearly all of them.
        end = LAST + 1
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    numbers = range(FIRST + worker % SHARES, end, SHARES)
    start = random.randrange(len(numbers))
    return itertools.chain(numbers[start:], numbers[:start])


def _can_be_bound(address: str, number: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, number))
        except OSError:
            return False
    return True


_numbers = _share()
