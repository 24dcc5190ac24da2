"""Training that goes on where it was: DistributedDataParallel, a checkpoint, and a resume.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/quickstart.py

It runs on processors or GPUs, and under torchrun as well. Everything that Holdfast adds is marked.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast

SAVE_EVERY = 20
Batch = tuple[torch.Tensor, ...]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    asked = parser.parse_args()

    device = own_device()
    # Whichever of gloo and NCCL fits the device; where the others are is in the environment.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(asked.steps, asked.checkpoint, device)
    # Here, where the model is gone: one that outlives its group may hang in PyTorch at the end.
    dist.destroy_process_group()


def train(steps: int, checkpoint: Path, device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    training = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = load(checkpoint, model, optimizer, device)
    say(f"begins at step {done}")
    batches = forever(data(), done)
    for step in range(done, steps):
        inputs, targets = (part.to(device) for part in next(batches))
        loss = nn.functional.mse_loss(training(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        holdfast.progress(step)  # Holdfast: this step is done.
        drain = holdfast.draining(step)  # Holdfast: does a machine have to leave? Then save now.
        if drain or (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            save(checkpoint, step + 1, model, optimizer)
            say(f"step {step + 1}, loss {loss.item():.4f}, saved")
        if drain:
            drain.saved()


def own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def data() -> DataLoader[Batch]:
    """A thousand points of a curve; each rank sees its share of them."""
    points = torch.rand(1000, 8, generator=torch.Generator().manual_seed(0))
    curve = TensorDataset(points, points.square().sum(dim=1, keepdim=True))
    return DataLoader(curve, batch_size=16, sampler=DistributedSampler(curve, seed=0))


def forever(loader: DataLoader[Batch], done: int) -> Iterator[Batch]:
    """Batches from step `done` on, epoch after epoch, in the order that they would have had."""
    assert isinstance(loader.sampler, DistributedSampler)
    epoch, skipped = divmod(done, len(loader))
    while True:
        loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number >= skipped:
                yield batch
        epoch, skipped = epoch + 1, 0


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Go on from the checkpoint, if there is one; how many steps are done."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step: int = saved["step"]
    return step


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Rank 0 writes, to another name first: whoever is killed here leaves the old one whole."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        # With the round in its name, no two attempts ever write to the same file.
        unfinished = path.with_suffix(f".{os.environ.get('HOLDFAST_ROUND', '0')}.part")
        torch.save(state, unfinished)
        unfinished.replace(path)
    dist.barrier()  # Nobody goes on before it is there.


def say(words: str) -> None:
    if dist.get_rank() == 0:
        print(words, flush=True)


if __name__ == "__main__":
    main()
