"""The record of an embedded coordinator as a file, read and written beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.model import Endpoint
from holdfast.registers.job_record import JobRecord
from holdfast.runtime.disk import Disk
from holdfast.runtime.private_folder import own_folder

RECORD_WAITS = "the running round goes on; new decisions of the coordinator wait for it"


class RecordFile:
    """Of one job, on the host of its endpoint."""

    def __init__(self, config: JobConfig, disk: Disk, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._folder = Path(config.snapshot_dir) if config.snapshot_dir else own_folder()
        self._lane = partial(disk.lane, "record", str(self._folder), RECORD_WAITS)
        self._record: JobRecord | None = None

    def read(self, then: Callable[[Document | None], None]) -> None:
        def on_read(found: tuple[JobRecord, Document | None]) -> None:
            self._record, written = found
            if self._record.unbelieved:
                self._say(f"going on without the record: {self._record.unbelieved}")
            then(written)

        self._lane().do(self._open, on_read)

    def _open(self) -> tuple[JobRecord, Document | None]:
        """What an earlier coordinator of this job left. Waits for the disk."""
        # Other jobs on this machine may have the same name, but not the same port.
        port = Endpoint.parse(self._config.rendezvous.endpoint).port
        record = JobRecord(self._folder, f"{port}-{self._config.run_id}")
        return record, record.read(self._config.timeouts.join_s)

    def write(self, document: Document, then: Callable[[str], None]) -> None:
        self._lane().do(partial(_written, self._opened, document), then)

    def touch(self) -> None:
        self._lane().do(self._opened.touch)

    def remove(self) -> None:
        self._lane().do(self._opened.remove)

    @property
    def _opened(self) -> JobRecord:
        assert self._record is not None, "it is read before it is written"
        return self._record


def _written(record: JobRecord, document: Document) -> str:
    """What went wrong, in words; empty if it is written."""
    record.write(document)
    return record.problem
