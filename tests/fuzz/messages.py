"""Everything that a node may say, said to a running coordinator in ways that no node would."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from holdfast.core.protocol.messages import FromNode, NodeGreeted
from holdfast.transport.frames import ProtocolError

from .attacker import Attacker
from .corpus import Attack, Corpus, kind_of
from .jobs import JOB, HonestJob
from .shapes import Shapes

SECONDS_A_JOB = 30.0
NODES = ("@self", "@self", "@self", "@host", "@peer", "somebody")
KNOWN: dict[type, tuple[Any, ...]] = {
    int: (0, 1, 1, 1, 2, 3, 8, 15, 80, 20_000),
    str: (*NODES, "127.0.0.1", "default", "it is late", "rack1/node2"),
}

Fuzz = Callable[[Random, Path, Corpus], int]


def fuzz_messages(is_full: bool) -> Fuzz:
    """For some seconds, one attack after the other on one job. Returns how many were made."""

    def fuzz(random: Random, folder: Path, corpus: Corpus) -> int:
        words = ("--nnodes", "2" if is_full else "2:4")
        job = HonestJob(folder, *words, is_full=is_full)
        made = 0
        try:
            until = time.monotonic() + SECONDS_A_JOB
            while time.monotonic() < until and not job.has_ended():
                attack = draw(random)
                answer = carry_out(attack, job, made)
                corpus.keep(kind_of(attack, answer), attack)
                job.check()
                made += 1
            job.end()
        except BaseException:
            print(f"at attack {made}: {attack!r}"[:4000])
            raise
        finally:
            job.kill()
        return made

    return fuzz


def draw(random: Random) -> Attack:
    shapes = Shapes(random, KNOWN)
    shapes.wildness = random.choice((0.0, 0.01, 0.04, 0.15))
    count = random.choice((1, 1, 2, 5, 20))
    messages = tuple(shapes.of(FromNode) for _ in range(count))
    return Attack(random.choice(NODES), random.random() < 0.6, messages)


def carry_out(attack: Attack, job: HonestJob, number: int) -> str:
    """Say it all. Returns what came of it: why it was refused, or how many were taken."""
    own = f"attacker-{number}"
    names = {**job.names, "@self": own}
    try:
        attacker = Attacker(job.endpoint, JOB, names.get(attack.node, attack.node))
    except (OSError, ProtocolError) as error:
        return f"not let in: {type(error).__name__} {error}"
    try:
        if attack.greets:
            attacker.say(_greeting(names, attack.node))
        for payload in attack.payloads(names):
            attacker.say(payload)
            attacker.hear()
    except OSError:
        return attacker.why_refused() or "hung up"
    finally:
        attacker.close()
    return attacker.refusal or "taken"


def _greeting(names: dict[str, str], node: str) -> bytes:
    name = names.get(node, node)
    info = {"node": name, "host": "elsewhere", "slots": 1}
    endpoint = {"address": "127.0.0.1", "port": 20_000}
    greeting = {"type": NodeGreeted.__name__, "info": info, "endpoint": endpoint, "heartbeat": 1}
    return Attack(node, False, (greeting,)).payloads(names)[0]
