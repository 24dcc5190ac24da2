"""Where a spawner's process begins: `python -I -S spawner_entry.py FD [INTERPRETER | guarded]`.

With an interpreter it starts a zygote first, before the imports of the spawner itself: the
two start side by side, and the agent is not ready before them. With `guarded` it goes on below a
guardian, and has nothing open that it was not given.
"""

from __future__ import annotations

import os
import sys

SOURCE = os.path.abspath(f"{__file__}/../../../..")

if __name__ == "__main__":
    number = int(sys.argv[1])
    # Else every worker would hold it too, and the agent would not see the spawner's end by it.
    os.set_inheritable(number, False)
    sys.path.append(SOURCE)
    zygote = None
    guarded = sys.argv[2:] == ["guarded"]
    if sys.argv[2:] and not guarded:
        from holdfast.processes.spawner import zygote_process

        zygote = zygote_process.start(sys.argv[2])
    from holdfast.processes.spawner import spawner
    from holdfast.processes.stdlib_only import linux

    if guarded:
        linux.close_all_but(number)
    spawner.main(number, zygote, guarded=guarded)
