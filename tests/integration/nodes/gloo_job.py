"""Training with PyTorch, over gloo: see `training.py`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from training import train


class GlooGroup:
    """PyTorch's group of processes."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")

    def add_up(self, *values: int) -> list[int]:
        brought = torch.tensor(values)
        dist.all_reduce(brought)
        sums: list[int] = brought.tolist()
        return sums

    def leave(self) -> None:
        dist.barrier()  # Else gloo may still hold the last step's work when its group goes.
        dist.destroy_process_group()


if __name__ == "__main__":
    train(GlooGroup)
