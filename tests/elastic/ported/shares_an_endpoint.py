"""Several jobs that meet at one endpoint: one that stays, and others beside it, one by one."""

import multiprocessing
import os
import sys
import time

from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

CONTEXT = multiprocessing.get_context("fork")


def work(folder):
    run = os.environ["TORCHELASTIC_RUN_ID"]
    started = os.path.join(folder, f"{run}.{os.environ['RANK']}")
    open(started, "w").close()
    while run == "stays" and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.05)
    return run, os.environ["WORLD_SIZE"]


def agent(run, port, folder, results):
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        run_id=run,
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        start_method="fork",
        monitor_interval=0.05,
    )
    results.put(sorted(elastic_launch(config, work)(folder).items()))


def start(run, port, folder, results):
    agents = [CONTEXT.Process(target=agent, args=(run, port, folder, results)) for _ in range(2)]
    for one in agents:
        one.start()
    return agents


def finish(agents, results):
    values = [results.get(timeout=120) for _ in agents]
    for one in agents:
        one.join(60)
    print(sorted(values), [one.exitcode for one in agents])


def main(folder):
    port, results = get_free_port(), {run: CONTEXT.Queue() for run in ("stays", "quick", "next")}
    stays = start("stays", port, folder, results["stays"])
    while not all(os.path.exists(os.path.join(folder, f"stays.{rank}")) for rank in range(2)):
        time.sleep(0.05)
    for run in ("quick", "next"):
        finish(start(run, port, folder, results[run]), results[run])
    print([one.is_alive() for one in stays])
    open(os.path.join(folder, "go"), "w").close()
    finish(stays, results["stays"])


if __name__ == "__main__":
    main(sys.argv[1])
