"""A register of your own: all that a job needs of a store is two calls.

This one keeps the document in a SQLite file, so it serves jobs whose nodes are processes of
one machine. Exchange the three statements for those of a database that all machines reach,
and a job on many machines survives the loss of any of them.

Register it by name, in the process that launches:

    from holdfast.registers.opening import register_backend
    register_backend("sqlite", SqliteRegister)

or let your package offer it, and `holdfast run --rdzv-backend sqlite --rdzv-endpoint PATH …`
finds it wherever the package is installed; in its pyproject.toml:

    [project.entry-points."holdfast.registers"]
    sqlite = "own_register:SqliteRegister"

What to keep in mind
- The agent calls it from one thread at a time, not always from the thread that made it.
- A comparison and its set must be one step *of the store*. A read followed by a write is not.
- A token must never mean two versions, not even after the document was removed.
- Where you do not know whether a write happened, raise `RegisterUnreachable`. The agent reads
  until it does know. Raise `RegisterRefused` for what will not change by asking again.
- Limit every call by `settings.call_timeout_s`. Connect at the first call, not before.
- Holdfast's contract suite (tests/contract) runs over this class like over its own registers.

    python examples/own_register.py
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable

SCHEMA = "CREATE TABLE IF NOT EXISTS documents (run TEXT PRIMARY KEY, version INTEGER, state BLOB)"
READ = "SELECT state, version FROM documents WHERE run = ?"
FIRST = "INSERT INTO documents VALUES (?, 1, ?) ON CONFLICT DO NOTHING"
NEXT = "UPDATE documents SET state = ?, version = version + 1 WHERE run = ? AND version = ?"


class SqliteRegister:
    """The document is a row. The token is its version, which only grows."""

    def __init__(self, settings: RegisterSettings) -> None:
        self._settings = settings
        self._connection: sqlite3.Connection | None = None

    def get_state(self) -> tuple[bytes, int] | None:
        """The document and its token; None where nothing was ever written."""
        with self._database() as database:
            found: tuple[bytes, int] | None
            found = database.execute(READ, (self._settings.run_id,)).fetchone()
            return found

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int | None, bool]:
        """Set it if `token` is still right: what is there then, its token, whether it was set."""
        run = self._settings.run_id
        with self._database() as database, database:  # The second one commits, or rolls back.
            database.execute("BEGIN IMMEDIATE")
            if token is None:
                done = database.execute(FIRST, (run, state))
            else:
                done = database.execute(NEXT, (state, run, token))
            found = database.execute(READ, (run,)).fetchone()
        if found is None:
            return b"", None, False
        # A write that is tried again, because its answer was lost, finds itself: every state
        # is unique, so the same one means that it was ours.
        return found[0], found[1], done.rowcount == 1 or found[0] == state

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The open database, whose problems become those of a register."""
        try:
            yield self._opened()
        except sqlite3.OperationalError as error:  # Locked for too long, disk full, no such folder
            raise RegisterUnreachable(f"{self._settings.endpoint}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise RegisterRefused(f"{self._settings.endpoint}: {error}") from None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(
                self._settings.endpoint,
                timeout=self._settings.call_timeout_s,
                isolation_level=None,  # Transactions begin where we say so.
                check_same_thread=False,
            )
            self._connection.execute("PRAGMA journal_mode = WAL")  # Who reads stops no writer.
            self._connection.execute(SCHEMA)
        return self._connection


def main() -> None:
    """Two nodes want to lead. Both have read the same version; one of them gets it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        settings = RegisterSettings("sqlite", f"{folder}/registers.sqlite", "my-job")
        first, second = SqliteRegister(settings), SqliteRegister(settings)
        _, token, _ = first.set_state(b"nobody leads")
        print("first: ", first.set_state(b"the first leads", token))
        print("second:", second.set_state(b"the second leads", token))
        first.close()
        second.close()


if __name__ == "__main__":
    main()
