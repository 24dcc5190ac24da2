"""The zygote: a process with the heavy imports done, from which workers are forked.

Rules
1. Disposable. It is started with the workers' environment as far as that does not depend
   on the rank, it never runs the user's own code, and when a module turns out to be unfit
   for preloading it says so and is replaced by one that leaves that module out.
2. A module is unfit if importing it here is not what it is in a worker: if it raises, asks
   for what only a worker has (its rank, its arguments), needs a module that the program has
   a file for, or warns about the line that imports it; or if it leaves behind what workers
   would share or lose: a thread, a child, an open file or device, another working directory.
3. Single-threaded when it forks. Workers are forked twice, so that the spawner becomes
   their parent, and start to run only after the spawner has been told of them.
4. What importing printed, it prints once in every worker, as it would have without us.

It is started as a script (`python -u zygote.py FD`) with the very interpreter and
flags that a cold worker would get, so that what it forks into cannot be told apart from
one. All that is done here is to find our modules: what is defined in `__main__` would keep
the program's own objects alive, since it is in their place. The work is in
`zygote_server.py`, what makes a module unfit in `fitness.py`, and the child's part of the
story in `run_as_main.py`.
"""

from __future__ import annotations

import os
import socket
import sys

if not sys.flags.safe_path:
    del sys.path[0]  # The folder of this file, with symbolic links resolved.
sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))
import holdfast.processes  # noqa: F401  (From here, whatever else is on the path.)

del sys.path[0]
from holdfast.processes.stdlib_only import wire  # noqa: E402
from holdfast.processes.zygote import run_as_main, zygote_server  # noqa: E402

run_as_main.leave_sys_modules()

if __name__ == "__main__":
    order = zygote_server.ZygoteServer(
        wire.PrivateConnection(socket.socket(fileno=int(sys.argv[1])))
    ).serve()
    if order is not None:
        run_as_main.run(order)
