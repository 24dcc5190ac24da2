"""`holdfast stacks`: the present stacks of all workers of a job, on all of its nodes."""

from __future__ import annotations

from argparse import Namespace

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli import sentences
from holdfast.cli.job_connection import connect, job_parser
from holdfast.cli.verbs import verb
from holdfast.core.policy.stacks import StackFrame, WorkerStack, grouped, in_words
from holdfast.core.protocol.bounds import clean, one_line_each
from holdfast.core.protocol.requests import NotKnown, StacksAsked, StacksTold

REASON = "somebody asked (holdfast stacks)"
PARSER = job_parser(
    "stacks",
    "Show where the workers of a job are, on all of its nodes: equal stacks together, the odd one "
    "named with its node. Nothing is stopped and no debugger is needed. The stacks in full are in "
    "a file on each node, beside the job's logs, whose path is printed.",
)


@verb(PARSER)
def stacks(asked: Namespace) -> None:
    with connect(asked) as job:
        _show(job)


def _show(job: AdminClient) -> None:
    answers = dict(job.ask(StacksAsked(REASON), of="all"))
    told = {node: one for node, one in answers.items() if isinstance(one, StacksTold)}
    if not answers:
        raise AdminError(_no_answer(job.missing) or sentences.no_node_answers(job.run_id))
    is_alone = len(told) == 1 and len(answers) == 1 and not job.missing
    found = [
        stack for node, one in told.items() for stack in _stacks_of(one, "" if is_alone else node)
    ]
    lines = [f"{job.run_id}: {in_words(grouped(found))}"]
    for node, one in sorted(told.items()):
        if one.file:
            lines.append(f"  {sentences.in_full(one.file, '' if is_alone else node)}")
    for node, other in sorted(answers.items()):
        if isinstance(other, NotKnown):
            lines.append(f"  {node}: {other.reason}")
    if job.missing:
        lines.append(f"  {_no_answer(job.missing)}")
    print(one_line_each(lines), end="")


def _stacks_of(told: StacksTold, node: str) -> list[WorkerStack]:
    """A node's answer, as the rules read it; made fit to print."""
    return [
        WorkerStack(
            stack.rank,
            node,
            tuple(StackFrame(clean(f.file), f.line, clean(f.function)) for f in stack.frames),
            clean(stack.kernel),
        )
        for stack in told.stacks
    ]


def _no_answer(missing: tuple[str, ...]) -> str:
    if not missing:
        return ""
    return sentences.unknown_there(missing)
