"""`holdfast doctor`: check this machine, or all nodes of a job before it runs.

It takes the options of `holdfast run`. If these, or the scheduler, name several nodes,
they meet just as for a job, without workers (`doctor.probe`).
"""

from __future__ import annotations

import logging
import os
import sys
from argparse import Namespace

import msgspec
from msgspec.structs import replace

from holdfast.cli import option_sources, options, sentences
from holdfast.cli.verbs import VerbParser, verb_of_run
from holdfast.core.policy import timing
from holdfast.core.policy.config import (
    JobConfig,
    Output,
    Program,
    RestartPolicy,
    WarmStart,
)
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import one_line_each
from holdfast.core.protocol.errors import HoldfastError, UsageError
from holdfast.doctor import machine, page, reading
from holdfast.doctor.facts import Finding, Wanted, most_serious_first
from holdfast.doctor.group import Examined
from holdfast.engine.secrets import Secrets


def _full_path(text: str) -> str:
    if not os.path.isabs(text):
        raise UsageError("--shared needs the full path of a folder", "--shared /data")
    return text


PARSER = VerbParser(
    "doctor",
    "Say what is wrong with this machine, most serious first, and how to fix it: versions, "
    "limits, memory, disks, names, addresses, the clock, variables that will surprise, times "
    "that do not fit together. Ends with 1 if a job would fail of it.\n\n"
    "With --nnodes, on all nodes of a job before it starts: give each node the options that the "
    "job will get. They meet as for the job, each dials each other one, and what differs between "
    "them is said.",
    usage="holdfast doctor [--json] [--shared DIR] [options of holdfast run]",
    epilog="For example: holdfast doctor --nnodes 2 --rdzv-endpoint node1:29400 --shared /data",
    allow_abbrev=False,
)
PARSER.add_argument("--json", action="store_true",
                    help="the same for programs, with all that was found")  # fmt: skip
PARSER.add_argument("--shared", metavar="DIR", type=_full_path,
                    help="see whether all nodes share this folder")  # fmt: skip


@verb_of_run(PARSER)
def doctor(asked: Namespace, words: list[str]) -> int:
    given, _ = options.split(words)
    return _examine(given, words, asked.json, asked.shared or "")


def _examine(
    given: dict[str, option_sources.OptionText], words: list[str], as_json: bool, shared: str
) -> int:
    detected = options.listen(given, os.environ, words)
    values = option_sources.parse(detected.options)
    wanted = Wanted(per_accelerator=values.get("nproc-per-node") in ("gpu", "xpu"))
    program = Program("function", "holdfast doctor")
    try:
        parsed = options.configure(detected, values, program, os.environ)
    except UsageError as error:  # Settings that cannot work together are a finding.
        found = Finding("error", error.message, error.hint or "holdfast run --help")
        return _show(_alone(None, wanted, [found]), as_json)
    config = parsed.config
    several = config.max_nodes > 1
    wanted = replace(wanted, workers=config.slots, several_nodes=several)
    warnings = [Finding("warning", note, "choose other times") for note in timing.notes(config)]
    if not several:
        if shared:
            raise UsageError("--shared is about several nodes", "--nnodes 2 --rdzv-endpoint …")
        return _show(_alone(config, wanted, warnings), as_json)
    return _together(config, wanted, shared, as_json)


def _alone(config: JobConfig | None, wanted: Wanted, known: list[Finding]) -> page.DoctorPage:
    log_dir = config.output.log_dir if config is not None else None
    facts = reading.read(os.environ, log_dir=log_dir)
    found = most_serious_first([*known, *machine.judge(facts, wanted)])
    return page.page_of((Examined(0, facts),), found)


def _show(found: page.DoctorPage, as_json: bool, whole: bool = True) -> int:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif whole:
        print(one_line_each(page.lines(found)), end="")
    else:
        print(f"{page.verdict(found)}; the first node has the page")
    return exit_status.SUCCEEDED if found.well else exit_status.FAILED


# All nodes of a job.


def _together(config: JobConfig, wanted: Wanted, shared: str, as_json: bool) -> int:
    """Meet as the job would, compare the nodes' findings, and show the result."""
    from holdfast.cli.run import secrets_of
    from holdfast.doctor.probe import examine
    from holdfast.processes.own_environment import take_secrets

    found = _before_meeting(config, wanted)
    if found is not None:
        return _show(found, as_json)
    secrets = secrets_of(config, take_secrets()) or Secrets()
    if secrets.token is None:
        print(f"holdfast: {sentences.OPEN_DOCTOR}", file=sys.stderr)
    logging.basicConfig(format="%(message)s", level=logging.INFO)  # The node's messages meanwhile.
    job = replace(
        config,
        run_id=f"{config.run_id}-doctor",
        slots=1,
        restarts=RestartPolicy(),
        warm=WarmStart(enabled=False),
        output=Output(log_dir=config.output.log_dir),
    )
    try:
        shown, is_first = examine(job, secrets, wanted, shared, os.environ)
    except (HoldfastError, TimeoutError) as error:
        fix = "start the doctor on all nodes, within --join-timeout of each other"
        not_met = Finding("error", str(error), fix)
        return _show(_alone(config, wanted, [not_met]), as_json)
    # All have the page, and one shows it: `srun` and `mpirun` show what all of them write.
    return _show(shown, as_json, whole=is_first or len(shown.nodes) == 1)


def _before_meeting(config: JobConfig, wanted: Wanted) -> page.DoctorPage | None:
    """Report at once, not after a wait, what would stop this node from meeting the others."""
    meeting = reading.meeting_endpoint(config)
    facts = reading.read(os.environ, log_dir=config.output.log_dir, meeting=meeting)
    if facts.way is None or not list(machine.way(facts.way)):
        return None
    found = most_serious_first([*machine.way(facts.way), *machine.judge(facts, wanted)])
    return page.page_of((Examined(0, facts),), found)
