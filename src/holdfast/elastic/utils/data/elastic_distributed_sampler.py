"""A sampler that goes on where an earlier attempt stopped. Importing this needs PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

__all__ = ["ElasticDistributedSampler"]


class ElasticDistributedSampler(DistributedSampler[Any]):
    """Deals the part of a dataset from `start_index` on to `num_replicas` ranks.

    It is shuffled by the epoch alone, so that every rank sees the same order. Each rank gets
    equally many: some are dealt again, from the beginning, where it does not come out even.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        start_index: int = 0,
    ) -> None:
        super().__init__(dataset=dataset, num_replicas=num_replicas, rank=rank)
        if not isinstance(dataset, Sized):
            raise TypeError("a dataset needs a length to be divided among ranks")
        if not 0 <= start_index < len(dataset):
            raise ValueError(
                f"start_index {start_index} is not in a dataset of {len(dataset)} entries"
            )
        self.start_index = start_index
        self._remaining = len(dataset) - start_index
        self.num_samples = math.ceil(self._remaining / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        order = torch.randperm(self._remaining, generator=generator) + self.start_index
        dealt = islice(cycle(order.tolist()), self.rank, self.total_size, self.num_replicas)
        return iter(list(dealt))

    def __len__(self) -> int:
        return self.num_samples
