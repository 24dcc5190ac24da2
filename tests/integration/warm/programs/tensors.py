"""A program that computes with PyTorch: seeds, threads, gradients, data loaders."""

import json
import os

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, os.getppid() != 0])


def seeded_random_numbers() -> object:
    torch.manual_seed(7)
    return [torch.rand(4).tolist(), torch.randn(4).tolist(), torch.initial_seed()]


def thread_counts() -> object:
    return [torch.get_num_threads(), torch.get_num_interop_threads()]


def parallel_operations() -> object:
    left = torch.arange(512 * 512, dtype=torch.float64).reshape(512, 512) % 7
    total = (left @ left.T).sum().item(), torch.sort(left.flatten()).values.sum().item()
    return [*total, len(os.listdir("/proc/self/task")) > 1, torch.get_num_threads()]


def gradients() -> object:
    weight = torch.full((64, 64), 0.5, requires_grad=True)
    (weight @ weight).relu().sum().backward()
    assert weight.grad is not None
    return weight.grad.sum().item()


def loader_by_fork() -> object:
    return [batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, num_workers=2)]


def loader_by_spawn() -> object:
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn", shuffle=False
    )
    return [batch.tolist() for batch in loader]


OBSERVATIONS = [
    seeded_random_numbers, thread_counts, parallel_operations, gradients, loader_by_fork,
    loader_by_spawn,
]  # fmt: skip


if __name__ == "__main__":
    saw = {look.__name__: look() for look in OBSERVATIONS}
    with open(f"{os.environ['SAW']}.{os.environ.get('RANK', '0')}", "w") as _file:
        json.dump(saw, _file)
