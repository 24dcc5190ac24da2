"""JAX: data-parallel training over one process per worker, which meet where the launcher says.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/stacks/train_jax.py
    python examples/stacks/train_jax.py

JAX's own coordinator listens on MASTER_ADDR:MASTER_PORT, in rank 0. There are no checkpoints: a
restarted group begins again.
"""

# ruff: noqa: I001
import stepping  # First: it notes when the program began.

import argparse
import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
BATCH = 64


def meet() -> None:
    """Make one group of all processes, if there are several."""
    if WORLD_SIZE > 1:
        # Else JAX catches SIGTERM, and the launcher has to wait until it may kill.
        jax.config.update("jax_enable_preemption_service", False)
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, WORLD_SIZE, RANK)


def make_data(samples: int = 512) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(7)
    inputs = numbers.standard_normal((samples, 16), dtype=np.float32)
    targets = np.tanh(inputs @ numbers.standard_normal((16, 1), dtype=np.float32))
    return inputs, targets


def initial_parameters() -> dict[str, jax.Array]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "into": jax.random.normal(first, (16, 64)) / 4,
        "bias": jnp.zeros(64),
        "out": jax.random.normal(second, (64, 1)) / 8,
    }


def loss(parameters: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(inputs @ parameters["into"] + parameters["bias"])
    return jnp.mean((hidden @ parameters["out"] - targets) ** 2)


@jax.jit
def update(
    parameters: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array
) -> dict[str, jax.Array]:
    gradients = jax.grad(loss)(parameters, inputs, targets)
    updated: dict[str, jax.Array] = jax.tree.map(
        lambda value, slope: value - 0.05 * slope, parameters, gradients
    )
    return updated


def train(steps: int) -> dict[str, jax.Array]:
    mesh = Mesh(np.array(jax.devices()), ("worker",))
    split = NamedSharding(mesh, PartitionSpec("worker"))
    inputs, targets = make_data()
    parameters: dict[str, jax.Array] = jax.device_put(
        initial_parameters(), NamedSharding(mesh, PartitionSpec())
    )
    for step in range(steps):
        # Each worker brings its own part of the batch; together they are one array.
        begin = step * BATCH % len(inputs) + RANK * BATCH // WORLD_SIZE
        own = slice(begin, begin + BATCH // WORLD_SIZE)
        batch = [
            jax.make_array_from_process_local_data(split, part[own]) for part in (inputs, targets)
        ]
        parameters = jax.block_until_ready(update(parameters, *batch))
        stepping.stepped()
    return parameters


def digest(parameters: dict[str, jax.Array]) -> str:
    """The parameters, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(parameters.items()):
        found.update(name.encode() + np.asarray(value).tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    meet()
    parameters = train(options.steps)
    stepping.finished(digest(parameters), first_step=0, steps=options.steps)


if __name__ == "__main__":
    stepping.begin()
    main()
