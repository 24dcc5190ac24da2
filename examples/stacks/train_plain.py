"""Plain PyTorch: data-parallel training with a data loader, a bar and checkpoints.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/stacks/train_plain.py --folder out
    torchrun     --nproc-per-node 2 --max-restarts 3 examples/stacks/train_plain.py --folder out

A restarted group goes on from the last checkpoint.
"""

# ruff: noqa: I001
import stepping  # First: it notes when the program began.

import argparse
import hashlib
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm


def make_data(samples: int = 512) -> TensorDataset:
    numbers = np.random.default_rng(7)
    inputs = numbers.standard_normal((samples, 16), dtype=np.float32)
    targets = np.tanh(inputs @ numbers.standard_normal((16, 1), dtype=np.float32))
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))


def digest(model: nn.Module) -> str:
    """The parameters, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options = options
        self.step = 0
        self.model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self.parallel = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.parallel.parameters(), lr=1e-2)
        self.checkpoint = os.path.join(options.folder, "checkpoint.pt")
        if os.path.exists(self.checkpoint):
            self.load()

    def run(self) -> None:
        data = make_data()
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
        loader = DataLoader(data, batch_size=32, sampler=sampler)
        bar = tqdm(total=self.options.steps, initial=self.step, disable=dist.get_rank() != 0)
        while self.step < self.options.steps:
            epoch, done = divmod(self.step, len(loader))
            sampler.set_epoch(epoch)
            for place, (inputs, targets) in enumerate(loader):
                if place < done:
                    continue  # This epoch has been here before, up to the checkpoint.
                loss = self.train(inputs, targets)
                bar.update()
                bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
                if self.step == self.options.steps:
                    break
        bar.close()

    def train(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.parallel(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        stepping.stepped()
        if self.options.save_every and self.step % self.options.save_every == 0:
            self.save()
        return loss.item()

    def save(self) -> None:
        if dist.get_rank() == 0:
            parts = (self.step, self.model.state_dict(), self.optimizer.state_dict())
            torch.save(parts, f"{self.checkpoint}.part")
            os.replace(f"{self.checkpoint}.part", self.checkpoint)

    def load(self) -> None:
        self.step, model, optimizer = torch.load(self.checkpoint)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10, help="0 for no checkpoints")
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()  # Else gloo may still hold the last step's work when its group is torn down.
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """In a function of its own: the model goes with it, and with the model DDP's hold on the group.

    Were that the last one, the group's threads would be waited for while this one keeps Python's
    lock, which they may need to end.
    """
    training = Training(options)
    first = training.step
    training.run()
    stepping.finished(digest(training.model), first_step=first, steps=training.step)


if __name__ == "__main__":
    stepping.begin()
    main()
