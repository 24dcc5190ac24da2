"""A program: the hosts of a test, and the wire between them.

Rules
- A host is a network namespace and a host name of its own (a UTS namespace). They have no
  names on this machine: they are held by this process alone and by what runs in them, so
  that nothing of them can stay behind, however the test ends, and no two tests clash.
- The wire loses what it is told to lose without a word: a cut is silence, not a reset. It
  keeps the order of what it delivers.
- A link is cut, slow or lossy in both directions. Hosts on different sides lose all that they
  send each other.

How it works: each host has an `eth0` that is a TAP device, whose other end is read here. A
frame goes to the host with its destination address, or to all for a group address, after
the delay of both links. A kernel bridge with netem would do the same, but netem is not in
every kernel, and TAP devices are.

What it reads and writes: the first line in is a JSON list of `{"name", "addresses"}`; the
first line out maps each name to the descriptors of its two namespaces in this process. Then
each line in sets the state of one link, `{"name", "cut", "delay_s", "loss", "side"}`, and
is answered by an empty line once it holds. The end of the input ends the program.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any

CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
LARGEST_FRAME = 65536
# The network must not get slower because the hosts, which share its machine, are busy.
NICENESS = -10

libc = ctypes.CDLL(None, use_errno=True)


class Link:
    """One host's end of the wire, and the state that it is in."""

    def __init__(self, number: int, tap: int) -> None:
        self.tap = tap
        self.hardware_address = hardware_address(number)
        self.cut = False
        self.delay_s = 0.0
        self.loss = 0.0
        self.side = 0


class Wire:
    """Carries frames from link to link."""

    def __init__(self, links: dict[str, Link]) -> None:
        self.links = links
        self.by_tap = {link.tap: link for link in links.values()}
        self.under_way: list[tuple[float, int, Link, bytes]] = []
        self.sent = 0
        self.chance = random.Random(2)

    def take_in(self, source: Link) -> None:
        """Read one frame from a host and put it on its way to whomever it is for."""
        frame = os.read(source.tap, LARGEST_FRAME)
        destination = frame[:6]
        to_all = destination[0] & 1
        for link in self.links.values():
            is_meant = to_all or link.hardware_address == destination
            is_apart = link is source or link.side != source.side
            if is_apart or not is_meant or self.loses(source) or self.loses(link):
                continue
            due = time.monotonic() + source.delay_s + link.delay_s
            self.sent += 1
            heapq.heappush(self.under_way, (due, self.sent, link, frame))

    def loses(self, link: Link) -> bool:
        return link.cut or (link.loss > 0 and self.chance.random() < link.loss)

    def deliver(self) -> float | None:
        """Hand over every frame that is due; return the seconds until the next one is."""
        while self.under_way:
            wait_s = self.under_way[0][0] - time.monotonic()
            if wait_s > 0:
                return wait_s
            _, _, link, frame = heapq.heappop(self.under_way)
            try:
                if not link.cut:
                    os.write(link.tap, frame)
            except OSError as error:
                # A host's queue that is full drops the frame, as a real one does.
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.EIO):
                    raise
        return None


def hardware_address(number: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, number])


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def namespaces() -> tuple[int, int]:
    """Descriptors of the network and the name that this process now has."""
    net, uts = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts"))
    return net, uts


def enter(spaces: tuple[int, int]) -> None:
    for descriptor in spaces:
        check(libc.setns(descriptor, 0), "setns")


def make_host(number: int, name: str, addresses: list[str]) -> tuple[tuple[int, int], Link]:
    """Make a host with these addresses; this process is inside it afterwards."""
    check(libc.unshare(CLONE_NEWNET | CLONE_NEWUTS), "unshare")
    socket.sethostname(name)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    mac = hardware_address(number).hex(":")
    steps = ["link set dev lo up", f"link set dev eth0 address {mac}", "link set dev eth0 up"]
    # Without the check for duplicates an IPv6 address is usable at once.
    steps += [f"address add {a} dev eth0{' nodad' if ':' in a else ''}" for a in addresses]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(steps), text=True, check=True)
    return namespaces(), Link(number, tap)


def make_hosts(wanted: list[dict[str, Any]]) -> tuple[dict[str, tuple[int, int]], dict[str, Link]]:
    """Make all hosts and come back to where this process was."""
    home = namespaces()
    spaces, links = {}, {}
    for number, host in enumerate(wanted, start=1):
        name = host["name"]
        spaces[name], links[name] = make_host(number, name, host["addresses"])
    enter(home)
    return spaces, links


def obey(line: str, links: dict[str, Link]) -> None:
    """Set the state of one link."""
    order = json.loads(line)
    link = links[order["name"]]
    link.cut, link.delay_s, link.loss = order["cut"], order["delay_s"], order["loss"]
    link.side = order["side"]


def main() -> None:
    orders = sys.stdin
    spaces, links = make_hosts(json.loads(orders.readline()))
    os.nice(NICENESS)
    print(json.dumps(spaces), flush=True)
    wire = Wire(links)
    poll = select.poll()
    for descriptor in (orders.fileno(), *wire.by_tap):
        poll.register(descriptor, select.POLLIN)
    wait_s: float | None = None
    while True:
        for descriptor, _ in poll.poll(None if wait_s is None else wait_s * 1000):
            if descriptor in wire.by_tap:
                wire.take_in(wire.by_tap[descriptor])
                continue
            if not (line := orders.readline()):
                return
            obey(line, links)
            print(flush=True)
        wait_s = wire.deliver()


if __name__ == "__main__":
    main()
