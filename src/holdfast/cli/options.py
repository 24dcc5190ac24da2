"""The command line of `holdfast run`, from words to a configuration.

Rules
- `option_sources` decides between the sources of an option; the scheduler's settings are in
  `detection`.
- Options come first. The first word that is none is the program; it and everything after
  it belong to the program, untouched. `--` ends the options too.
- `--name value`, `--name=value`, `-r3`, `-r 3`; dashes and underscores are the same. A
  value that starts with a dash, other than a number, needs the `=`. Where a value may be left
  out, only a number is taken for one. A name may be cut short
  as long as only one option begins so, as `torchrun` has it.
- A mistake is a `UsageError` that names its option, or the variable it came from.

How it works: `split` sorts the words, `listen` adds the environment and the scheduler,
`option_sources.parse` reads each text by its row in `table`, `parse_run` puts the values into the
fields that the rows name and then settles what takes several options to decide: the program, the
endpoint, the number of workers.

It is not made with `argparse`: that costs 15 ms of import, a sixth of the time to
start; it exits and prints on its own; it cannot give hints; and its help is not one we
would want to read.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli import detection, option_sources, rendezvous, sentences
from holdfast.cli.detection import Detected
from holdfast.cli.option_sources import OptionText, Precedence
from holdfast.cli.table import BY_NAME, BY_SHORT, UNCHANGED, Option
from holdfast.cli.values import closest
from holdfast.core.policy import rendezvous_settings, timing
from holdfast.core.policy.config import JobConfig, Program, ProgramKind
from holdfast.core.policy.rendezvous_settings import COMMAND_LINE
from holdfast.core.policy.texts import listed
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.scheduler_variables import describing_ranks

INTERPRETER = "PYTHON_EXEC"
COMPLETION = "print-completion"
_FLAG_GIVEN = "1"
_KIND_OF_FLAG: Mapping[str, ProgramKind] = {
    "module": "module",
    "no-python": "command",
    "run-path": "run_path",
}


class HelpRequested(Exception):
    """The user asked for the help instead of running something."""


class CompletionRequested(HelpRequested):
    """The user asked for the script by which a shell completes our options."""

    def __init__(self, shell: str) -> None:
        super().__init__()
        self.shell = shell


class ParsedRun(Struct, frozen=True):
    """A job as the command line describes it."""

    config: JobConfig
    notes: tuple[str, ...] = ()
    """Notes on derived settings, for the user to see before the job starts."""
    scheduler: str = ""
    """The scheduler of this node, if any: it acts on the exit status."""


def parse_run(argv: Sequence[str], environ: Mapping[str, str]) -> ParsedRun:
    """Return the job that the words after `holdfast run` ask for.

    Raises `UsageError` for mistakes and `HelpRequested` for `--help`.
    """
    given, words = split(argv)
    detected = listen(given, environ, argv)
    values = option_sources.parse(detected.options)
    return configure(detected, values, _program(words, values, environ), environ)


def listen(
    given: Mapping[str, OptionText], environ: Mapping[str, str], argv: Sequence[str]
) -> Detected:
    """All settings of the job: the user's, and the scheduler's."""
    options = option_sources.collect(given, environ)
    if option_sources.is_on(options, "no-detect"):
        return Detected(options)
    return detection.fill_in(options, environ, argv)


def configure(
    detected: Detected, values: dict[str, Any], program: Program, environ: Mapping[str, str]
) -> ParsedRun:
    """The whole job, with settings that depend on several options."""
    notes = _count_workers(values, detected, environ)
    config = replace(
        UNCHANGED, run_id=_unique_id(program), program=program, is_host=detected.is_host
    )
    settings = values.get("rdzv-conf", {})
    config = rendezvous_settings.apply(config, settings, _fields_of(values), COMMAND_LINE)
    chosen = {path.removeprefix("timeouts.") for path in _fields_of(values)}
    config = replace(config, timeouts=timing.within_notice(config.timeouts, chosen))
    if not values.get("keep-engine-variables"):
        config = replace(config, hidden_variables=describing_ranks(environ))
    config, more = rendezvous.complete(config, values.get("rdzv-backend"))
    if config.max_nodes > 1 and "rdzv-id" not in values:
        config = replace(config, run_id=_id_of_endpoint(config))
    _check_backoff(config)
    _check_devices(config, environ)
    about = detection.line_about(detected, config)
    more += detection.doubts_about(detected, config)
    notes = (*about, *notes, *more, *_silent_console(config), *timing.notes(config))
    return ParsedRun(config.validate(), notes, detected.scheduler)


def split(argv: Sequence[str]) -> tuple[dict[str, OptionText], tuple[str, ...]]:
    """Split the options, by name, from the program and its arguments."""
    given: dict[str, OptionText] = {}
    words = deque(argv)
    while words:
        word = words.popleft()
        if word == "--":
            return given, tuple(words)
        if word == "-" or not word.startswith("-"):
            return given, (word, *words)
        spelled, equals, attached = word.partition("=")
        if spelled in ("-h", "--help"):
            raise HelpRequested
        option, glued = _find(spelled)
        if glued:
            spelled, equals, attached = word[:2], "=", glued + equals + attached
        text = attached if equals else _value_after(spelled, option, words)
        if option.name == COMPLETION:
            raise CompletionRequested(str(option.parse(text)))
        given[option.name] = OptionText(text, spelled)
    return given, ()


def _find(spelled: str) -> tuple[Option, str]:
    """The option of this spelling, and any value attached to its short form."""
    if spelled.startswith("--"):
        option = _named(spelled)
        if option is not None:
            return option, ""
    elif (option := BY_SHORT.get(spelled[1:2])) and (not option.is_flag or len(spelled) == 2):
        return option, spelled[2:]
    raise UsageError(f"unknown option {spelled}", _hint_for_unknown(spelled))


def _named(spelled: str) -> Option | None:
    """The option of that name, or the only one whose name begins so."""
    name = spelled[2:].replace("_", "-")
    if name in BY_NAME or not name:
        return BY_NAME.get(name)
    meant = [known for known in (*BY_NAME, "help") if known.startswith(name)]
    if len(meant) > 1:
        names = listed((f"--{known}" for known in meant), "or")
        raise UsageError(f"ambiguous option {spelled}", f"did you mean {names}?")
    if meant == ["help"]:
        raise HelpRequested
    return BY_NAME[meant[0]] if meant else None


def _hint_for_unknown(spelled: str) -> str:
    short, name = spelled[1:2], spelled.strip("-").replace("_", "-")
    if short in BY_SHORT:
        return f"put a space after -{short}"
    near = closest(f"--{name}", [f"--{known}" for known in BY_NAME]) if name else ""
    return near or "holdfast run --help lists the options"


def _value_after(spelled: str, option: Option, words: deque[str]) -> str:
    if option.is_flag:
        return _FLAG_GIVEN
    if option.alone and not (words and words[0].isdecimal()):
        return option.alone
    value = words.popleft() if words else None
    if value is None or _looks_like_option(value):
        raise UsageError(f"{spelled} needs a value", f"{spelled}={option.metavar} ({option.help})")
    return value


def _looks_like_option(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _program(
    words: tuple[str, ...], values: Mapping[str, Any], environ: Mapping[str, str]
) -> Program:
    chosen = [flag for flag in _KIND_OF_FLAG if values.get(flag)]
    if len(chosen) > 1:
        flags = listed(f"--{flag}" for flag in chosen)
        raise UsageError(
            f"{flags} cannot be used together", "each says how to run the program: use one"
        )
    if not words:
        raise UsageError(
            "no program is given", "name a script after the options: holdfast run train.py"
        )
    kind: ProgramKind = _KIND_OF_FLAG[chosen[0]] if chosen else "script"
    interpreter = "" if kind == "command" else environ.get(INTERPRETER) or sys.executable
    target, *arguments = words
    if not target:
        raise UsageError(
            "the name of the program is empty", "an unset shell variable is the usual reason"
        )
    return Program(kind, target, tuple(arguments), interpreter)


def _count_workers(
    values: dict[str, Any], detected: Detected, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Replace a word for the number of workers by the number; say how it was found.

    Under a scheduler and without an option, it is one for each accelerator, and else one: many CPUs
    are no sign that many workers are wanted, and a container may use only some of them.
    """
    wanted = values.get("nproc-per-node")
    if not isinstance(wanted, str):
        return ()
    from holdfast.processes.host import accelerators

    found = accelerators.count(cast(accelerators.Kind, wanted), environ)
    values["nproc-per-node"] = found.number
    if detected.options["nproc-per-node"].level is not Precedence.DETECTED:
        return (f"--nproc-per-node {wanted}: {found.explanation}",)
    if found.kind == "cpu":
        values["nproc-per-node"] = 1
        return ()
    return (found.explanation,)


