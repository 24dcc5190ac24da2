"""Which CPUs each process is bound to, where that is wished for.

The wish is PyTorch's `NumaOptions` (any object with its fields), or the name of the mode alone.
What the modes mean, and what they need, is in `processes.host.numa`.
"""

from __future__ import annotations

import logging
import os
from typing import Any

logger = logging.getLogger(__name__)


def processor_sets(options: Any, nprocs: int) -> list[tuple[int, ...] | None]:
    """The CPUs of each local rank; None: any.

    Raises `RuntimeError` where it cannot be done, unless the options say to go on without.
    """
    if options is None:
        return [None] * nprocs
    from holdfast.core.protocol.errors import UsageError
    from holdfast.processes.host import numa

    mode = getattr(options, "affinity_mode", options)
    binding = str(getattr(mode, "value", mode))
    try:
        return list(numa.plan(binding, nprocs, devices=numa.cuda_devices(os.environ)))
    except UsageError as error:
        words = f"{error}; {error.hint}".replace("--numa-binding", "numa_options")
        if not getattr(options, "should_fall_back_if_binding_fails", False):
            raise RuntimeError(words) from error
        logger.warning("the processes run on any CPU, as the options allow: %s", words)
        return [None] * nprocs
