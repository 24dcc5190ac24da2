"""A stage for stories of several nodes: hosts that start, die, fall silent and come back.

Between the commands of a story everything goes its way at once: workers start when they are
told to, and end when they are asked to (`stop=` makes them slow). What a story does not mention
does not happen.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.config import JobConfig, Program, Rendezvous, RestartPolicy, Timeouts
from holdfast.core.model import ErrorDetail, ExitStatus

from .host import KILLED, Host
from .stage import Command
from .world import Register, World


class NodesStage:
    """The world of a story, told what happens by commands."""

    def __init__(self) -> None:
        self.world = World()

    def play(self, text: str) -> list[str]:
        """Do what a command says; returns what came of it, in lines."""
        command = Command(text)
        action = COMMANDS.get(command.verb)
        if action is None:
            raise ValueError(f"no such command: {text!r}; there are {', '.join(sorted(COMMANDS))}")
        self.world.seen = []
        action(self, command)
        self.world.advance(0.0)
        return self.world.seen or ["(nothing)"]

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
        self.world.config = JobConfig(
            "story",
            Program("script", "train.py"),
            min_nodes=int(least),
            max_nodes=int(most or least),
            restarts=restarts,
            timeouts=timeouts,
        ).validate()
        if "static" in command.words:
            static = Rendezvous(backend="static")
            self.world.config = replace(
                self.world.config, rendezvous=static, master_address="a", master_port=29500
            )
        if "register" in command.words:
            self.world.register = Register()

    def start(self, command: Command) -> None:
        for name in command.words:
            host = self.world.hosts.setdefault(name, Host(self.world, name))
            host.start(command)

    def advance(self, command: Command) -> None:
        self.world.advance(float(command.words[0].removesuffix("s")))

    def kill(self, command: Command) -> None:
        """`kill worker 1 on b`, or `kill node b` with every process of it."""
        if command.words[0] == "worker":
            self.host(command).exit(int(command.words[1]), KILLED)
        else:
            self.host(command).die()

    def fail(self, command: Command) -> None:
        error = ErrorDetail(command.settings.get("error", ""))
        status = ExitStatus(code=int(command.number("code", 1)))
        self.host(command).exit(int(command.words[1]), status, error)

    def finish(self, command: Command) -> None:
        for name in command.words:
            host = self.world.hosts[name]
            for local_rank in list(host.alive):
                host.exit(local_rank, ExitStatus(code=0))

    def step(self, command: Command) -> None:
        self.world.hosts[command.words[0]].step(int(command.words[1]))

    def switch_off(self, command: Command) -> None:
        host = self.host(command)
        host.die(silently=True)
        self.world.forget_what_is_on_the_way_to(host)

    def silence(self, command: Command) -> None:
        self.host(command).cut_off = True

    def heal(self, command: Command) -> None:
        self.host(command).cut_off = False
        self.world.healed()

    def reset(self, command: Command) -> None:
        """Something on the way resets the connections: both sides are told, nobody has died."""
        host = self.host(command)
        link = host.link
        assert link is not None, f"{host.name} has no connection"
        link.hang_up()
        link.drop("the connection was reset")

    def pause(self, command: Command) -> None:
        self.host(command).pause()

    def resume(self, command: Command) -> None:
        self.host(command).resume()

    def drain(self, command: Command) -> None:
        self.host(command).signal(signal.SIGTERM)

    def close(self, command: Command) -> None:
        """`close a`, or `close and release a` where the node goes, too."""
        self.host(command).close(release="release" in command.words)

    def register(self, command: Command) -> None:
        register = self.world.register
        assert register is not None, "this story has no register"
        what = " ".join(command.words)
        if what == "loses the next reply":
            register.loses_reply = True
        else:
            register.down = what == "is down"


COMMANDS: dict[str, Callable[[NodesStage, Command], None]] = {
    "job": NodesStage.job,
    "start": NodesStage.start,
    "advance": NodesStage.advance,
    "kill": NodesStage.kill,
    "fail": NodesStage.fail,
    "finish": NodesStage.finish,
    "step": NodesStage.step,
    "switch-off": NodesStage.switch_off,
    "silence": NodesStage.silence,
    "heal": NodesStage.heal,
    "reset": NodesStage.reset,
    "pause": NodesStage.pause,
    "resume": NodesStage.resume,
    "drain": NodesStage.drain,
    "close": NodesStage.close,
    "register": NodesStage.register,
}