def _unique_id(program: Program) -> str:
    """A name that no other run has and that still names the program."""
    last = program.target.rpartition("." if program.kind == "module" else "/")[2]
    stem = last.removesuffix(".py")
    name = "".join(letter for letter in stem if letter.isalnum() or letter in "_.-")
    return f"{name[:32] or 'job'}-{os.urandom(4).hex()}"


def _id_of_endpoint(config: JobConfig) -> str:
    """A name that all nodes derive by themselves, since they meet at the same endpoint.

    Static nodes may each know the master by another name: its port is what they agree on.
    """
    endpoint, backend = config.rendezvous.endpoint, config.rendezvous.backend
    if not config.rendezvous.is_embedded and backend != "c10d":
        raise UsageError(
            f"--rdzv-backend {backend} needs a --rdzv-id, to tell its jobs apart",
            "give all nodes of this job the same one, and every other job another",
        )
    if config.has_fixed_ranks:
        endpoint = f"static-{config.master_port}"
    return "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in endpoint)


def _fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the fields that their rows name."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        paths = BY_NAME[name].fields
        fields.update(zip(paths, value if len(paths) > 1 else (value,), strict=False))
    return fields


def _check_backoff(config: JobConfig) -> None:
    first_s, longest_s = config.restarts.backoff_first_s, config.restarts.backoff_max_s
    if first_s > longest_s:
        raise UsageError(
            f"--restart-backoff {first_s:g} is above --restart-backoff-max {longest_s:g}",
            "raise the second or lower the first",
        )


def _check_devices(config: JobConfig, environ: Mapping[str, str]) -> None:
    """With virtual local ranks each worker has a device of its own, of those we may use."""
    if not config.virtual_local_rank:
        return
    from holdfast.processes.environment import device_list

    name, visible = device_list(environ)
    if visible is None:
        return
    devices = len(visible.split(","))
    if config.slots > devices:
        raise UsageError(
            f"{name}={visible} has fewer devices than {config.slots} workers need",
            "with --virtual-local-rank, name as many devices as workers, or unset the variable",
        )


def _silent_console(config: JobConfig) -> tuple[str, ...]:
    shown = config.output.local_ranks_filter
    if shown is None or any(rank < config.slots for rank in shown):
        return ()
    return (sentences.nobody_shown(config.slots),)
