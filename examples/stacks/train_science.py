"""The scientific stack: pandas, scikit-learn, hydra, TensorBoard and matplotlib around PyTorch.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/stacks/train_science.py folder=out

Rank 0 writes events for TensorBoard and a figure. There are no checkpoints: a restarted group
begins again.
"""

# ruff: noqa: I001
import stepping  # First: it notes when the program began.

import hashlib
from pathlib import Path

import hydra
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

DEFAULTS = {
    "steps": 60,
    "folder": ".",
    "learning_rate": 1e-2,
    "hydra": {"run": {"dir": "${folder}"}, "output_subdir": None},
}
ConfigStore.instance().store(name="config", node=DEFAULTS)


def make_table(rows: int = 512) -> pd.DataFrame:
    numbers = np.random.default_rng(7)
    table = pd.DataFrame(numbers.normal(5, 3, (rows, 8)), columns=list("abcdefgh"))
    table["target"] = np.sin(table["a"] / 3) + table["b"] * table["c"] / 50
    return table


def make_data() -> tuple[TensorDataset, TensorDataset]:
    """The rows to train with and those to test with, scaled by the first."""
    train, test = train_test_split(make_table(), test_size=0.25, random_state=0)
    scaler = StandardScaler().fit(train)
    training, testing = (
        TensorDataset(torch.tensor(values[:, :-1]).float(), torch.tensor(values[:, -1:]).float())
        for values in (scaler.transform(train), scaler.transform(test))
    )
    return training, testing


def train(config: DictConfig, model: nn.Module, data: TensorDataset) -> list[float]:
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=config.learning_rate)
    writer = SummaryWriter(config.folder) if dist.get_rank() == 0 else None
    losses: list[float] = []
    while len(losses) < config.steps:
        sampler.set_epoch(len(losses) // len(loader))
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(parallel(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if writer:
                writer.add_scalar("loss", losses[-1], len(losses))
            stepping.stepped()
            if len(losses) == config.steps:
                break
    if writer:
        writer.close()
    return losses


def plot(losses: list[float], folder: str) -> None:
    figure, axes = plt.subplots()
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="loss")
    figure.savefig(Path(folder, "loss.png"))


def digest(model: nn.Module) -> str:
    """The parameters, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


@hydra.main(version_base=None, config_name="config")
def main(config: DictConfig) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    training, testing = make_data()
    losses = train(config, model, training)
    inputs, targets = testing.tensors
    test_loss = nn.functional.mse_loss(model(inputs), targets).item()
    if dist.get_rank() == 0:
        plot(losses, config.folder)
    stepping.finished(digest(model), first_step=0, steps=len(losses), test_loss=test_loss)
    dist.barrier()  # Else gloo may still hold the last step's work when its group is torn down.
    dist.destroy_process_group()


if __name__ == "__main__":
    stepping.begin()
    main()
