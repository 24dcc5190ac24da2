"""A server under a flood of connections, run as a process with as many descriptors as allowed.

Usage: flood.py CONNECTIONS. Exits 0 if a good client was never disturbed, a newcomer was let
in among the strangers, and the strangers were forgotten when they had gone.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.transport.stage import LOOPBACK, Stage

SILENT, HALFWAY, GARBAGE = b"", b"\0\0\0\x20", b"\0\0\0\x04none"


def flood(port: int, connections: int, ready: int, end: int) -> None:
    """Open them all, then hold on to them until told to end."""
    held = []
    for number in range(connections):
        sock = socket.create_connection((LOOPBACK, port))
        sock.sendall((SILENT, HALFWAY, GARBAGE)[number % 3])
        held.append(sock)
    os.write(ready, b"!")
    os.read(end, 1)
    os._exit(0)


def main(connections: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stage = Stage()
    stage.serve()
    good = stage.connect("good")
    good.greet()
    ready_there, ready_here = os.pipe()
    end_there, end_here = os.pipe()
    port = stage.endpoint.port  # A fork does not listen, and could not say where.
    child = os.fork()
    if child == 0:
        flood(port, connections, ready_here, end_there)
    flooded: list[bytes] = []
    stage.loop.add_reader(ready_there, lambda: flooded.append(os.read(ready_there, 1)))
    while not flooded:
        stage.assert_undisturbed(good)
    print(f"{len(stage.server._connections)} connections held, {dict(stage.server.rejected)}")
    newcomer = stage.connect("newcomer")
    newcomer.greet()
    stage.assert_undisturbed(newcomer)
    os.write(end_here, b"!")
    stage.until(lambda: len(stage.server._connections) == 4)
    stage.assert_undisturbed(good)
    stage.assert_undisturbed(newcomer)
    assert stage.server.rejected["garbage"] >= connections // 3
    os.waitpid(child, 0)
    stage.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
