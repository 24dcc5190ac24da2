"""The page, as it was built from `frontend/` (`make page`)."""

from __future__ import annotations

from pathlib import Path

from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.transport.http_model import HttpResponse

FOLDER = Path(__file__).parent / "page"
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}


def read_page(folder: Path = FOLDER) -> dict[str, HttpResponse]:
    """What is answered at each path. For a lane of `runtime.disk`: it reads files."""
    answers = {
        f"/{name}": HttpResponse(
            (folder / name).read_bytes(), content_type=content_type, headers=SAFE_HEADERS
        )
        for name, content_type in TYPES.items()
    }
    return {**answers, "/": answers["/index.html"]}
