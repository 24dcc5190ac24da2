"""The metrics of a node and of the coordinator, and how they are counted.

Rules
1. Names, units and labels are by Prometheus' conventions: seconds, `_total` for what only grows,
   no unit hidden in a number. Every sample has `run_id` and `node` too.
2. No label has values without bound. A node exports its own ranks; the coordinator's node exports
   all nodes together, never each.
3. Only facts that are over by the time of a scrape are counted here: rounds, ends of workers,
   recoveries, how the time was spent. All of it is read from the node's history
   (`observe.history`).
4. How the time was spent is what `observe.goodput` says of that history. It is the job's, not a
   node's: only the coordinator's node exports it, so that no board averages less exact
   values. Steps that were done again were not useful after all: its parts are no counters.
"""

from __future__ import annotations

from holdfast.observe.exposition import Histogram, Metric, Samples
from holdfast.observe.history import LiveHistory

RECOVERY_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
RECOVERY_PHASES = ("stop", "form", "spawn", "first_step")

# A table is read by its rows; the formatter would give every cell a line of its own.
# fmt: off
NODE_METRICS: tuple[Metric, ...] = (
    Metric("holdfast_info", "gauge", "Always 1; the labels say what runs here.",
           ("version", "role")),
    Metric("holdfast_start_time_seconds", "gauge",
           "When this agent was started, in seconds since 1970."),
    Metric("holdfast_phase", "gauge", "1 for the phase of this node's life, 0 for the others.",
           ("phase",)),
    Metric("holdfast_ready", "gauge", "1 where /readyz says that the node is in a formed round."),
    Metric("holdfast_coordinator_reached", "gauge",
           "1 while this node has contact with the coordinator."),
    Metric("holdfast_coordinator_here", "gauge", "1 while this node is the coordinator."),
    Metric("holdfast_heartbeat_age_seconds", "gauge",
           "How long ago the last heartbeat was sent that the coordinator has answered."),
    Metric("holdfast_lease_remaining_seconds", "gauge",
           "How long this node may still run workers without another answer."),
    Metric("holdfast_round", "gauge", "The number of the last round that this node was part of."),
    Metric("holdfast_round_nodes", "gauge", "Nodes of the round that runs here; 0 between rounds."),
    Metric("holdfast_round_ranks", "gauge", "Ranks of the round that runs here; 0 between rounds."),
    Metric("holdfast_workers", "gauge", "Workers that run on this node."),
    Metric("holdfast_rounds_total", "counter", "Rounds that this node was part of."),
    Metric("holdfast_worker_exits_total", "counter",
           "Workers of this node that ended: well, failed, or because their round was stopped.",
           ("result",)),
    Metric("holdfast_recovery_seconds", "histogram",
           "From when the node knew that its round cannot go on to the next round's first step."),
    Metric("holdfast_recovery_phase_seconds", "histogram",
           "The same, by part: stop the old round, form the next, spawn it, its first step.",
           ("phase",)),
    Metric("holdfast_worker_step", "gauge",
           "The last step that the worker has said (holdfast.progress).", ("rank",)),
    Metric("holdfast_worker_step_age_seconds", "gauge", "How long ago it said it.", ("rank",)),
    Metric("holdfast_worker_steps_per_second", "gauge",
           "Its steps a second, over about the last half minute.", ("rank",)),
    Metric("holdfast_stragglers_total", "counter",
           "How often a worker of this node was found slower than the others (--straggler-after)."),
    Metric("holdfast_loop_lag_seconds", "histogram",
           "How late the agent's loop was for a call that was due, looked at once a second."),
    Metric("process_cpu_seconds_total", "counter", "Processor time of the agent's own process."),
    Metric("process_resident_memory_bytes", "gauge", "Memory of the agent's own process."),
)
COORDINATOR_METRICS: tuple[Metric, ...] = (
    Metric("holdfast_coordinator_nodes", "gauge",
           "Nodes of the job: in the round, standing by, preparing, leaving or suspected.",
           ("state",)),
    Metric("holdfast_coordinator_nodes_min", "gauge", "Nodes that a round needs (--nnodes)."),
    Metric("holdfast_coordinator_nodes_max", "gauge", "Nodes that a round can have (--nnodes)."),
    Metric("holdfast_coordinator_ranks", "gauge",
           "Ranks of the round that runs; 0 between rounds."),
    Metric("holdfast_time_seconds", "gauge",
           "Where the job's time went, as holdfast report has it, since this agent was started.",
           ("part",)),
    Metric("holdfast_goodput_ratio", "gauge",
           "The useful part of the time since this agent was started, from 0 to 1."),
    Metric("holdfast_coordinator_rounds_total", "counter",
           "Rounds that this coordinator has formed."),
    Metric("holdfast_coordinator_round_ends_total", "counter",
           "Rounds that this coordinator has ended before their time, by cause.", ("cause",)),
    Metric("holdfast_coordinator_restarts", "gauge",
           "Restarts that count against --max-restarts, so far."),
    Metric("holdfast_coordinator_restarts_max", "gauge", "Restarts that are allowed."),
    Metric("holdfast_coordinator_step", "gauge", "The furthest step that any worker has said."),
    Metric("holdfast_coordinator_step_age_seconds", "gauge",
           "How long ago the furthest step of the present round was made."),
    Metric("holdfast_coordinator_steps_per_second", "gauge",
           "How fast that step grew, while steps were made."),
    Metric("holdfast_coordinator_stalled", "gauge",
           "1 while the whole job is known to stand still."),
    Metric("holdfast_coordinator_hangs_total", "counter",
           "How often the whole job was found to stand still, whether or not that ended a round."),
    Metric("holdfast_coordinator_heartbeat_age_max_seconds", "gauge",
           "How long ago the node was heard of which nothing was heard for longest."),
    Metric("holdfast_coordinator_messages_total", "counter",
           "Messages that this coordinator has heard, heartbeats too."),
    Metric("holdfast_coordinator_decisions_total", "counter",
           "Steps that this coordinator has taken; heartbeats are none."),
)
# fmt: on
METRICS = NODE_METRICS + COORDINATOR_METRICS


