"""Journals that somebody chose or dropped onto the page.

The page sends files as they are, in pieces; what they tell is told here, as of those on this disk.

Rules
1. A journal's files are known by their first line, which is the same in all of them, and put in
   order by their steps: names do not matter, and those of several nodes are often the same.
2. All are of one job. What is no journal is named, in a sentence, and nothing is shown.
3. The files of one drop are kept until they are opened, or until the next one begins. Of what was
   opened the last few are kept (`site.STORIES_KEPT`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct, field

from holdfast.core.protocol.errors import UsageError
from holdfast.dashboard.api import answer
from holdfast.dashboard.page_state import PageState
from holdfast.dashboard.static import static_page
from holdfast.observe.causes import JournalRead
from holdfast.observe.job_report import report
from holdfast.observe.journal import read_parts
from holdfast.observe.journal_file import LIMIT_BYTES
from holdfast.transport.http_model import HttpReply, PageRequest, Route, text_response

PIECE_MOST = 4 << 20
FILES_MOST = 10_000
BYTES_MOST = 2 * LIMIT_BYTES
NAME_MOST = 200
_UPLOAD_ID = re.compile("[a-z0-9]{4,32}")


class UploadedFile(Struct):
    name: str
    data: bytearray = field(default_factory=bytearray)


class _Numbered(Struct):
    seq: int


class Uploads:
    """Takes pieces of files; opens them when all are there."""

    def __init__(self, show: Callable[[str, PageState], None]) -> None:
        """`show` is given the name of a drop, and its story."""
        self._show = show
        self._upload = ""
        self._files: dict[int, UploadedFile] = {}
        self._bytes = 0
        self.routes = {"/api/journals": Route(post=self._take, body_most=PIECE_MOST)}

    def _take(self, request: PageRequest, reply: HttpReply) -> None:
        upload, number = request.query.get("drop", ""), request.query.get("file", "")
        if not _UPLOAD_ID.fullmatch(upload) or not (number.isdecimal() or not number):
            reply(text_response(400, "that is no file of this page"))
            return
        if upload != self._upload:
            self._forget()
            self._upload = upload
        if number:
            self._keep(int(number), request, reply)
        else:
            self._open(reply)

    def _keep(self, number: int, request: PageRequest, reply: HttpReply) -> None:
        if self._bytes + len(request.body) > BYTES_MOST or number >= FILES_MOST:
            self._forget()
            most = f"{FILES_MOST:,} files, {BYTES_MOST >> 20} MB together"
            reply(
                text_response(413, f"that is too much for this page ({most}): use holdfast report")
            )
            return
        name = request.query.get("name", "")[:NAME_MOST] or f"file {number + 1}"
        self._files.setdefault(number, UploadedFile(name)).data += request.body
        self._bytes += len(request.body)
        reply(answer({}))

    def _open(self, reply: HttpReply) -> None:
        upload, files = self._upload, list(self._files.values())
        self._forget()
        try:
            self._show(upload, static_page(report(journals_of(files))))
        except UsageError as error:
            reply(
                text_response(
                    422, f"{error.message}: {error.hint}" if error.hint else error.message
                )
            )
            return
        reply(answer({"story": upload}))

    def _forget(self) -> None:
        self._files, self._bytes, self._upload = {}, 0, ""


def journals_of(files: Iterable[UploadedFile]) -> list[JournalRead]:
    """The journals of one job. Raises `UsageError` where they are none, or of several jobs."""
    parts: dict[bytes, dict[bytes, str]] = {}
    for file in files:
        data = bytes(file.data)
        parts.setdefault(data.partition(b"\n")[0], {})[data] = file.name
    found: list[JournalRead] = []
    for same in parts.values():
        ordered = sorted(same, key=_first_number)
        found.append(read_parts(same[ordered[0]], ordered))
    if not found:
        raise UsageError("no journal is among them", "a job's log folder has a journal.jsonl")
    if len(jobs := sorted({header.job for header, _ in found})) > 1:
        raise UsageError(f"these are journals of several jobs ({', '.join(jobs)})", "take one's")
    return found


def _first_number(data: bytes) -> int:
    """Of the first step in a file; what cannot be read comes first, and is complained about."""
    second = data.split(b"\n", 2)[1:2]
    try:
        return msgspec.json.decode(second[0], type=_Numbered).seq if second else 0
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
