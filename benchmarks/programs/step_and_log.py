"""Form a gloo group, reduce once, say so; then step until the end and log every step."""

# isort: off
import stamp  # First: it notes when the program began.
import time

import torch
import torch.distributed as distributed

STEP_S = 0.005

distributed.init_process_group("gloo")
value = torch.ones(1)
distributed.all_reduce(value)
assert value.item() == distributed.get_world_size(), "the sum is wrong"
log = stamp.open_step_log()
stamp.log_step(log)
stamp.report()
while True:
    time.sleep(STEP_S)
    distributed.all_reduce(torch.ones(1))
    stamp.log_step(log)
