"""The first attempt steps until one of its workers is killed; the next reduces once and ends."""

# isort: off
import stamp  # First: it notes when the program began.
import os
import time

import torch
import torch.distributed as distributed

STEP_S = 0.005

distributed.init_process_group("gloo")
value = torch.ones(1)
distributed.all_reduce(value)
assert value.item() == distributed.get_world_size(), "the sum is wrong"
stamp.report()
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(STEP_S)
    distributed.all_reduce(torch.ones(1))
distributed.destroy_process_group()
