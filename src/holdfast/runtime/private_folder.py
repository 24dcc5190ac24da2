"""A folder that is this user's alone, in a place where others may have been first.

Rules
1. It is a real directory, not a link to one; it belongs to this user, and nobody else can write to
   it. That is looked at through the descriptor that is then used, so nothing can take its place in
   between. One that is not there is made, closed to all others.
2. Files in it are reached through that descriptor. They are made exclusively under a name of their
   own and then renamed, and read only if they are plain files of this user: no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime import sentences


class NotPrivate(PermissionError):
    """The folder is there, and is not this user's alone."""


@contextlib.contextmanager
def private_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of the folder, made if need be. Raises `OSError`, `NotPrivate` among them."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise NotPrivate(0, sentences.LINK, os.fspath(path)) from None
    try:
        if not is_ours(os.fstat(descriptor)):
            raise NotPrivate(0, sentences.NOT_OURS, os.fspath(path))
        yield descriptor
    finally:
        os.close(descriptor)


def own_folder() -> Path:
    """One that outlives a reboot, on most machines on a disk of their own."""
    return Path("/var/tmp") / f"holdfast-{os.getuid()}"


def is_ours(found: os.stat_result) -> bool:
    """Whether a folder belongs to this user, and no other user can write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def write_file(folder: int, name: str, content: bytes) -> None:
    """Replace a file, whole or not at all. Raises `OSError`."""
    part = f".{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def read_file(folder: int, name: str, most: int) -> tuple[bytes, os.stat_result]:
    """The content of a file, up to one byte more than `most`. Raises `OSError`."""
    # Not blocking, lest a pipe in its place keeps us for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not is_ours(found):
            raise NotPrivate(0, sentences.FILE_NOT_OURS, name)
        return file.read(most + 1), found
