"""Lightning: a module with a metric, under its Trainer with the strategy "ddp".

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/stacks/train_lightning.py --folder out

Lightning sees the launcher's variables and starts no processes of its own. A restarted group
goes on from the last checkpoint, which is made at the end of an epoch.
"""

# ruff: noqa: I001
import stepping  # First: it notes when the program began.

import argparse
import hashlib
import os

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        inputs, labels = batch
        scores = self.network(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        self.accuracy(scores, labels)
        self.log("loss", loss, prog_bar=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Watch(Callback):
    """Tells of every step."""

    first_step = 0

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.first_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs: object,
        batch: object,
        number: int,
    ) -> None:
        stepping.stepped()


def make_data(samples: int = 256) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(samples, 16, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(dim=1))


def digest(model: nn.Module) -> str:
    """The parameters, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=1, help="epochs; 0 for no checkpoints")
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    lightning.seed_everything(0)
    module, watch = Classifier(), Watch()
    callbacks: list[Callback] = [watch]
    if options.save_every:
        callbacks.append(
            ModelCheckpoint(options.folder, save_last=True, every_n_epochs=options.save_every)
        )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=options.epochs,
        callbacks=callbacks,
        enable_checkpointing=bool(options.save_every),
        default_root_dir=options.folder,
        logger=False,
    )
    loader = DataLoader(make_data(), batch_size=16, shuffle=True)
    trainer.fit(module, loader, ckpt_path="last" if options.save_every else None)
    steps = trainer.global_step
    stepping.finished(digest(module.network), first_step=watch.first_step, steps=steps)


if __name__ == "__main__":
    stepping.begin()
    main()
