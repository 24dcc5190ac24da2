"""Hugging Face: a tiny GPT-2, made from its configuration, under the Trainer.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/stacks/train_huggingface.py \
        --folder out

Nothing is downloaded. A restarted group goes on from the Trainer's last checkpoint.
"""

# ruff: noqa: I001
import stepping  # First: it notes when the program began.

import argparse
import hashlib
import os

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY = 64
LENGTH = 32


class Watch(TrainerCallback):
    """Tells of every step."""

    first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        self.first_step = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        stepping.stepped()


def make_data(samples: int = 256) -> Dataset:
    """Sequences that count upward from somewhere, which a model can learn."""
    starts = np.random.default_rng(7).integers(0, VOCABULARY, samples)
    tokens = [[int(start + place) % VOCABULARY for place in range(LENGTH)] for start in starts]
    data = Dataset.from_dict({"input_ids": tokens})
    return data.map(lambda row: {"labels": row["input_ids"]}).with_format("torch")


def digest(model: torch.nn.Module) -> str:
    """The parameters, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5, help="0 for no checkpoints")
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    arguments = TrainingArguments(
        output_dir=options.folder,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_strategy="steps" if options.save_every else "no",
        save_steps=options.save_every or 1,
        save_total_limit=2,
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        seed=0,
    )
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    watch = Watch()
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=make_data(),
        data_collator=default_data_collator,
        callbacks=[watch],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.folder))
    found = digest(trainer.accelerator.unwrap_model(trainer.model))
    stepping.finished(found, first_step=watch.first_step, steps=trainer.state.global_step)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    stepping.begin()
    main()
