"""Settings of the job, not of a node: which differ, and which count.

Rules
1. The coordinator decides about the job, with the settings of its own node. Settings of
   other nodes have no effect on the job, so they are compared and reported: once on
   that node, once on the coordinator's.
2. A lease and its heartbeat are kept on both sides, each by its own settings: they have to be the
   same everywhere, and a difference is reported.
3. A node sends only settings that are not the default, under the names of the options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.policy.config import JobConfig, Program

JOBS: dict[str, Callable[[JobConfig], object]] = {
    "--nnodes": lambda job: _range(job.min_nodes, job.max_nodes),
    "--max-restarts": lambda job: job.restarts.max_restarts,
    "--restart-window": lambda job: job.restarts.window_s,
    "--restart-backoff": lambda job: job.restarts.backoff_first_s,
    "--restart-backoff-max": lambda job: job.restarts.backoff_max_s,
    "--same-cause-limit": lambda job: job.restarts.same_cause_limit,
    "--progress-after": lambda job: job.restarts.progress_after_s,
    "--non-retryable-exit-codes": lambda job: job.restarts.non_retryable_exit_codes,
    "--quarantine-after": lambda job: job.quarantine.after,
    "--quarantine-time": lambda job: job.quarantine.first_s,
    "--last-call": lambda job: job.timeouts.last_call_s,
    "--scale-up-delay": lambda job: job.timeouts.scale_up_delay_s,
    "--min-round-time": lambda job: job.timeouts.min_round_s,
    "--drain-timeout": lambda job: job.timeouts.drain_s,
    "--lease": lambda job: job.leases.lease_s,
    "--heartbeat": lambda job: job.leases.heartbeat_s,
}
ALIKE_EVERYWHERE = ("--lease", "--heartbeat")
VALUE_LENGTH = 40
TOLD = 6
"""How many differences a warning names."""


Difference = tuple[str, str, str]
"""An option, the job's value, and the node's."""


def of_job(config: JobConfig) -> dict[str, str]:
    """A node's settings for the job that are not the default."""
    told = {option: _text(value(config)) for option, value in JOBS.items()}
    return {option: text for option, text in told.items() if text != _DEFAULTS[option]}


def differing(jobs: dict[str, str], nodes: dict[str, str]) -> list[Difference]:
    """Settings of a node that differ from the job's.

    A node of a job of several always sends something, the number of nodes: nothing is unknown.
    """
    if not nodes or nodes == jobs:
        return []
    both = [
        (option, jobs.get(option, default), _as_told(nodes.get(option, default)))
        for option, default in _DEFAULTS.items()
    ]
    return [(option, ours, theirs) for option, ours, theirs in both if ours != theirs]


def _as_told(text: str) -> str:
    """A node's value, made fit to print: its source may be hostile."""
    plain = text.isascii() and text.isprintable() and len(text) <= VALUE_LENGTH
    return text if plain else "(unreadable)"


def warn_node(found: list[Difference]) -> str:
    """The message for the node that differs; empty if it does not."""
    if not found:
        return ""
    nodes = _listed(f"{option} {theirs}" for option, _, theirs in found)
    return (
        f"this node was started with {nodes}, but the job runs with {_jobs(found)}: "
        f"the coordinator's settings count{_advice(found)}"
    )


def warn_coordinator(name: str, found: list[Difference]) -> str:
    """The message for the coordinator's node. It begins with the name of the node that differs."""
    nodes = _listed(f"{option} {theirs}" for option, _, theirs in found)
    return (
        f"{name} was started with {nodes}: the settings given here count, "
        f"{_jobs(found)}{_advice(found)}"
    )


def _jobs(found: list[Difference]) -> str:
    return _listed(f"{option} {ours}" for option, ours, _ in found)


def _advice(found: list[Difference]) -> str:
    if not any(option in ALIKE_EVERYWHERE for option, _, _ in found):
        return ""
    return "; give all nodes the same --lease and --heartbeat: losing one is safe only then"


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    shown = every[:TOLD]
    more = f" and {len(every) - TOLD} more" if len(every) > TOLD else ""
    return f"{', '.join(shown)}{more}"


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}:{most}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


_UNCHANGED = JobConfig("", Program("command", ""))
_DEFAULTS = {option: _text(value(_UNCHANGED)) for option, value in JOBS.items()}
