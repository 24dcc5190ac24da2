"""Where a spawner's process begins: `python -I -S spawner_entry.py FD [INTERPRETER | guarded]`.

With an interpreter it starts a zygote first, before the imports of the spawner itself: the
two start side by side, and the agent is not ready before them. With `guarded` it goes on below a
guardian, and has nothing open that it was not given.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.processes.spawner import spawner, zygote_process
    from holdfast.processes.stdlib_only import linux
else:
    HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "stdlib_only")]
    import zygote_process

if __name__ == "__main__":
    number = int(sys.argv[1])
    # Else every worker would hold it too, and the agent would not see the spawner's end by it.
    os.set_inheritable(number, False)
    zygote = None
    guarded = sys.argv[2:] == ["guarded"]
    if sys.argv[2:] and not guarded:
        zygote = zygote_process.start(sys.argv[2])
    if not TYPE_CHECKING:
        import linux
        import spawner
    if guarded:
        linux.close_all_but(number)
    spawner.main(number, zygote, guarded=guarded)
