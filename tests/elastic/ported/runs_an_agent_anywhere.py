"""`LocalElasticAgent.run()` in the main thread, in another, and where an event loop runs."""

import asyncio
import concurrent.futures
import os
import threading

import meeting
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs


def work(value):
    return value * (int(os.environ["RANK"]) + 1)


COMMAND = ("sh", ("-c", "test $WORLD_SIZE = 2"))


def agent(entrypoint=work, args=(10,), start_method="fork", **settings):
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        rdzv_handler=meeting.OneNode(),
        entrypoint=entrypoint,
        args=args,
        monitor_interval=0.05,
        **settings,
    )
    return LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method=start_method)


def told(result):
    return result.state.name, sorted(result.return_values.items()), result.is_failed()


async def in_a_loop():
    loop = asyncio.get_running_loop()
    print("in a coroutine", told(agent().run()))
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.001)

    beating = asyncio.create_task(beat())
    with concurrent.futures.ThreadPoolExecutor() as pool:
        print("in an executor", told(await loop.run_in_executor(pool, agent(*COMMAND).run)))
    print("the loop went on", beats > 1)
    beating.cancel()


def main():
    print("in the main thread", told(agent().run()))
    results = []
    shipped = agent(start_method="spawn")
    thread = threading.Thread(target=lambda: results.append(told(shipped.run())))
    thread.start()
    thread.join()
    print("in a thread", results)
    asyncio.run(in_a_loop())
    several = [agent(*COMMAND) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        print("three at once", [told(one) for one in pool.map(lambda one: one.run(), several)])
    failing = agent("sh", ("-c", "test $RANK = 1 || exit 3; exec sleep 60"), max_restarts=1)
    result = failing.run()
    print(result.state == WorkerState.FAILED, {r: f.exitcode for r, f in result.failures.items()})
    print(failing._remaining_restarts, failing.get_worker_group().state.name)


if __name__ == "__main__":
    main()
