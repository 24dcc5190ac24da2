"""A register in a folder on a shared disk, for clusters that have nothing but NFS.

Rules
1. A version of the document is a file that is created exclusively (`link` of a file that is
   written to its end), never replaced. Of all who write over version n one gets n+1.
2. The document is the highest version. An old version is removed only by somebody who saw one
   that is `KEPT_VERSIONS` higher, so the highest is never removed, and never falls.
3. A writer's set counts when a listing made after its link shows no version `KEPT_VERSIONS`
   above its own, and the life that it wrote for. Anything else is unclear, and said to be.
4. A folder has one life from its making to its end, named by a file `life.<name>`; versions
   carry that name. What belongs to no life, or to another, is nothing.
5. A document that is too old is forgotten by the next agent that begins with it: by a last version
   that is empty, then by removing its life, then the rest. Only the clock of the file server is
   asked how old something is.
6. The folder that the user named is never made here: where the disk is not mounted, a folder
   of the same name would be a second register.

How it is safe. Versions grow by one, each from a version that its writer had read, so the
writer that holds version n and finds that n+1 was never created is the one that follows n: the
file server creates a name once. What could break this is n+1 created, removed as old (rule 2), and
created again by a writer that slept. But then a version n+1+KEPT_VERSIONS or higher is there for
ever after, and the sleeper, who lists the folder after its link, sees it and claims nothing; its
file is below the highest, where nobody reads, and is removed as old. The listing is newer than
the link for certain, not by the grace of a cache or a clock: between the two the writer gives
its temporary file a new name, and a listing without that name is not accepted.

The same run id may be used again after its document was forgotten, with versions that start
at 1: then a sleeper's version 7 is not the new version 7, since the names differ by their life.
A life begins by renaming a folder, prepared with its first version, to the run's name, which
the server refuses while that folder holds anything. It ends by the empty version, which is set
like any other and so never over a write that somebody has just made; nobody writes after it.
Every name in the folder is used once, so that removing leftovers by name, however late, can
only hit what is dead.

A read lists the folder and reads the highest version. NFS asks the server when a folder is
opened (unless mounted with `nocto`), and a listing that is old all the same gives an old
document, with which no set succeeds. The export must be `sync`, which is the default: a server
that forgets what it acknowledged takes every register with it. A change cannot be waited for,
since NFS tells nobody. A disk that hangs makes the call hang: nothing here can prevent it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable

KEPT_VERSIONS = 64
LEFTOVER_AGE_S = 60.0
"""By the file server's clock: older temporary files are of a writer that died, or slept."""
LONGEST_CONTENT = 1 << 20
"""Of a version: far more than a document has. What is longer is not one, and is not taken in."""
_READS = 8
"""Listings that may be outrun by writers, or be old, before it is called unreachable."""
_FORGOTTEN = b""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.ELOOP,
            errno.ENAMETOOLONG)  # fmt: skip


