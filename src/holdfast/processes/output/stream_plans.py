"""What happens to each stream of each worker, decided before anything is opened. Pure.

Where a stream goes is its `StreamDestination`: worked out here from the options, or elsewhere
from what a logs specs says (`destinations`). A `StreamPlan` adds how its lines look, and is all
that `output` needs to know.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.policy.config import Output
from holdfast.processes.output.log_layout import STREAM_FILES

if TYPE_CHECKING:
    from string import Template

STDOUT, STDERR = 1, 2
PIPE_BYTES_MAX = 1024 * 1024
PIPE_BYTES_DEFAULT = 64 * 1024

_PIPE_BYTES_ALL_WORKERS = 16 * 1024 * 1024
"""The memory of all pipes of one node. The kernel counts pipes by user: a user that exceeds the
allowance (64 MiB) gets tiny pipes from then on, in all programs."""
_DEFAULT_PREFIX = "[${role_name}${local_rank}]:"


class WorkerIdentity(Struct, frozen=True):
    """The worker that writes: all that a prefix can name, except for the process id."""

    local_rank: int
    rank: int
    role: str
    slots: int


class StreamDestination(Struct, frozen=True):
    """Where one stream of one worker goes."""

    file: Path | None = None
    direct: bool = False
    """The worker writes into the file itself; the console is for when it cannot be opened."""
    shown: bool = True
    """On the console."""
    prefixed: bool = False


class StreamPlan(Struct, frozen=True):
    """What happens to one stream of one worker."""

    number: int
    """1 for stdout, 2 for stderr, of the worker and of the console alike."""
    file: Path | None
    direct: bool
    """The worker writes into the file itself."""
    to_console: bool
    prefix_template: str
    prefix_on_console: bool
    pass_through: bool
    """Bytes are shown as they come: there is nobody else whose lines they could mix with."""
    filters: tuple[bytes, ...]
    pipe_bytes: int
    identity: WorkerIdentity

    @property
    def is_prefixed(self) -> bool:
        """Whether the prefix is written anywhere."""
        return self.prefix_on_console or bool(self.filters)

    @property
    def prefix_needs_pid(self) -> bool:
        return self.is_prefixed and "pid" in self._template().get_identifiers()

    def prefix(self, pid: str) -> bytes:
        """The template with its names replaced; names that we do not know stay as they are."""
        if not self.is_prefixed:
            return b""
        names = {
            "role_name": self.identity.role,
            "local_rank": self.identity.local_rank,
            "rank": self.identity.rank,
            "hostname": os.uname().nodename,
            "pid": pid,
        }
        return os.fsencode(self._template().safe_substitute(names))

    def _template(self) -> Template:
        from string import Template  # Most jobs have no prefix, and do not wait for it.

        return Template(self.prefix_template)


def place_by_options(
    output: Output, directory: Path | None, local_rank: int, number: int
) -> StreamDestination:
    """Where the options say that a stream goes; `directory` is the worker's."""
    tee = bool(output.teed(local_rank) & number)
    redirect = bool(output.redirected(local_rank) & number)
    return StreamDestination(
        file=directory / STREAM_FILES[number] if directory and (tee or redirect) else None,
        direct=redirect and not tee and directory is not None,
        shown=not output.local_ranks_filter or local_rank in output.local_ranks_filter,
        prefixed=tee,
    )


def plan_stream(
    place: StreamDestination, output: Output, identity: WorkerIdentity, number: int
) -> StreamPlan:
    """The plan of a stream that goes to this place."""
    return StreamPlan(
        number=number,
        file=place.file,
        direct=place.direct,
        to_console=place.shown,
        prefix_template=output.prefix_template or _DEFAULT_PREFIX,
        prefix_on_console=place.prefixed,
        pass_through=identity.slots == 1 and not place.prefixed,
        filters=tuple(map(os.fsencode, filters_of(output, number))) if place.shown else (),
        pipe_bytes=pipe_bytes(identity.slots),
        identity=identity,
    )


def filters_of(output: Output, number: int) -> tuple[str, ...]:
    """What a line of this stream must contain to be copied to the filtered file."""
    return output.stdout_filters if number == STDOUT else output.stderr_filters


def pipe_bytes(slots: int) -> int:
    """The size of each pipe: a power of two, as the kernel would round it."""
    share = min(PIPE_BYTES_MAX, _PIPE_BYTES_ALL_WORKERS // (2 * slots))
    return max(PIPE_BYTES_DEFAULT, 1 << (share.bit_length() - 1))
