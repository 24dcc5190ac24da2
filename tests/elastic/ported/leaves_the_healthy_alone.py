"""An agent that asks how its workers are without ending those that are well."""

import os
import sys
import time

import builds_on_the_simple_agent as own
from torch.distributed.elastic.agent.server.api import WorkerState


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def next_state(agent, now):
    deadline = time.monotonic() + 60
    while (result := agent._monitor_workers(agent.get_worker_group())).state == now:
        assert time.monotonic() < deadline, f"it stays {now.name}"
        time.sleep(0.02)
    print(result.state.name, {rank: one.exitcode for rank, one in result.failures.items()})


def main(folder):
    own.register()
    told = os.path.join(folder, "told")
    script = f"test $RANK = 0 && exit 3; until test -e {told}; do sleep 0.02; done; exit 4"
    agent = own.launched(("-c", script), max_restarts=0)
    agent._initialize_workers(agent.get_worker_group())
    next_state(agent, WorkerState.HEALTHY)
    print("of the healthy there run", sum(map(runs, agent._pcontext.pids().values())))
    with open(told, "w", encoding="utf-8"):
        pass
    next_state(agent, WorkerState.UNHEALTHY)
    agent._shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
