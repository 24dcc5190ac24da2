"""A launcher script for either API: only where it imports from differs, and the backend's name.

    through_either_api.py MODULES LAUNCHER BACKEND FACE FUNCTION START_METHOD PORT WORKERS

MODULES and LAUNCHER are what comes before the names of modules, `torch.distributed.elastic` and
`torch.distributed.launcher` for one. FACE is `elastic_launch` or `LocalElasticAgent`. How long
the imports took, and then the call, is written to `times` beside the pipe for reports. The
process of the caller has torch imported before the call if the function returns a tensor.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import entry_functions

WORKERS = int(sys.argv[-1]) if __name__ == "__main__" else 0


def launch(launcher: Any, backend: str, function: Any, method: str, place: str) -> dict[int, Any]:
    config = launcher.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=WORKERS,
        run_id="bench",
        rdzv_endpoint=place,
        rdzv_backend=backend,
        max_restarts=1,
        start_method=method,
    )
    values: dict[int, Any] = launcher.elastic_launch(config, function)()
    return values


def run_agent(modules: str, backend: str, function: Any, method: str, place: str) -> dict[int, Any]:
    server = import_module(f"{modules}.agent.server")
    rendezvous = import_module(f"{modules}.rendezvous")
    registry = import_module(f"{modules}.rendezvous.registry")
    logs = import_module(f"{modules}.multiprocessing")
    local = import_module(f"{modules}.agent.server.local_elastic_agent")
    parameters = rendezvous.RendezvousParameters(backend, place, "bench", 1, 1)
    handler = registry.get_rendezvous_handler(parameters)
    spec = server.WorkerSpec(
        role="trainer",
        local_world_size=WORKERS,
        entrypoint=function,
        rdzv_handler=handler,
        max_restarts=1,
    )
    agent = local.LocalElasticAgent(spec, logs.DefaultLogsSpecs(), start_method=method)
    values: dict[int, Any] = agent.run().return_values
    handler.shutdown()
    return values


def check(values: dict[int, Any], name: str) -> None:
    assert sorted(values) == list(range(WORKERS)), values
    for rank, value in values.items():
        if name.startswith("tensor"):
            assert tuple(value.shape) == (100, 100), value
            assert float(value[99, 99]) == rank, value
        else:
            assert value == rank, values


def main() -> None:
    modules, launcher, backend, face, name, method, port, _ = sys.argv[1:]
    begun = time.monotonic()
    launching = import_module(f"{launcher}.api")
    import_module(f"{modules}.agent.server.local_elastic_agent")
    imported_s = time.monotonic() - begun
    if name.startswith("tensor"):
        import_module("torch")
    function, place = getattr(entry_functions, name), f"127.0.0.1:{port}"
    begun = time.monotonic()
    if face == "elastic_launch":
        values = launch(launching, backend, function, method, place)
    else:
        values = run_agent(modules, backend, function, method, place)
    called_s = time.monotonic() - begun
    check(values, name)
    Path(os.environ["BENCH_REPORTS"]).with_name("times").write_text(f"{imported_s} {called_s}")


if __name__ == "__main__":
    main()
