"""How the verbs that look at a job, or want something of it, find it and speak to it.

A job is found by its name on this machine (`holdfast status my-job`; without a name, the only one),
or from anywhere with the options by which its nodes meet: `--rdzv-endpoint`, `--rdzv-backend`,
`--rdzv-id`, `--token-file` and the rest, read by the very rules of `holdfast run`.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence

from msgspec import Struct

from holdfast.admin.client import AdminClient, connect_elsewhere, connect_here
from holdfast.cli import option_sources, options
from holdfast.cli.detection import Detected
from holdfast.cli.option_sources import OptionText
from holdfast.core.policy.config import Program
from holdfast.core.protocol.bounds import NAME_MOST, clean, cut
from holdfast.core.protocol.errors import UsageError
from holdfast.engine.secrets import read_secrets

FINDING = """\
A job is found by its name (--rdzv-id, or what `holdfast run` called it) on this machine;
without one, the only one of yours is meant. From another machine, give the options by which
the job's nodes meet, and its token if it has one:

  --rdzv-endpoint HOST:PORT   as given to `holdfast run`
  --rdzv-id NAME              the job's name; not needed where its nodes got none
  --rdzv-backend NAME         for a job that meets in etcd or in a shared folder
  --token-file FILE           or HOLDFAST_TOKEN in the environment
"""
_REMOTE_OPTIONS = ("rdzv-endpoint", "rdzv-backend")
_NOTHING = Program(kind="script", target="job")


class JobArguments(Struct, frozen=True):
    """The words after a verb, sorted."""

    flags: frozenset[str]
    ahead: tuple[str, ...]
    """What stands before the job's name: a node's, or a number of nodes."""
    name: str
    """The job's; empty where it was not named."""
    given: dict[str, OptionText]
    """The options of `holdfast run` among them."""


def job_arguments(words: Sequence[str], flags: Sequence[str], ahead: int = 0) -> JobArguments:
    """Part a verb's own flags from names and from options. Raises `UsageError`.

    `ahead` is how many words come before the job's name.
    """
    found = frozenset(word for word in words if word in flags)
    given: dict[str, OptionText] = {}
    names: list[str] = []
    rest: Sequence[str] = [word for word in words if word not in flags]
    while rest:
        more, behind = options.split(rest)
        given.update(more)
        names += behind[:1]
        rest = behind[1:]
    if len(names) > ahead + 1:
        raise UsageError(f"{names[-1]!r} is one word too many", "--help says what there is to say")
    return JobArguments(found, tuple(names[:ahead]), "".join(names[ahead:]), given)


def take_values(
    words: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Part a verb's own options that have a value, each of which may come several times."""
    values: dict[str, list[str]] = {name: [] for name in names}
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name not in values:
            rest.append(word)
            continue
        given = value if equals else next(waiting, None)
        if given is None:
            raise UsageError(f"{name} needs a value", f"{name} VALUE")
        values[name].append(given)
    return values, rest


def connect(request: JobArguments) -> AdminClient:
    """Reach the job. Raises `AdminError` or `UsageError`."""
    environ, name = os.environ, request.name
    is_elsewhere = any(option in request.given for option in _REMOTE_OPTIONS)
    if not is_elsewhere:
        named = request.given.get("rdzv-id")
        return connect_here(name or (named.text if named is not None else ""))
    given = {"nnodes": OptionText("1:2", "--nnodes"), **request.given}
    if name:
        given["rdzv-id"] = OptionText(name, "--rdzv-id")
    detected = Detected(option_sources.collect(given, environ))
    values = option_sources.parse(detected.options)
    config = options.configure(detected, values, _NOTHING, environ).config
    secrets = read_secrets(config.security.token_file, config.rendezvous.options, environ)
    return connect_elsewhere(config, secrets)


def own_name() -> str:
    """Who wants something, as the job is told."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return cut(clean(f"{user} on {socket.gethostname()}"), NAME_MOST)
