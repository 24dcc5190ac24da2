"""To be preloaded: a node that imports this is not ready before a file `gate` is there."""

import os
import time

gate = os.path.join(os.path.dirname(os.environ["BENCH_REPORTS"]), "gate")
while not os.path.exists(gate):
    time.sleep(0.05)
