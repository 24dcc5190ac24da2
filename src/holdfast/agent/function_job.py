"""The agent process of a `holdfast.launch`: `python -m holdfast.agent.function_job FOLDER FD`."""

from __future__ import annotations

import os
import shutil
import sys

from holdfast.processes.spawner_process import fill_standard_streams, start_spawner
from holdfast.runtime.failing import status_of


def main(folder: str, lifeline: int) -> int:
    """Run the job that the folder describes; end it when the lifeline's other end closes."""
    fill_standard_streams()
    os.set_inheritable(lifeline, False)  # It is ours, not the workers'.
    spawner = start_spawner(zygote=True)
    import msgspec

    from holdfast.agent.agent import Agent
    from holdfast.agent.launch import CONFIG, OUTCOME
    from holdfast.core.node_io import LauncherLost
    from holdfast.core.policy.config import JobConfig
    from holdfast.processes.commands import how_to_start
    from holdfast.processes.stdlib_only import linux
    from holdfast.runtime.loop import EventLoop

    with open(os.path.join(folder, CONFIG), "rb") as file:
        config = msgspec.json.decode(file.read(), type=JobConfig)
    loop = EventLoop(linux.boot_timer())
    agent = Agent(config, loop, print_report=False)  # The caller raises it.
    lost = []

    def on_lifeline() -> None:
        loop.remove_reader(lifeline)
        lost.append(True)
        agent.post(LauncherLost())

    loop.add_reader(lifeline, on_lifeline)
    outcome = agent.run(spawner, how_to_start(config))
    if lost:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        with open(os.path.join(folder, OUTCOME), "wb") as result:
            result.write(msgspec.json.encode((outcome, str(agent.logs.journal or ""))))
    return outcome.exit_status


if __name__ == "__main__":
    os._exit(status_of(lambda: main(sys.argv[1], int(sys.argv[2]))))
