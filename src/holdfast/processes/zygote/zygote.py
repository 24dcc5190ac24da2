"""The zygote: a process with the heavy imports done, from which workers are forked.

Rules
1. Disposable. It is started with the workers' environment as far as that does not depend
   on the rank, it never runs the user's own code, and when a module turns out to be unfit
   for preloading it says so and is replaced by one that leaves that module out.
2. Single-threaded when it forks. Workers are forked twice, so that the spawner becomes
   their parent, and start to run only after the spawner has been told of them.
3. What importing printed, it prints once in every worker, as it would have without us.

It is started as a script (`python -u zygote.py FD`) with the very interpreter and
flags that a cold worker would get. All that is done here is to find our modules: what is defined in
`__main__` would keep the program's own objects alive, since it is in their place. The work is in
`zygote_server.py`, what makes a module unfit in `preloading.py`, and the child's part of the
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
    connection = wire.PrivateConnection(socket.socket(fileno=int(sys.argv[1])))
    order = zygote_server.serve(connection)
    if order is not None:
        run_as_main.run(order)
