"""A job's report as one file: the dashboard's page with its data inside. It fetches nothing.

Rules
1. What came out of a journal is data: no character of it can end the element in which it stands.
2. The file's policy lets nothing run but the page's script, by its hash, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import re

from holdfast.dashboard.pages import OpenPage
from holdfast.dashboard.site import FOLDER
from holdfast.dashboard.views import static_page
from holdfast.observe.job_report import JobReport


def report_file(told: JobReport) -> str:
    """The whole file. `frontend/src/main.tsx` finds the data in it."""
    page, script, style = (
        (FOLDER / name).read_text("utf-8") for name in ("index.html", "page.js", "page.css")
    )
    script = script.replace("</script", "<\\/script")
    # As the page hears it from a server. A "<" is in texts only, where it may be written like this.
    data = OpenPage().news(static_page(told)).decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f"""<meta http-equiv="Content-Security-Policy" content="{policy}" />
    <style>{style}</style>
    <script type="text/plain" id="told">{data}</script>"""
    page = re.sub(r"\s*<(?:script|link)\b[^>]*\./page\.[^>]*>(?:</script>)?", "", page)
    page = page.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />\n    {head}')
    return page.replace("</body>", f'  <script type="module">{script}</script>\n  </body>')


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