class SharedFileRegister:
    """The document of one run in a folder that every machine sees. The token is a version."""

    def __init__(self, settings: RegisterSettings) -> None:
        self._root = settings.endpoint
        self._folder = os.path.join(settings.endpoint, _folder_name(settings.run_id))
        self._keep_s = settings.keep_s
        self._was_served = False
        self._is_age_known = False

    def get_state(self) -> tuple[bytes, str] | None:
        with self._problems_in_words():
            found = self._read()
            if found is None or self._is_age_known:
                return found
            self._is_age_known = True
            with suppress(FileNotFoundError):  # Others forgot it meanwhile, or went on.
                if self._has_expired(found[1]):
                    self._forget(found[1])
            return self._read()

    def set_state(self, state: bytes, token: str | None = None) -> tuple[bytes, str | None, bool]:
        """As `Register` says; where nothing is, that is `(b"", None, False)`."""
        if not state:
            raise ValueError("an empty document means that there is none")
        with self._problems_in_words():
            found = self.get_state()
            if token is not None:
                return self._follow(state, token, found)
            if found is None:
                return self._begin(state)
            return *found, found[0] == state

    def forget_after(self, seconds: float) -> None:
        with self._problems_in_words():
            found = self._read()
            if found is not None:
                with suppress(FileExistsError):
                    self._create(self._path(f"forget.{found[1]}"), repr(float(seconds)).encode())

    # --- reading --------------------------------------------------------------------------

    def _read(self) -> tuple[bytes, str] | None:
        """The highest version of the folder's life; None where it has none, or it is over."""
        for _ in range(_READS):
            versions = _versions(self._entries())
            if not versions:
                return None
            with suppress(FileNotFoundError):  # It became old since it was listed.
                content = self._content(versions[-1])
                return None if content == _FORGOTTEN else (content, versions[-1])
        raise RegisterUnreachable(f"{self._folder} changes faster than it can be read")

    def _entries(self) -> set[str]:
        """The names in the folder; none if it is not there, as long as its place is."""
        try:
            entries = set(os.listdir(self._folder))
        except FileNotFoundError:
            os.listdir(self._root)  # Its place has to be there.
            entries = set()
        return entries

    def _content(self, name: str) -> bytes:
        try:
            with open(self._path(name), "rb") as file:
                return file.read(LONGEST_CONTENT)
        except OSError as error:
            if error.errno == errno.ESTALE:  # Removed on the server under our hands.
                raise FileNotFoundError(errno.ENOENT, "it is gone") from None
            raise

    def _content_or_none(self, name: str) -> bytes | None:
        try:
            return self._content(name)
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    # --- writing --------------------------------------------------------------------------

    def _follow(
        self, state: bytes, token: str, found: tuple[bytes, str] | None
    ) -> tuple[bytes, str | None, bool]:
        """Create the version after `token`, and see whether it counts.

        One that is there already is ours if its content is: a reply was lost, to an earlier call
        or between this machine and the server.
        """
        version = _next(token)
        if found and _is_over(token, found[1]) and self._content_or_none(version) != state:
            return *found, False
        unique = _unique()
        draft, linked = self._path(f"new.{unique}"), self._path(f"linked.{unique}")
        try:
            self._create(draft, state)
            os.link(draft, self._path(version))
        except FileExistsError:
            if self._content_or_none(version) != state:
                _remove(draft)
                return self._not_set()
        except FileNotFoundError:  # The folder went, or somebody took this writer for dead.
            return self._not_set()
        os.rename(draft, linked)
        try:
            self._confirm(version, os.path.basename(linked))
        finally:
            _remove(linked)
        return state, version, True

    def _not_set(self) -> tuple[bytes, str | None, bool]:
        found = self._read()
        return (b"", None, False) if found is None else (*found, False)

    def _confirm(self, version: str, proof: str) -> None:
        """Raise `RegisterUnreachable` unless nobody can have had this version before us."""
        for _ in range(_READS):
            entries = self._entries()
            if proof in entries:
                break
        else:
            raise RegisterUnreachable(f"{self._folder} is listed as it was, not as it is")
        versions = _versions(entries)
        if version not in versions or _number(versions[-1]) >= _number(version) + KEPT_VERSIONS:
            _remove(self._path(version))  # It is old, or of a life that is over.
            raise RegisterUnreachable(f"{self._folder} went on without this writer")
        self._is_age_known = True
        self._sweep(version, entries)

    def _begin(self, state: bytes) -> tuple[bytes, str | None, bool]:
        """Begin a life whose first version is `state`, unless another began."""
        life = _unique()
        version = _version(life, 1)
        draft = os.path.join(self._root, f"new.{life}")
        os.mkdir(draft, 0o700)
        self._create(os.path.join(draft, version), state)
        self._create(os.path.join(draft, f"life.{life}"), b"")
        self._bury()
        try:
            os.rename(draft, self._folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
        if f"life.{life}" in self._entries():
            self._is_age_known = True
            self._sweep_drafts()
            return state, version, True
        _remove_folder(draft)
        found = self._read()
        if found is None:
            raise RegisterUnreachable(f"{self._folder} could neither be made nor be read")
        return *found, False

    def _create(self, path: str, content: bytes) -> None:
        """A new file, on the disk to its end before anybody is shown it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- forgetting -----------------------------------------------------------------------

    def _has_expired(self, version: str) -> bool:
        """Whether the document was written or marked longer ago than it is to be kept."""
        now = self._server_time()
        if now - os.stat(self._path(version)).st_mtime > self._keep_s:
            return True
        mark = f"forget.{version}"
        kept_s = self._content_or_none(mark)
        if not kept_s:
            return False
        return now - os.stat(self._path(mark)).st_mtime >= float(kept_s)

    def _server_time(self) -> float:
        """The time of day at the file server: that of a file made just now."""
        path = self._path(f"now.{_unique()}")
        self._create(path, b"")
        try:
            return os.stat(path).st_mtime
        finally:
            _remove(path)

    def _forget(self, version: str) -> None:
        """End the life of the document, unless somebody has just written it again."""
        draft = self._path(f"new.{_unique()}")
        self._create(draft, _FORGOTTEN)
        with suppress(FileExistsError):
            os.link(draft, self._path(_next(version)))
        _remove(draft)
        if self._read() is None:
            self._bury()

    def _bury(self) -> None:
        """Remove what is left of a life that is over: its name first, so nothing of it counts."""
        entries = self._entries()
        if versions := _versions(entries):
            if self._content_or_none(versions[-1]) != _FORGOTTEN:
                return
            _remove(self._path(f"life.{versions[-1].rpartition('.')[0]}"))
        for name in entries:
            _remove(self._path(name))
        with suppress(OSError):
            os.rmdir(self._folder)

    def _sweep(self, version: str, entries: set[str]) -> None:
        """Remove versions that are old by rule 2, and sometimes what dead writers left."""
        for name in _versions(entries):
            if _number(name) + KEPT_VERSIONS <= _number(version):
                _remove(self._path(name))
        if _number(version) % KEPT_VERSIONS == 0:
            limit = os.stat(self._path(version)).st_mtime - LEFTOVER_AGE_S
            for name in entries:
                if name.partition(".")[0] in ("new", "linked", "now", "forget"):
                    _remove_if_older(self._path(name), limit)

    def _sweep_drafts(self) -> None:
        """Remove folders that were prepared by writers that died."""
        limit = self._server_time() - LEFTOVER_AGE_S
        for name in os.listdir(self._root):
            path = os.path.join(self._root, name)
            with suppress(FileNotFoundError, NotADirectoryError):
                if name.startswith("new.") and os.stat(path).st_mtime < limit:
                    _remove_folder(path)

    # --- problems -------------------------------------------------------------------------

    @contextmanager
    def _problems_in_words(self) -> Iterator[None]:
        """Translate errors of the disk into those of a register.

        A folder that was never any good will not become so; one that was may come back.
        """
        try:
            if not self._was_served:
                _check_access(self._root)
            yield
            self._was_served = True
        except OSError as error:
            reason = f"the folder {self._root} cannot be used: {error.strerror}"
            if error.errno in _REFUSED and not self._was_served:
                raise RegisterRefused(reason) from None
            raise RegisterUnreachable(reason) from None


def _folder_name(run_id: str) -> str:
    """A name for the run's folder that no other run has, and that every file system takes."""
    name = f"run.{quote(run_id, safe='')}"
    if len(name) <= 200:
        return name
    from hashlib import sha256

    return f"{name[:150]}.{sha256(run_id.encode()).hexdigest()}"


def _check_access(folder: str) -> None:
    """Find out before the first read, not at the first write, that nothing can be written."""
    os.listdir(folder)
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unique() -> str:
    return os.urandom(12).hex()


def _version(life: str, number: int) -> str:
    return f"{life}.{number:012d}"


def _next(version: str) -> str:
    life, _, number = version.rpartition(".")
    return _version(life, int(number) + 1)


def _number(version: str) -> int:
    return int(version.rpartition(".")[2])


def _is_over(version: str, seen: str) -> bool:
    """Whether a version is older than one that was seen.

    One seen that is older proves nothing but an old listing.
    """
    return seen.partition(".")[0] != version.partition(".")[0] or seen > version


def _versions(entries: set[str]) -> list[str]:
    """The versions of the folder's life, the highest last."""
    lives = {name.removeprefix("life.") for name in entries if name.startswith("life.")}
    return sorted(name for name in entries if name.partition(".")[0] in lives)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _remove_if_older(path: str, limit: float) -> None:
    with suppress(FileNotFoundError):
        if os.stat(path).st_mtime < limit:
            os.unlink(path)


def _remove_folder(path: str) -> None:
    """Remove a prepared folder, its life first: without it the rest is nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(path), key=lambda name: not name.startswith("life.")):
            _remove(os.path.join(path, name))
        os.rmdir(path)
