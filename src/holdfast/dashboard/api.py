"""What a page asks besides the stream, and what it wants done."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from holdfast.core.policy.sentences import between
from holdfast.core.policy.stacks import (
    StackGroup,
    WorkerStack,
    grouped,
    without_own_frames,
)
from holdfast.core.protocol.bounds import Count, NameOrNone
from holdfast.core.protocol.requests import (
    DrainWanted,
    JobRequest,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StacksAsked,
    StacksTold,
    StopWanted,
)
from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.dashboard.logs import read_logs
from holdfast.dashboard.ranks import parse_ranks
from holdfast.dashboard.source import AwaitedResponse, Source
from holdfast.dashboard.wire import StackGroupShown
from holdfast.runtime.loop import Clock
from holdfast.transport.http_model import (
    JSON,
    HttpReply,
    HttpResponse,
    PageRequest,
    Route,
    text_response,
)

BY = "the dashboard"
COMMAND_MOST = 4 << 10


Action = Literal["drain", "save", "scale", "restart", "stop"]
ACTIONS: tuple[Action, ...] = get_args(Action)


class Command(Struct, frozen=True):
    """What a page wants of the job."""

    action: Action
    node: NameOrNone = ""
    """Which is to be drained."""
    least: Count = 0
    most: Count = 0
    """How many nodes there are to be."""


_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_encode = msgspec.json.Encoder().encode


def answer(data: object) -> HttpResponse:
    return HttpResponse(_encode(data), content_type=JSON, headers=SAFE_HEADERS)


class PageApi:
    """Answers single requests of pages."""

    def __init__(self, clock: Clock, source: Source) -> None:
        self._source = source
        self.routes = {
            "/api/logs": Route(get=partial(read_logs, clock, source)),
            "/api/stacks": Route(get=self._stacks),
            "/api/actions": Route(post=self._act, body_most=COMMAND_MOST),
        }

    def _stacks(self, request: PageRequest, reply: HttpReply) -> None:
        ranks = parse_ranks(request.query.get("ranks", ""))
        if ranks is None:
            reply(text_response(400, "write ranks as numbers: 3, or 0-7, or 1,4,8-11"))
            return
        asked = StacksAsked("somebody asked in the dashboard")
        self._source.ask(asked, AwaitedResponse(partial(_give_stacks, ranks, reply)), of="all")

    def _act(self, request: PageRequest, reply: HttpReply) -> None:
        try:
            command = _read_command(request.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            reply(text_response(400, "unknown command"))
            return
        wanted, words = _request_of(command)
        pending = AwaitedResponse(partial(_say_what_came, words, reply))
        if isinstance(wanted, DrainWanted):
            self._source.ask(wanted, pending, of="some", nodes=[command.node])
        else:
            self._source.ask(wanted, pending)


def _read_command(body: bytes) -> Command:
    """Raises `ValueError` where it is none."""
    command = _commands.decode(body)
    if command.action == "drain" and not command.node:
        raise ValueError("no node")
    if command.action == "scale" and not 1 <= command.least <= command.most:
        raise ValueError("no number of nodes")
    return command


def _request_of(command: Command) -> tuple[JobRequest, str]:
    """What is asked of the job, and what is said when that is under way."""
    match command.action:
        case "drain":
            return DrainWanted(BY), f"{command.node} was asked to leave"
        case "save":
            return SaveWanted(BY), "all workers are asked to save"
        case "scale":
            words = f"the job has {between(command.least, command.most)} from now on"
            return ScaleWanted(command.least, command.most, BY), words
        case "restart":
            return RestartWanted(BY), "the round ends, and the next one begins"
        case "stop":
            return StopWanted(BY), "the job is being ended"


def _say_what_came(words: str, reply: HttpReply, answers: AwaitedResponse) -> None:
    if answers.problem:
        reply(text_response(409, answers.problem))
    else:
        reply(answer({"words": words}))


def _give_stacks(ranks: frozenset[int], reply: HttpReply, answers: AwaitedResponse) -> None:
    if answers.problem:
        reply(text_response(503, answers.problem))
        return
    stacks = [
        WorkerStack(one.rank, node, one.frames, one.kernel)
        for node, told in answers.by_node.items()
        if isinstance(told, StacksTold)
        for one in told.stacks
        if not ranks or one.rank in ranks
    ]
    words = "" if stacks else "no worker of these ranks gave a stack"
    if answers.missing:
        words = f"these nodes did not answer: {', '.join(answers.missing[:8])}"
    groups = sorted(grouped(stacks), key=lambda group: len(group.stacks))
    reply(answer({"groups": [_group(one) for one in groups], "words": words}))


def _group(group: StackGroup) -> StackGroupShown:
    ranks = [one.rank for one in group.stacks]
    return StackGroupShown(ranks, group.location.in_words(len(ranks) == 1), _text(group.stacks[0]))


def _text(stack: WorkerStack) -> str:
    """The stack of the first of them, as Python prints one: the innermost last."""
    lines = [
        f'  File "{frame.file}", line {frame.line}, in {frame.function}'
        for frame in reversed(stack.frames)
    ]
    own = without_own_frames("\n".join(lines))
    return f"rank {stack.rank} on {stack.node}:\n{own}"
