"""How a spawner makes a process: a fork that nothing can disturb, and what becomes of it.

Standard library only: for the spawner.
"""

from __future__ import annotations

import os

from holdfast.processes.stdlib_only import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.processes.stdlib_only.private_messages import Execute


def fork_shielded() -> int:
    """Fork a child that no signal reaches before it has reset what we ignore.

    Else one that is sent right after the fork would be lost on it. It lifts the shield
    itself (`linux.reset_signals`), and what was sent meanwhile is delivered then.
    """
    before = linux.block_signals()
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            linux.unblock_signals(before)
    return pid


def become_command(request: Execute, stdio: list[int], parent: int) -> None:
    """In the child: turn into the command. Never returns."""
    try:
        split = len(stdio) - len(request.keep)
        kept = linux.moved_above(stdio[split:], request.keep)
        linux.become_worker(parent, stdio[:split], request.cpus)
        linux.permit_agent(request.env)
        for descriptor, number in zip(kept, request.keep, strict=True):
            os.dup2(descriptor, number)
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        words = f"holdfast: cannot run {request.argv[0]}: {error.strerror}\n"
        os.write(2, words.encode("utf-8", "surrogateescape"))
        os._exit(code)
    finally:
        os._exit(125)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
