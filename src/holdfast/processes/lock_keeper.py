"""The node's note, and what is found of nodes that were on this machine before; off the loop.

Rules
1. The note is made at the start of a node and held by all its processes until the last has ended.
2. What was found to have ended is told. For what may still run the kernel is asked to say when it
   has ended, in a thread of its own: it may take for ever, and keeps nobody.
3. Where no note can be kept, the node goes without: after its end its lease is waited for.
4. Notes that are of no more use are removed: those of earlier rounds once a later one runs here,
   and all of the job when it is over.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.node_io import EndedFound, LivenessLockTaken, NodeEvent, RecordSeat
from holdfast.core.policy.liveness_locks import LockOrigin, MachineNote, NotedSeat, as_told
from holdfast.core.protocol.marks import SECRET_BYTES, mark_of
from holdfast.processes.lock_files import (
    Found,
    OwnNote,
    is_local,
    lock_origin,
    look,
    remove,
    wait_for,
)
from holdfast.runtime.disk import Disk

WAITED_FOR_MOST = 16
"""Nodes of the job on one machine whose end is waited for by another one there."""


class LockKeeper:
    """Of one node of one job. `post` takes what comes of it, on the loop."""

    def __init__(
        self, disk: Disk, folders: tuple[Path, ...], post: Callable[[NodeEvent], None]
    ) -> None:
        self._disk, self._folders, self._post = disk, folders, post
        self._lane = disk.lane("note")
        self._own: OwnNote | None = None
        self._ended: dict[str, MachineNote] = {}
        """By file: what was told."""
        self._is_closed = False

    def open(self, job: str, node: str, marker: str, hold: Callable[[int], None]) -> None:
        """Make the note, then look who was here. `hold` gets its descriptor, and owns that."""

        def on_made(own: OwnNote | None) -> None:
            if self._is_closed:
                return
            if own is not None:
                self._own = own
                hold(os.dup(own.descriptor))
                self._lane.do(own.secure)
                self._lane.do(partial(self._look, own, job), self._on_found)
            self._post(LivenessLockTaken(mark_of(secret) if own is not None else ""))

        secret = os.urandom(SECRET_BYTES).hex()
        note = MachineNote(job, node, secret, LockOrigin(), 0, marker)
        self._lane.do(lambda: (self._make(note),), lambda made: on_made(made[0]))

    def put(self, effect: RecordSeat) -> None:
        """The node has this seat from now on; nothing waits for that to be written."""
        own = self._own
        if own is None:
            return
        seat = NotedSeat(effect.instance, effect.round, effect.seat, effect.path)
        self._lane.do(partial(own.put, seat))
        needless = tuple(
            file
            for file, note in self._ended.items()
            if note.seat is None or _turn(note.seat) < _turn(seat)
        )
        for file in needless:
            del self._ended[file]
        if needless:
            self._lane.do(partial(remove, own.folder, needless))

    def remove(self) -> None:
        """The job is over: nobody will ask who was here."""
        if self._own is not None:
            files = (self._own.file, *self._ended)
            # Among what an end waits for, as it does not for notes that are kept.
            self._disk.lane("files").do(partial(remove, self._own.folder, files))

    def close(self) -> None:
        """Release our own lock; the file is kept for the next node."""
        self._is_closed = True
        if self._own is not None:
            # Behind what is still to be written there.
            self._lane.do(partial(os.close, self._own.descriptor))
            self._own = None

    def _on_found(self, found: list[Found]) -> None:
        own = self._own
        if own is None:
            return
        self._tell([one for one in found if one.verdict == "ended"])
        running = [one for one in found if one.verdict == "may run"]
        for one in running[:WAITED_FOR_MOST]:
            _thread.start_new_thread(self._wait, (own.folder, one.file))

    def _tell(self, found: list[Found]) -> None:
        if not found or self._is_closed:
            return
        self._ended |= {one.file: one.note for one in found}
        members = [as_told(one.note) for one in found]
        seated = tuple(one for one in members if one is not None)
        self._post(EndedFound(tuple(one.note.node for one in found), seated))

    # Beside the loop.

    def _make(self, note: MachineNote) -> OwnNote | None:
        for folder in self._folders:
            try:
                if is_local(folder):
                    return OwnNote(folder, _placed(note))
            except OSError:
                continue
        return None

    def _look(self, own: OwnNote, job: str) -> list[Found]:
        return look(own.folder, job, lock_origin(), own.file)

    def _wait(self, folder: Path, file: str) -> None:
        found = wait_for(folder, file, lock_origin())
        if found is not None and found.verdict == "ended":
            self._disk.calls.put(self._tell, [found])


def _placed(note: MachineNote) -> MachineNote:
    return replace(note, where=lock_origin())


def _turn(seat: NotedSeat) -> tuple[int, int]:
    return (seat.instance, seat.round)
