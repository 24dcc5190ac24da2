"""The node's end of a tether: an orderly end means that the other node is dead, a reset nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from holdfast.transport.tether_end import TetherEnd

from .stage import Stage


class Watched:
    """The tether of a connected agent, watched as a successor watches its leader's."""

    def __init__(self, stage: Stage) -> None:
        self.agent = stage.connect("successor")
        self.gone: list[str] = []
        descriptor = os.dup(self.agent.tethers[0].fileno())
        self.end = TetherEnd(stage.loop, descriptor, lambda: self.gone.append("leader"))


def a_turn(stage: Stage) -> None:
    """Let everything come that is on its way: a heartbeat there and back on loopback."""
    stage.assert_undisturbed(stage.connect("other"))


def test_what_the_server_lets_go_of_proves_nothing(stage: Stage) -> None:
    stage.serve()
    watched = Watched(stage)
    stage.server.drop("successor")
    a_turn(stage)
    assert watched.gone == []
    watched.end.close()


def test_nor_does_the_end_of_the_whole_server(stage: Stage) -> None:
    stage.serve()
    watched = Watched(stage)
    stage.server.dismiss()
    a_turn(stage)
    assert watched.gone == []
    watched.end.close()


def test_one_that_others_hold_too_is_reset_by_the_last_of_them(stage: Stage) -> None:
    stage.serve()
    watched = Watched(stage)
    held = stage.server.share_tether("successor")
    assert held is not None
    stage.server.drop("successor")
    os.close(held)
    a_turn(stage)
    assert watched.gone == []
    watched.end.close()


SERVER = textwrap.dedent(
    """
    import sys
    from holdfast.transport.auth import OPEN
    from holdfast.transport.server import Server
    from holdfast.runtime.loop import EventLoop

    class Coordinator:
        def on_message(self, node, message): pass
        def on_lost(self, node, reason): pass
        def on_tether(self, node): print("tethered", flush=True)
        def on_tether_ended(self, node, clean): pass

    loop = EventLoop()
    server = Server(loop, "job", OPEN, Coordinator())
    server.listen(("127.0.0.1", 0))
    print(server.addresses[0].port, flush=True)
    loop.run_until(lambda: False)
    """
)


def test_the_death_of_the_process_at_the_other_end_is_told_once(stage: Stage) -> None:
    from holdfast.core.protocol.model import Endpoint

    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as far:
        assert far.stdout is not None
        port = int(far.stdout.readline())
        agent = stage.agent("successor")
        agent.client.dial((Endpoint("127.0.0.1", port),), 20.0)
        stage.until(lambda: agent.tethers)
        assert far.stdout.readline() == "tethered\n"
        gone: list[str] = []
        TetherEnd(stage.loop, os.dup(agent.tethers[0].fileno()), lambda: gone.append("leader"))
        far.kill()
    stage.until(lambda: gone)
    assert gone == ["leader"]


def test_a_server_that_is_closed_says_why_and_admits_again_later(stage: Stage) -> None:
    stage.serve()
    stage.server.closed_because = "this node does not carry the coordinator"
    agent = stage.agent()
    agent.client.dial((stage.endpoint,), 20.0)
    stage.until(lambda: agent.lost)
    ((reason, permanent),) = agent.lost
    assert reason.endswith("this node does not carry the coordinator")
    assert not permanent
    stage.server.closed_because = ""
    stage.connect("another")


def test_a_node_without_a_tether_has_none_to_share(stage: Stage) -> None:
    stage.serve()
    assert stage.server.share_tether("nobody") is None
