"""Where a spawner's process begins: `python -I -S spawner_entry.py FD [INTERPRETER]`.

With an interpreter it starts a zygote first, before the imports of the spawner itself: the
two start side by side, and the agent is not ready before them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.workers import spawner, zygote_process
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import zygote_process

if __name__ == "__main__":
    # Else every worker would hold it too, and the agent would not see the spawner's end by it.
    os.set_inheritable(int(sys.argv[1]), False)
    zygote = zygote_process.start(sys.argv[2]) if len(sys.argv) > 2 else None
    if not TYPE_CHECKING:
        import spawner
    spawner.main(int(sys.argv[1]), zygote)
