"""A stage for stories of several nodes: hosts that start, die, fall silent and come back.

Between the commands of a story everything goes its way, and takes no more than a moment: workers
start when they are told to, and end when they are asked to (`stop=` makes them slow). What a story
does not mention does not happen.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace
from tools.simulator.plan import HostPlan

from holdfast.core.node_io import ClosingAsked, Released
from holdfast.core.policy.config import (
    JobConfig,
    Program,
    Quarantine,
    Rendezvous,
    RestartPolicy,
    Timeouts,
)
from holdfast.core.protocol.model import ExitStatus, Outcome

from .quiet_world import Host, World
from .stage import Command

MOMENT_S = 0.05
"""In which all that follows from a command at once has happened; less than the shortest pause
before a node dials again."""
ONE_BY_ONE_S = 0.02
"""Between two hosts that are started by one command."""


class NodesStage:
    """The world of a story, told what happens by commands."""

    def __init__(self) -> None:
        self._now = 0.0
        self._world: World | None = None

    @property
    def world(self) -> World:
        assert self._world is not None, "a story of several nodes begins with `job`"
        return self._world

    def play(self, text: str) -> list[str]:
        """Do what a command says; returns what came of it, in lines."""
        command = Command(text, COMMANDS)
        COMMANDS[command.verb](self, command)
        if command.verb not in ("job", "advance"):
            self.world.pass_time(MOMENT_S)
        seen, self.world.seen = self.world.seen, []
        return seen or ["(nothing)"]

    def host(self, command: Command) -> Host:
        return self.world.hosts[command.words[-1]]

    # Commands.

    def job(self, command: Command) -> None:
        least, _, most = command.settings["nodes"].partition(":")
        restarts = RestartPolicy(
            max_restarts=int(command.number("max_restarts", 0)),
            same_cause_limit=int(command.number("same_cause_limit", 5)),
            fruitless_rounds_limit=int(command.number("fruitless_limit", 30)),
        )
        timeouts = Timeouts(
            shutdown_s=command.number("grace", 30.0),
            join_s=command.number("join_timeout", 600.0),
        )
        config = JobConfig(
            "story",
            Program("script", "train.py"),
            min_nodes=int(least),
            max_nodes=int(most or least),
            restarts=restarts,
            quarantine=Quarantine(
                after=int(command.number("quarantine_after", 3)),
                first_s=command.number("quarantine", 300.0),
            ),
            timeouts=timeouts,
        ).validate()
        if "static" in command.words:
            static = Rendezvous(backend="static")
            config = replace(config, rendezvous=static, master_address="a", master_port=29500)
        has_register, saves = "register" in command.words, "saves" in command.words
        self._world = World(config, has_register=has_register, saves=saves)

    def start(self, command: Command) -> None:
        plan = HostPlan(
            slots=int(command.number("slots", 1)),
            role=command.settings.get("role", "default"),
            clock_offset_s=command.number("clock", 0.0),
        )
        rank = command.settings.get("rank")
        for name in command.words:
            host = self.world.hosts[name]
            host.equip(plan, None if rank is None else int(rank), command.number("stop", 0.0))
            if command.settings.get("record") == "lost":
                host.disk = None
            host.boot()
            host.start_agent()
            self.world.pass_time(ONE_BY_ONE_S)

    def advance(self, command: Command) -> None:
        """The moments that other commands have taken since the last one are part of it."""
        self._now += float(command.words[0].removesuffix("s"))
        self.world.timeline.run_until(self._now + MOMENT_S)

    def kill(self, command: Command) -> None:
        """`kill worker 1 on b`, `… with=SIGTERM`, or `kill node b` with every process of it."""
        agent = self.host(command).agent
        if command.words[0] == "worker":
            number = signal.Signals[command.settings.get("with", "SIGKILL")]
            agent.below.exit(int(command.words[1]), ExitStatus(signal=number))
        else:
            agent.die()
            agent.below.die("killed")

    def fail(self, command: Command) -> None:
        status = ExitStatus(code=int(command.number("code", 1)))
        below = self.host(command).agent.below
        below.exit(int(command.words[1]), status, command.settings.get("error", ""))

    def finish(self, command: Command) -> None:
        for name in command.words:
            self.world.hosts[name].agent.below.finish()

    def step(self, command: Command) -> None:
        self.world.hosts[command.words[0]].agent.below.step(int(command.words[1]))

    def switch_off(self, command: Command) -> None:
        self.host(command).crash()

    def silence(self, command: Command) -> None:
        for one, other in self._ways(command):
            self.world.network.cut(one, other)

    def heal(self, command: Command) -> None:
        for one, other in self._ways(command):
            self.world.network.mend(one, other)

    def _ways(self, command: Command) -> list[tuple[int, int]]:
        """To a host and from it."""
        here = self.host(command).number
        others = [machine.number for machine in self.world.machines if machine.number != here]
        return [(here, other) for other in others] + [(other, here) for other in others]

    def reset(self, command: Command) -> None:
        """Something on the way resets the connections: both sides are told, nobody has died."""
        line = self.host(command).agent.line
        connection = line.connection if line is not None else None
        assert connection is not None, "it has no connection"
        self.world.network.reset(connection)

    def pause(self, command: Command) -> None:
        self.host(command).pause_agent()

    def resume(self, command: Command) -> None:
        self.host(command).resume_agent()

    def drain(self, command: Command) -> None:
        """`drain b`, or `drain the tree of b`: its workers hear it, too, and before the agent."""
        agent = self.host(command).agent
        if "tree" in command.words:
            for worker in agent.below.running:
                agent.below.die_of(worker, signal.SIGTERM)
        agent.signal(signal.SIGTERM)

    def interrupt(self, command: Command) -> None:
        self.host(command).agent.signal(signal.SIGINT)

    def close(self, command: Command) -> None:
        """`close a`, or `close and release a` where the node goes, too."""
        host = self.host(command)
        closed = Outcome("failed", f"{host.name} has closed the job", 1)
        host.agent.post_agent(ClosingAsked(closed))
        if "release" in command.words:
            host.agent.post_agent(Released())

    def register(self, command: Command) -> None:
        register = self.world.register
        what = " ".join(command.words)
        if what == "loses the next reply":
            register.mute = 1
        else:
            register.down = int(what == "is down")


VERBS = (
    *("job", "start", "advance", "kill", "fail", "finish", "step", "switch-off", "silence", "heal"),
    *("reset", "pause", "resume", "drain", "interrupt", "close", "register"),
)
COMMANDS = {verb: getattr(NodesStage, verb.replace("-", "_")) for verb in VERBS}
