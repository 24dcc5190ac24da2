"""Import torch, form a gloo group, reduce once, say so, end."""

# isort: off
import stamp  # First: it notes when the program began.
import torch
import torch.distributed as distributed

distributed.init_process_group("gloo")
value = torch.ones(1)
distributed.all_reduce(value)
assert value.item() == distributed.get_world_size(), "the sum is wrong"
stamp.report()
distributed.destroy_process_group()
