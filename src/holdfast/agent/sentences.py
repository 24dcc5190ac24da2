"""What an agent tells its users of its own services, as functions of facts."""

from __future__ import annotations

from holdfast.core.protocol.model import Endpoint

WATCHED_BY_SIGNS = (
    "--hang restart: hangs are noticed by steps of PyTorch's optimizers and phases;"
    " no worker reports steps (holdfast.progress)"
)
NOT_WATCHED = (
    "--hang restart: no worker reports steps (holdfast.progress) or uses an optimizer of PyTorch,"
    " so a job that hangs is restarted only if stacks show which rank the others wait for"
)
UNSENT_AT_END = "not all spans could be sent before the agent ended"


def output_in_files(folder: object) -> str:
    return f"output of workers goes to files in {folder}"


def health_at(place: object) -> str:
    return f"health and metrics at http://{place}/"


def no_health_port(wanted: Endpoint, reason: str) -> str:
    return f"no health port, and the job goes on without it: {wanted}: {reason}"


def spans_unsent(collector: str) -> str:
    return f"not all spans could be sent to {collector}"


def no_traces(problem: str) -> str:
    return f"OpenTelemetry: {problem}; the job does without it"
