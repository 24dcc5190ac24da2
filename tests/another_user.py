"""Another user of this machine, who means no good: for tests that run as root."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

STRANGER = 23_457
"""Whoever that is: no account is needed for a process to be of another user."""

_BECOME = """
import json, os, socket, sys, threading, time
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
def tell(*words):
    print(*words, flush=True)
def named(name, kind=socket.SOCK_SEQPACKET):
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind("\\0" + name.lstrip("\\0@"))
    return sock
"""

HOLDS_NAMES = """
held = [named(name) for name in sys.argv[1:]]
for sock in held:
    sock.listen(64)
tell("ready")
time.sleep(1000)
"""
"""Has names that listen, and never says a word there."""


@contextlib.contextmanager
def another_user(code: str, *words: str, uid: int = STRANGER) -> Iterator[subprocess.Popen[str]]:
    """A process of that user, from when it has said `ready` until the end of the block."""
    command = [sys.executable, "-c", _BECOME.format(uid=uid) + code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


HOLDS_PORT = """
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind((sys.argv[1], int(sys.argv[2])))
listening.listen()
tell("ready")
while True:
    listening.accept()
    tell("dialled")
"""
"""Listens on a port, and says so when somebody comes."""
