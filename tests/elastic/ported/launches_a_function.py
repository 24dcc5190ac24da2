"""`elastic_launch` as in the documentation: a function, a command, and a failure."""

import os
import sys

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch, launch_agent


def train(greeting):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
    return greeting, [os.environ[name] for name in names]


def fails(text):
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    return text


def fails_at_first():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("not yet")
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def config(**settings):
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="documented",
        role="trainer",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.05,
        **settings,
    )


def main():
    print(sorted(elastic_launch(config(start_method="fork"), train)("hello").items()))
    values = elastic_launch(config(start_method="fork", max_restarts=1), fails_at_first)()
    print(sorted(values.items()))
    try:
        elastic_launch(config(start_method="fork", max_restarts=0), fails)("no luck")
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(error.name, rank, failure.local_rank, failure.exitcode, sorted(error.failures))
        print(failure.message["message"] if isinstance(failure.message, dict) else failure.message)
        print("no luck" in str(error))
    logs = DefaultLogsSpecs(log_dir=sys.argv[1], redirects=Std.ALL)
    script = "import os; print('rank', os.environ['RANK'], 'of', '${local_rank}')"
    print(launch_agent(config(logs_specs=logs), sys.executable, ["-c", script]))
    for folder, _, files in sorted(os.walk(sys.argv[1])):
        for name in sorted(files):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                print(os.path.join(*folder.split(os.sep)[-2:], name), file.read().split())


if __name__ == "__main__":
    main()
