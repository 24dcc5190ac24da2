"""A DDP job that knows what must come of it: `make soak` harms it, and it checks itself.

All that it adds up are whole numbers below 2**53, kept as doubles: sums of these are exact, in
whatever order and on however many ranks. So a step that was lost, or done twice, or done on a stale
copy of parameters or of the optimizer's state, is seen at the end, however small it was.

Each step has the same samples on any number of ranks, shared out among them. The gradient is their
sum (gradients are added up, not averaged), the optimizer's momentum is 1, and so is its rate: its
buffer is the sum of all gradients so far, and the parameters are the sum of all buffers.

    holdfast run … added_up.py FOLDER

It goes on until FOLDER has a file called `enough`, and resumes from the checkpoint in FOLDER.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

STEP_S = 0.05
"""What a step would take on an accelerator: here nothing else is to be slow."""
SAVE_EVERY = 2
SIZE = 64
SAMPLES = 12
LARGEST = 7


def samples(step: int) -> torch.Tensor:
    """Of one step, alike everywhere: whole numbers, for which only their places matter."""
    places = torch.arange(SAMPLES * SIZE, dtype=torch.int64).reshape(SAMPLES, SIZE)
    mixed = (places * 2654435761 + step * 40503) ^ (step * 97)
    return (mixed % (2 * LARGEST + 1) - LARGEST).to(torch.float64)


class Sum(torch.nn.Module):
    """Its gradient is the sum of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return (given * self.weights).sum()


def expected(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The optimizer's buffer and the parameters after so many undisturbed steps."""
    buffer = torch.zeros(SIZE, dtype=torch.float64)
    weights = torch.zeros(SIZE, dtype=torch.float64)
    for step in range(steps):
        buffer += samples(step).sum(0)
        weights -= buffer
    return buffer, weights


def added_up(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    added: torch.futures.Future[torch.Tensor] = work.get_future().then(first)
    return added


def first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]


def save(file: str, **state: object) -> None:
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Sum())
    model.register_comm_hook(None, added_up)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=1.0)
    file, enough, step = f"{folder}/checkpoint", f"{folder}/enough", 0
    if os.path.exists(file):
        kept = torch.load(file, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    is_over = torch.zeros(1)
    while not is_over.item():
        optimizer.zero_grad()
        model(samples(step)[rank::size]).backward()
        optimizer.step()
        time.sleep(STEP_S)
        step += 1
        holdfast.progress(step)
        if step % SAVE_EVERY == 0:
            if rank == 0:
                save(
                    file,
                    step=step,
                    model=model.module.state_dict(),
                    optimizer=optimizer.state_dict(),
                )
                is_over.fill_(os.path.exists(enough))
            dist.broadcast(is_over, 0)
    check(step, model.module.weights, optimizer)


def check(step: int, weights: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    wanted_buffer, wanted = expected(step)
    (buffer,) = (one["momentum_buffer"] for one in optimizer.state.values())
    if not torch.equal(weights.data, wanted) or not torch.equal(buffer, wanted_buffer):
        raise ArithmeticError(f"{step:,} steps have not added up to what they must")
    print(f"{step:,} steps have added up to exactly what they must", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
