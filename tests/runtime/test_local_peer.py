"""Who is at the other end of a local socket: only the kernel's word counts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from holdfast.runtime import local_peer
from holdfast.runtime.local_peer import peer_of, user_of

from ..another_user import HOLDS_NAMES, STRANGER, another_user

ASKS = """
import os, socket, sys
from holdfast.runtime.local_peer import peer_of
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.connect(chr(0) + sys.argv[1])
    peer = peer_of(sock)
    print(os.geteuid(), peer.uid, peer.is_of_this_user)
"""


def name_of(request: pytest.FixtureRequest) -> str:
    return f"test-{os.getpid()}-{request.node.name}"


def test_the_other_end_of_a_pair_is_this_process_and_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        peer = peer_of(one)
    assert peer == (os.getpid(), os.geteuid())
    assert peer.is_of_this_user
    assert peer.is_of_root == (os.geteuid() == 0)


@pytest.mark.root
def test_a_process_of_another_user_is_not_of_this_one(request: pytest.FixtureRequest) -> None:
    name = name_of(request)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with another_user(HOLDS_NAMES, name) as stranger, sock:
        sock.connect(f"\0{name}")
        peer = peer_of(sock)
    assert peer == (stranger.pid, STRANGER)
    assert not peer.is_of_this_user
    assert not peer.is_of_root


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_where_all_users_look_alike_nobody_is_trusted_for_it(
    request: pytest.FixtureRequest,
) -> None:
    """In a user namespace without a map this process and every other have the overflow uid."""
    name = name_of(request)
    overflow = local_peer._overflow_uid()

    def asked() -> str:
        command = ["unshare", "--user", sys.executable, "-c", ASKS, name]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return told.stdout.strip()

    with another_user(HOLDS_NAMES, name):
        assert asked() == f"{overflow} {overflow} False"


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_whoever_has_the_overflow_uid_itself_knows_its_own_processes() -> None:
    """As in a container that runs as `nobody` and knows some users only."""
    both = """
import socket
import sys
from holdfast.runtime import local_peer
one, other = socket.socketpair()
print(local_peer._is_nobody(local_peer.peer_of(one).uid), local_peer.peer_of(one).is_of_this_user)
"""
    command = ["unshare", "--user", sys.executable, "-c", both]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout.strip() == "True True"


@pytest.mark.root
def test_nobody_is_a_user_like_others_where_every_user_has_a_number() -> None:
    code = "from holdfast.runtime.local_peer import *\nimport socket, os\n"
    code += "os.setresuid(65534, 65534, 65534)\none, other = socket.socketpair()\n"
    code += "print(peer_of(one).is_of_this_user)"
    told = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert told.stdout.strip() == "True"


def test_a_user_is_told_by_name_and_number_where_there_is_a_name() -> None:
    assert user_of(0) == "root (uid 0)"
    assert user_of(STRANGER) == f"uid {STRANGER}"
