"""A simulator for whole clusters: the real core, with time, network and machines replaced.

`make_plan(seed)` makes a plan, `simulate(plan)` runs it and checks every promise of the
protocol, `shrink(plan)` finds the shortest story that still breaks the same one. `everywhere` loses
whoever leads at every point of a few stories. The command is `python -m tools.simulator`.

Rules
1. One seed, one story, byte for byte: everything random comes from the seed, nothing depends on
   a real clock or on the order of a set.
2. The core is the very code that runs in production; only the shells around it are ours.
3. Checkers look at what really happened, in true time, and not at what the core believes.
"""

from __future__ import annotations

from tools.simulator.cluster import Run, simulate
from tools.simulator.facts import Violation
from tools.simulator.plan import Fault, HostPlan, Plan
from tools.simulator.planning import PROFILES, make_plan
from tools.simulator.shrinking import shrink

__all__ = [
    "PROFILES",
    "Fault",
    "HostPlan",
    "Plan",
    "Run",
    "Violation",
    "make_plan",
    "shrink",
    "simulate",
]
