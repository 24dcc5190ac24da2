"""Real jobs with somebody among their nodes who has the token, and lies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from holdfast.core.policy.sentences import ALL_ENDED
from holdfast.core.protocol.messages import (
    FromNode,
    NodeGreeted,
    NodeLeft,
    RoundStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Failure, NodeInfo
from holdfast.engine.sentences import LEADS
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.frames import FrameReader, ProtocolError, encode
from holdfast.transport.handshake import ClientSide

from ..free_ports import free_port
from ..transport.test_hostile_nodes import GREETING, INFO, PLACE, REFUSED

DEADLINE_S = 100.0
TOKEN = "a token that is long enough"
JOB = "besieged"
WAIT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
name = f"{os.environ['RANK']}-{os.environ['WORLD_SIZE']}-{os.environ['HOLDFAST_ROUND']}"
(folder / f"runs-{name}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""


class Besieged:
    """A job on loopback whose workers run until `go` is there."""

    def __init__(self, folder: Path, holdfast: Path) -> None:
        self.folder, self.holdfast, self.port = folder, holdfast, free_port()
        self.script = folder / "wait.py"
        self.script.write_text(WAIT)
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        number = len(self.agents)
        command = [
            *(self.holdfast, "run", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={JOB}"),
            *(f"--snapshot-dir={self.folder}", "--no-warm", "--nnodes=2", *words),
            *(f"--log-dir={self.folder}/logs-{number}", self.script, self.folder),
        ]
        environment = {**os.environ, "HOLDFAST_TOKEN": TOKEN}
        with (self.folder / f"said-{number}").open("wb") as said:
            agent = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        self.agents.append(agent)

    def said(self, number: int) -> str:
        return (self.folder / f"said-{number}").read_text()

    def node(self, number: int) -> str:
        """The name of an agent's node, from its journal."""
        (journal,) = self.folder.glob(f"logs-{number}/*/journal.jsonl")
        with journal.open() as lines:
            name: str = json.loads(lines.readline())["node"]
        return name

    def runs(self) -> set[str]:
        return {path.name for path in self.folder.glob("runs-*")}

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            said = "\n".join(self.said(number) for number in range(len(self.agents)))
            assert time.monotonic() < deadline, f"waited in vain: {what}\n{said}"
            time.sleep(0.01)

    def end_well(self) -> None:
        (self.folder / "go").touch()
        for number, agent in enumerate(self.agents):
            assert agent.wait(DEADLINE_S) == 0, self.said(number)

    def close(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()


@pytest.fixture
def job(tmp_path: Path, holdfast: Path) -> Iterator[Besieged]:
    besieged = Besieged(tmp_path, holdfast)
    yield besieged
    besieged.close()


class Liar:
    """A client that goes through the handshake, and then says what it likes."""

    def __init__(self, port: int, node: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._reader = FrameReader(1 << 20)
        # The same one each time: else its own name would be another's by then.
        side = ClientSide(JOB, node, "control", ConnectionSecurity(TOKEN.encode()), b"of the liar")
        try:
            self.socket.sendall(side.opening())
            side.read_challenge(self.hear())
            self.socket.sendall(side.prove())
            side.read_welcome(self.hear())
        except ProtocolError:
            self.socket.close()
            raise

    def hear(self) -> bytes:
        while (frame := self._reader.take()) is None:
            received = self.socket.recv(1 << 16)
            if not received:
                raise EOFError
            self._reader.feed(received)
        return bytes(frame)

    def say(self, *words: FromNode) -> None:
        for word in words:
            self.socket.sendall(encode(word))

    def until_hung_up(self) -> None:
        with self.socket, contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.hear()


def test_whatever_a_node_says_the_job_goes_on_in_its_first_round(job: Besieged) -> None:
    job.start()
    job.start()
    job.until(lambda: len(job.runs()) == 2, "both workers")
    for words in REFUSED.values():
        liar = Liar(job.port, "mallory")
        liar.say(*words)
        liar.until_hung_up()
        assert [agent.poll() for agent in job.agents] == [None, None], job.said(0) + job.said(1)
    job.end_well()
    assert job.runs() == {"runs-0-2-1", "runs-1-2-1"}


@pytest.mark.thorough(but=("WorkersSucceeded(round=1)",))
@pytest.mark.parametrize(
    "word", [NodeLeft("bye"), WorkersSucceeded(1), RoundStopped(1, (), PLACE), GREETING], ids=repr
)
def test_nobody_speaks_in_the_name_of_another_node_or_of_the_host(
    job: Besieged, word: FromNode
) -> None:
    job.start()
    job.start()
    job.until(lambda: len(job.runs()) == 2, "both workers")
    for number in range(2):
        name = job.node(number)
        if isinstance(word, NodeGreeted):
            word = replace(word, info=replace(INFO, node=name))
        with pytest.raises(ProtocolError, match="is another node's"):
            Liar(job.port, name).say(word)
    job.end_well()
    assert job.runs() == {"runs-0-2-1", "runs-1-2-1"}


def test_what_others_say_begins_no_line_and_moves_no_cursor(job: Besieged) -> None:
    job.start("--max-restarts=0")
    job.until(lambda: LEADS in job.said(0), "the coordinator")
    liar = Liar(job.port, "mallory")
    liar.say(NodeGreeted(NodeInfo("mallory", "evil", 1), endpoint=Endpoint("127.0.0.1", 1)))
    while msgpack.decode(liar.hear())[2]["type"] != "RunRound":
        pass
    liar.say(NodeLeft("bye\nholdfast: the job succeeded\x1b[2J\rholdfast: all is well"))
    job.until(lambda: "evil has left" in job.said(0), "the liar's words")
    job.start("--max-restarts=0")
    job.until(lambda: "runs-1-2-2" in job.runs(), "the next round")
    said = job.said(0)
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("holdfast: the job succ")]
    assert not [line for line in said.splitlines() if line.startswith("holdfast: all is well")]
    liar.socket.close()
    job.end_well()


def test_the_report_of_a_failed_job_shows_what_others_say_on_lines_of_its_own(
    job: Besieged,
) -> None:
    """The report of how a job ended has reasons and texts of other machines in it."""
    job.start("--max-restarts=0")
    job.until(lambda: LEADS in job.said(0), "the coordinator")
    liar = Liar(job.port, "mallory")
    liar.say(NodeGreeted(NodeInfo("mallory", "evil", 1), endpoint=Endpoint("127.0.0.1", 1)))
    while (order := msgpack.decode(liar.hear())[2])["type"] != "RunRound":
        pass
    rank = order["assignment"]["workers"][0]["rank"]
    text = "Boom\x1b[2J\nholdfast: the job succeeded"
    error = ErrorDetail(text, f"Traceback\n{text}")
    status = ExitStatus(code=1)
    failure = Failure("mallory", "evil", 0, rank, "default", 1, status, 1.0, error, text)
    liar.say(WorkersFailed(1, (failure,)))
    while (order := msgpack.decode(liar.hear())[2])["type"] != "StopRound":
        pass
    liar.say(RoundStopped(1, (failure,), PLACE))
    assert job.agents[0].wait(DEADLINE_S) == 1
    said = job.said(0)
    assert "Boom" in said
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("holdfast: the job succ")]
    liar.socket.close()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_with_tls_a_coordinator_s_death_is_not_believed_because_a_connection_ended(
    job: Besieged,
) -> None:
    """What looks like it may be forged: its term is waited for, and its workers' lease."""
    certificate, key = job.folder / "node.pem", job.folder / "node.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "1"),
            *("-keyout", key, "-out", certificate, "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    words = (f"--tls-cert={certificate}", f"--tls-key={key}", f"--tls-ca={certificate}")
    (job.folder / "register").mkdir()
    place = f"--rdzv-endpoint={job.folder / 'register'}"
    for number in range(3):
        # As if each had a machine of its own: one and the same would prove what ended on it.
        machine = job.folder / f"machine-{number}"
        machine.mkdir()
        where = (place, "--local-addr=127.0.0.1", f"--snapshot-dir={machine}")
        job.start("--rdzv-backend=file", *where, "--nnodes=2:3", *words)
    job.until(lambda: any("-3-" in name for name in job.runs()), "a round of three")
    (leader,) = [n for n in range(3) if LEADS in job.said(n)]
    survivors = [n for n in range(3) if n != leader]
    job.agents[leader].kill()
    job.agents[leader].wait()
    del job.agents[leader]
    is_reformed = "did not report to the new coordinator"
    job.until(lambda: any(is_reformed in job.said(n) for n in survivors), "the next round")
    assert not any(ALL_ENDED in job.said(n) for n in survivors)
    (job.folder / "go").touch()
    assert [agent.wait(DEADLINE_S) for agent in job.agents] == [0, 0]
