"""Requests of a page besides the stream, and its commands."""

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
from holdfast.core.protocol import requests
from holdfast.core.protocol.bounds import Count, NameOrNone
from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.dashboard.logs import parse_ranks, read_logs
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
    """A command of a page."""

    action: Action
    node: NameOrNone = ""
    """The one to drain."""
    least: Count = 0
    most: Count = 0
    """The wanted number of nodes."""


_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_encode = msgspec.json.Encoder().encode


def answer(data: object) -> HttpResponse:
    return HttpResponse(_encode(data), content_type=JSON, headers=SAFE_HEADERS)


def page_routes(clock: Clock, source: Source) -> dict[str, Route]:
    """The paths at which a page asks besides the stream, or gives a command."""
    return {
        "/api/logs": Route(get=partial(read_logs, clock, source)),
        "/api/stacks": Route(get=partial(_stacks, source)),
        "/api/actions": Route(post=partial(_act, source), body_most=COMMAND_MOST),
    }


def _act(source: Source, request: PageRequest, reply: HttpReply) -> None:
    try:
        command = _commands.decode(request.body)
        wanted, words = _request_of(command)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        reply(text_response(400, "unknown command"))
        return
    nodes = [command.node] if isinstance(wanted, requests.DrainWanted) else []
    pending = AwaitedResponse(partial(_say_what_came, words, reply))
    source.ask(wanted, pending, "some" if nodes else "coordinator", nodes)


def _request_of(command: Command) -> tuple[requests.JobRequest, str]:
    """The request, and the words once it is under way. `ValueError` for an incomplete command."""
    match command:
        case Command("drain", node=node) if node:
            return requests.DrainWanted(BY), f"{node} was asked to leave"
        case Command("save"):
            return requests.SaveWanted(BY), "all workers are asked to save"
        case Command("scale", least=least, most=most) if 1 <= least <= most:
            words = f"the job has {between(least, most)} from now on"
            return requests.ScaleWanted(least, most, BY), words
        case Command("restart"):
            return requests.RestartWanted(BY), "the round ends, and the next one begins"
        case Command("stop"):
            return requests.StopWanted(BY), "the job is being ended"
    raise ValueError(command.action)


def _say_what_came(words: str, reply: HttpReply, answers: AwaitedResponse) -> None:
    if answers.problem:
        reply(text_response(409, answers.problem))
    else:
        reply(answer({"words": words}))


def _stacks(source: Source, request: PageRequest, reply: HttpReply) -> None:
    ranks = parse_ranks(request.query.get("ranks", ""))
    if ranks is None:
        reply(text_response(400, "write ranks as numbers: 3, or 0-7, or 1,4,8-11"))
        return
    asked = requests.StacksAsked("somebody asked in the dashboard")
    source.ask(asked, AwaitedResponse(partial(_give_stacks, ranks, reply)), of="all")


def _give_stacks(ranks: frozenset[int], reply: HttpReply, answers: AwaitedResponse) -> None:
    if answers.problem:
        reply(text_response(503, answers.problem))
        return
    stacks = [
        WorkerStack(one.rank, node, one.frames, one.kernel)
        for node, told in answers.by_node.items()
        if isinstance(told, requests.StacksTold)
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
