"""The scheduler's settings, where the user has given none.

Rules
- The user's settings win: on the command line, in `HOLDFAST_…`, in `PET_…`. The scheduler's come
  last, and only for options that were not given at all.
- Ranks, the endpoint and the id belong together and to the nodes that the scheduler placed. If more
  nodes are asked for than it placed (an array of one-node jobs), they come from elsewhere, and the
  user has to name them.
- An endpoint, a master or a register that was given in any way is used.
- Settings that cannot work are refused, unless the user has given the number of nodes or an
  endpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.cli import sentences, values
from holdfast.cli.option_sources import OptionText, Precedence, is_on
from holdfast.core.policy.config import (
    DEFAULT_PORT,
    EMBEDDED_BACKENDS,
    STATIC_BACKEND,
    JobConfig,
)
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.placement.schedulers import detect, read_file

if TYPE_CHECKING:
    from holdfast.placement.model import Placement, PlacementRefusal
    from holdfast.placement.pmi import PmiJob

SAYS_WHERE = ("rdzv-endpoint", "master-addr", "master-port")
TAKES_OVER = ("nnodes", "rdzv-backend", *SAYS_WHERE)
"""With one of these the user has overridden the scheduler."""
OF_OPTION = {
    "nnodes": "nodes",
    "node-rank": "rank",
    "nproc-per-node": "workers",
    "rdzv-endpoint": "endpoint",
    "rdzv-id": "run_id",
}
"""The options of a placement, by field."""
AUTOMATIC = "auto"


class Detected(Struct, frozen=True):
    """What was detected, and all settings with it."""

    options: Mapping[str, OptionText]
    placement: Placement | None = None
    scheduler: str = ""
    """The scheduler of this node, even where the user has overridden the rest."""

    @property
    def is_host(self) -> bool | None:
        """Whether this node hosts, if the scheduler names the host."""
        endpoint = self.options.get("rdzv-endpoint")
        is_ours = endpoint is not None and endpoint.level is Precedence.DETECTED
        return self.placement.is_host if self.placement and is_ours else None


def fill_in(
    options: Mapping[str, OptionText], environ: Mapping[str, str], words: Sequence[str]
) -> Detected:
    """Add the scheduler's settings.

    Raises `UsageError` for settings that cannot work. `words` are the user's own command.
    """
    found = detect(environ, read_file)
    if found is None:
        return Detected(options)
    from holdfast.placement.model import PlacementRefusal  # A laptop has no need of it.

    if isinstance(found, PlacementRefusal):
        if is_on(options, "standalone") or any(name in options for name in TAKES_OVER):
            return Detected(options, scheduler=found.scheduler)
        raise _refused(found, words)
    filled = {**options, **_missing(found, options, environ, words)}
    return Detected(filled, found, found.scheduler)


def _missing(
    placement: Placement,
    options: Mapping[str, OptionText],
    environ: Mapping[str, str],
    words: Sequence[str],
) -> dict[str, OptionText]:
    """The settings from the scheduler, by option."""
    texts: dict[str, str] = {}
    if placement.nodes and not is_on(options, "standalone"):
        texts["nnodes"] = f"{placement.nodes}:{placement.nodes}"
    wanted = _wanted_nodes(options, texts)
    texts["nproc-per-node"] = str(placement.workers or AUTOMATIC)
    if wanted > 1 and (placement.nodes is None or wanted <= placement.nodes):
        texts |= _about_the_meeting(placement, options, environ, words)
    missing = {name: text for name, text in texts.items() if name not in options}
    return {name: _from_scheduler(placement, name, text) for name, text in missing.items()}


def _wanted_nodes(options: Mapping[str, OptionText], texts: Mapping[str, str]) -> int:
    if is_on(options, "standalone"):
        return 1
    text = options["nnodes"].text if "nnodes" in options else texts.get("nnodes", "1")
    try:
        return values.nodes(text)[1]
    except UsageError:
        return 1  # It is refused soon, with its own words.


def _about_the_meeting(
    placement: Placement,
    options: Mapping[str, OptionText],
    environ: Mapping[str, str],
    words: Sequence[str],
) -> dict[str, str]:
    texts: dict[str, str] = {}
    if placement.rank is not None:
        texts["node-rank"] = str(placement.rank)
    if placement.run_id:
        texts["rdzv-id"] = placement.run_id
    backend = options["rdzv-backend"].text if "rdzv-backend" in options else EMBEDDED_BACKENDS[0]
    if backend not in (*EMBEDDED_BACKENDS, STATIC_BACKEND) or any(n in options for n in SAYS_WHERE):
        return texts
    if placement.host:
        texts["rdzv-endpoint"] = str(Endpoint(placement.host, placement.port or DEFAULT_PORT))
        return texts
    job = _asked_of_pmi(placement, environ)
    if job is None:
        raise _nowhere(placement, words)
    from holdfast.placement.model import as_id, port_of_name

    texts["rdzv-endpoint"] = str(Endpoint(job.host, port_of_name(job.name)))
    return {"rdzv-id": as_id("mpi", job.name), **texts}


def _asked_of_pmi(placement: Placement, environ: Mapping[str, str]) -> PmiJob | None:
    if not placement.host_for_pmi or placement.rank is None:
        return None
    from holdfast.placement.pmi import exchange_host

    return exchange_host(environ, placement.rank, placement.host_for_pmi)


def _nowhere(placement: Placement, words: Sequence[str]) -> UsageError:
    """The nodes would not find each other: each would wait at an endpoint of its own."""
    if placement.cannot_meet:
        return _refused(placement.cannot_meet, words)
    return UsageError(
        f"{placement.scheduler} names no endpoint for the nodes",
        f"give all the same --rdzv-endpoint HOST:{DEFAULT_PORT}, where HOST is one of them",
    )


def _from_scheduler(placement: Placement, name: str, text: str) -> OptionText:
    source = placement.sources.get(OF_OPTION[name], "")
    if text == AUTOMATIC:
        source = "one for each accelerator, or one if there is none"
    return OptionText(text, source or placement.scheduler, Precedence.DETECTED)


def _refused(refusal: PlacementRefusal, words: Sequence[str]) -> UsageError:
    import shlex

    from holdfast.placement.model import COMMAND

    command = shlex.join(["holdfast", "run", *words]) if words else COMMAND
    return UsageError(refusal.message, refusal.hint.replace(COMMAND, command))


def line_about(detected: Detected, config: JobConfig) -> tuple[str, ...]:
    """What was detected, in one line, with its source; and advice about lost nodes."""
    placement, options = detected.placement, detected.options
    if placement is None:
        return ()
    nodes = f"{config.max_nodes} nodes" if config.max_nodes > 1 else "1 node"
    if config.min_nodes != config.max_nodes:
        nodes = f"{config.min_nodes} to {nodes}"
    parts = [nodes + _by(options, "nnodes")]
    if config.max_nodes > 1:
        if config.node_rank is not None:
            parts.append(f"this is node {config.node_rank}" + _by(options, "node-rank"))
        parts.append(f"meeting at {config.rendezvous.endpoint}" + _by(options, "rdzv-endpoint"))
    about = f"{placement.where}: {', '.join(parts)}"
    is_warned = placement.at_a_loss and config.min_nodes < config.max_nodes and not placement.rank
    return (about, placement.at_a_loss) if is_warned else (about,)


def doubts_about(detected: Detected, config: JobConfig) -> tuple[str, ...]:
    """Settings that are allowed, but probably not meant: Slurm gives a task one CPU by default."""
    placement, usable = detected.placement, len(os.sched_getaffinity(0))
    is_step = placement is not None and placement.scheduler == "Slurm" and placement.run_id
    return (sentences.few_cpus(config.slots, usable),) if is_step and config.slots > usable else ()


def _by(options: Mapping[str, OptionText], name: str) -> str:
    given = statement(options, name)
    return "" if given is None or given.level is Precedence.DETECTED else f" ({given.source})"


def statement(options: Mapping[str, OptionText], name: str) -> OptionText | None:
    """The source of a setting; of an endpoint without one, the source of the master."""
    names = SAYS_WHERE if name == "rdzv-endpoint" else (name,)
    return next((options[one] for one in names if one in options), None)
