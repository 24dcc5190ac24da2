"""A program that computes with NumPy: seeds, and more than one thread."""

import json
import multiprocessing
import os
import random
import tempfile
import uuid

import numpy as np
import numpy.random  # which is loaded only when it is asked for


def seeded_random_numbers() -> object:
    random.seed(7)
    np.random.seed(7)
    return [
        random.random(),
        np.random.rand(3).tolist(),
        np.random.default_rng(7).random(3).tolist(),
    ]


def kind_of_random_state() -> object:
    state = np.random.get_state(legacy=False)
    return [state["bit_generator"], len(state["state"]["key"])]


def parallel_operations() -> object:
    left = np.arange(600 * 600, dtype=np.float64).reshape(600, 600) % 7
    product = left @ left.T
    return [product.sum(), product[3, 5], np.linalg.matrix_rank(left)]


def threads_in_use() -> object:
    return len(os.listdir("/proc/self/task"))


OBSERVATIONS = [seeded_random_numbers, kind_of_random_state, parallel_operations, threads_in_use]


if __name__ == "__main__":
    drawn: list[float | str] = [random.random(), np.random.rand(), np.random.default_rng().random()]
    drawn += [str(uuid.uuid1()), str(uuid.uuid4()), tempfile.mktemp()]
    drawn.append(multiprocessing.current_process().authkey.hex())
    saw = {look.__name__: look() for look in OBSERVATIONS}
    with open(f"{os.environ['SAW']}.{os.environ.get('RANK', '0')}", "w") as _file:
        json.dump({**saw, "drawn": drawn}, _file, default=float)
