"""How verbs that query or command a job find it and connect to it.

A job is found by its name on this machine (`holdfast status my-job`; without a name, the only one),
or from anywhere with the options by which its nodes meet: `--rdzv-endpoint`, `--rdzv-backend`,
`--rdzv-id`, `--token-file` and the rest, parsed as in `holdfast run`.
"""

from __future__ import annotations

import getpass
import os
import socket
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.admin.client import AdminClient, JobNotFound, connect_elsewhere, connect_here
from holdfast.cli import option_sources, options
from holdfast.cli.detection import Detected
from holdfast.cli.option_sources import OptionText
from holdfast.cli.table import MACHINES, OPTIONS, SECURITY
from holdfast.cli.verbs import VerbParser
from holdfast.core.policy.config import Program
from holdfast.core.protocol.bounds import NAME_MOST, clean, cut
from holdfast.engine.secrets import read_secrets

if TYPE_CHECKING:
    from holdfast.cli.jobs import ListedJob

ELSEWHERE = (
    "the options by which its nodes meet, as given to `holdfast run`; its token, if it has one,"
    " may be in HOLDFAST_TOKEN"
)
_SHOWN = ("rdzv-endpoint", "rdzv-id", "rdzv-backend", "token-file")
_REMOTE_OPTIONS = ("rdzv-endpoint", "rdzv-backend")
_MEETING = tuple(each for each in OPTIONS if each.group in (MACHINES, SECURITY))
"""The options of `holdfast run` that a verb takes, too."""
FLAG = {"action": "store_const", "const": "1"}
_NOTHING = Program(kind="script", target="job")


class JobHasEnded(JobNotFound):
    """It ran on this machine, and left a record."""

    def __init__(self, job: ListedJob) -> None:
        from holdfast.cli.jobs import in_words

        super().__init__(in_words(job))
        self.job = job


def job_parser(name: str, about: str, then: str = "") -> VerbParser:
    """The parser of a verb about one job: its name comes first, then what the verb needs."""
    words = " ".join(filter(None, ("[JOB]", then, "[options]")))
    parser = VerbParser(name, about, usage=f"holdfast {name} {words}")
    parser.add_argument(
        "job",
        nargs="?",
        default="",
        metavar="JOB",
        help="its name, as `holdfast jobs` shows it; not needed where only one of yours runs here",
    )
    elsewhere = parser.add_argument_group("a job on other machines", ELSEWHERE)
    for option in _MEETING:
        words = option.help if option.name in _SHOWN else SUPPRESS
        settings: dict[str, Any] = {"dest": option.name, "help": words}
        settings |= {"metavar": option.metavar} if option.metavar else FLAG
        elsewhere.add_argument(f"--{option.name}", **settings)
    return parser


def connect(found: Namespace) -> AdminClient:
    """Connect to the job that the arguments of a verb name. Raises `AdminError` or `UsageError`."""
    texts = {each.name: getattr(found, each.name) for each in _MEETING}
    given = {name: OptionText(text, f"--{name}") for name, text in texts.items() if text}
    return connect_to_job(found.job, given)


def connect_to_job(name: str, given: Mapping[str, OptionText]) -> AdminClient:
    """Connect to a job by its name, or by the options of `holdfast run`."""
    environ = os.environ
    if not any(option in given for option in _REMOTE_OPTIONS):
        named = given.get("rdzv-id")
        return _connect_here(name or (named.text if named is not None else ""))
    given = {"nnodes": OptionText("1:2", "--nnodes"), **given}
    if name:
        given["rdzv-id"] = OptionText(name, "--rdzv-id")
    detected = Detected(option_sources.collect(given, environ))
    values = option_sources.parse(detected.options)
    config = options.configure(detected, values, _NOTHING, environ).config
    secrets = read_secrets(config.security.token_file, config.rendezvous.options, environ)
    return connect_elsewhere(config, secrets)


def _connect_here(name: str) -> AdminClient:
    try:
        return connect_here(name)
    except JobNotFound as error:
        from holdfast.cli.jobs import ended_job, in_words

        ended = ended_job(name)
        if ended is None:
            raise
        if name:
            raise JobHasEnded(ended) from None
        raise JobNotFound(f"{error}; the last one, {in_words(ended)}") from None


def own_name() -> str:
    """The operator's name, as sent to the job."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return cut(clean(f"{user} on {socket.gethostname()}"), NAME_MOST)