def node_samples(live: LiveHistory) -> Samples:
    """This node's metrics of what is over."""
    history = live.history
    phases = {name: Histogram(RECOVERY_BOUNDS_S) for name in RECOVERY_PHASES}
    whole = Histogram(RECOVERY_BOUNDS_S)
    for one in history.recoveries:
        whole.observe(one.total_s)
        for name, seconds in one.parts_s.items():
            phases[name.replace(" ", "_")].observe(seconds)
    return {
        "holdfast_rounds_total": {(): history.formed},
        "holdfast_stragglers_total": {(): history.stragglers},
        "holdfast_worker_exits_total": {(name,): n for name, n in history.exits.items()},
        "holdfast_recovery_seconds": {(): whole},
        "holdfast_recovery_phase_seconds": {(name,): one for name, one in phases.items()},
    }


def job_samples(live: LiveHistory, now: float) -> Samples:
    """For the coordinator's node, which knows most; now is on the node's own clock."""
    parts_s = live.book(now).parts_s
    total_s = sum(parts_s.values())
    history, age_s = live.history, live.step_age_s(now)
    known = {
        "holdfast_coordinator_step_age_seconds": age_s if history.is_running else None,
        "holdfast_coordinator_steps_per_second": history.pace or None,
    }
    return {
        **{name: {(): value} for name, value in known.items() if value is not None},
        "holdfast_coordinator_stalled": {(): history.is_stalled},
        "holdfast_coordinator_hangs_total": {(): history.hangs},
        "holdfast_time_seconds": {
            (part.replace(" ", "_"),): seconds for part, seconds in parts_s.items()
        },
        "holdfast_goodput_ratio": {(): parts_s["useful"] / total_s if total_s else 0.0},
    }
