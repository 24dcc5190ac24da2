"""Asks the job for as long as somebody watches, and tells the pages.

Rules
1. While nobody watches, nothing is asked, and no timer runs.
2. A question is asked again when its answers are there, and not before `interval_s`: a large job is
   asked less often, so that its coordinator has time for other things.
3. However many watch, the job is asked once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.core.protocol.questions import JobAsked, JobTold, NodeOverview
from holdfast.dashboard import views
from holdfast.dashboard.shown import Shown, Watcher
from holdfast.dashboard.source import Answers, Source
from holdfast.dashboard.wire import message
from holdfast.runtime.loop import Cancellable, Clock

LEAST_INTERVAL_S = 0.5
NODES_A_SECOND = 500
"""So many are asked by all pages of one agent together."""
RETRY_S = 1.0


def interval_s(nodes: int) -> float:
    return max(LEAST_INTERVAL_S, nodes / NODES_A_SECOND)
