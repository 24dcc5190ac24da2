"""What workers say they have imported, collected until they pause for breath.

Imports come in bursts, of all workers at once. What is new is told in one go, when nothing has
come for a while: an agent that acted on each would begin again and again. Whether a module is
installed is looked up on the disk, in a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.node_io import ImportsLearned
from holdfast.processes.output.log_files import Lane
from holdfast.runtime.loop import Cancellable, Loop

QUIET_S = 0.5
LONGEST_NAME = 200
MOST = 4000
"""Names of modules and of variables that are kept, whatever workers say."""


class ImportsSeen:
    """Takes what is said by any worker; `post` gets what is new."""

    def __init__(
        self,
        loop: Loop,
        lane: Lane,
        post: Callable[[ImportsLearned], None],
        is_installed: Callable[[str], bool],
    ) -> None:
        self._loop = loop
        self._lane = lane
        self._post = post
        self._is_installed = is_installed
        self._known: set[str] = set()
        self._modules: list[str] = []
        self._under: dict[str, tuple[str, ...]] = {}
        self._timer: Cancellable | None = None
        self._closed = False

    def take(self, module: object, changed: object) -> None:
        """A worker has imported it, after it had changed these variables (names, with commas)."""
        if not isinstance(module, str) or not module or len(module) > LONGEST_NAME:
            return
        if module in self._known or len(self._known) >= MOST:
            return
        self._known.add(module)
        look = partial(self._is_installed, module)
        self._lane.do(look, lambda found: self._add(module, changed) if found else None)

    def take_too_early(self, module: object, changed: object) -> None:
        """A worker has changed a variable that this one has used, which was imported ahead."""
        if isinstance(module, str) and isinstance(changed, str) and not self._closed:
            self._post(ImportsLearned((), too_early={module: (changed,)}))

    def _add(self, module: str, changed: object) -> None:
        if self._closed:
            return
        self._modules.append(module)
        if isinstance(changed, str) and changed:
            self._under[module] = tuple(changed.split(","))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(QUIET_S, self._tell)

    def _tell(self) -> None:
        learned = ImportsLearned(tuple(self._modules), self._under)
        self._modules, self._under, self._timer = [], {}, None
        self._post(learned)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
