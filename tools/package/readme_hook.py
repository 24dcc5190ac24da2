"""The README for an index page: its relative links become links to the repository.

Run by hatchling at each build (`[tool.hatch.metadata.hooks.custom]` in pyproject.toml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<words>(?P<image>!?)\[[^][]*\]\()(?P<to>(?![a-z]+:|#)[^)\s]+)\)")


def absolute(readme: str, source: str) -> str:
    """The text with links that do not depend on where it is shown."""

    def link(found: re.Match[str]) -> str:
        view = "raw" if found["image"] else "blob"
        return f"{found['words']}{source}/{view}/main/{found['to']})"

    parts = FENCE.split(readme)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


class ReadmeHook(MetadataHookInterface):
    """Hatchling finds this class by its base."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(readme, metadata["urls"]["Source"]),
        }
