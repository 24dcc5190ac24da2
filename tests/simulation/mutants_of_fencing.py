"""Bugs in leases, loss and fencing (design §4)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "nobody holds the deadline of the lease",
        "§4.1",
        "core.node.contact:set_deadlines",
        "return [SetDeadlines(state.lease.stop_at, state.lease.kill_at)]",
        "return []",
        "network",
        (76, 88, 39),
    ),
    Mutant(
        "a node whose lease ran out goes on as if nothing had happened",
        "§4.4",
        "core.node.step:_lease_ran_out",
        "if state.phase is not Phase.RUNNING:",
        "if True:",
        "network",
        (96, 43, 44),
    ),
    Mutant(
        "a suspicion is taken for death",
        "§4.5",
        "core.coordinator.leases:LeaseBook._judge",
        "now >= watch.heard_at + self.terms.gone_after_s",
        "now >= watch.heard_at + self.terms.suspect_s",
        "network",
        (52, 68, 43),
    ),
    Mutant(
        "a suspicion does not end the round",
        "§4.5",
        "core.coordinator.ending:suspected",
        "    current = state.round\n",
        "    return []\n",
        "embedded",
        (2,),
    ),
    Mutant(
        "a broken connection is taken for death",
        "§4.6",
        "core.coordinator.liveness:disconnected",
        "liveness.book.disconnected(node, now)",
        "liveness.book.tether_ended(node, now)",
        "network",
        (52, 88, 4),
    ),
    Mutant(
        "the coordinator's own stall expires nodes",
        "§4.7",
        "core.coordinator.leases:LeaseBook.check",
        "if stalled_s > self.terms.tether_s:",
        "if False:",
        "sleep",
        (1016,),
    ),
    Mutant(
        "the lease counts from the reply",
        "§4.1",
        "core.node.contact:answered",
        "    return set_deadlines(state) if",
        "    late_s = max(state.lease.sent.values(), default=state.lease.good_from)\n"
        "    state.lease.good_from = late_s + state.config.leases.heartbeat_s\n"
        "    return set_deadlines(state) if",
        "network",
        (99, 394, 283),
    ),
    Mutant(
        "the lease lasts longer than was agreed",
        "§4.1",
        "core.coordinator.leases:NodeLease.kill_at",
        "self.good_from + self.terms.lease_s",
        "self.good_from + 1.5 * self.terms.lease_s",
        "network",
        (47, 25, 99),
    ),
    Mutant(
        "an older coordinator is obeyed",
        "§4.2",
        "core.node.contact:heed",
        "if tenure < state.tenure:",
        "if False:",
        "forgetful",
        (52, 66, 46),
        (
            (
                "core.coordinator.step:_inherit",
                "    effects: list[CoordinatorEffect] = []\n",
                "    return []\n",
            ),
        ),
        "only_forward",
    ),
    Mutant(
        "a round that it ran already is started again",
        "§4.3",
        "core.node.step:_run",
        "or assignment.round <= state.last_round",
        "",
        "one failure",
        (6, 66, 21),
        (
            (
                "core.coordinator.forming:_prepare",
                "state.round_number += 1",
                "state.round_number = max(state.round_number, 1)",
            ),
        ),
        "only_forward",
    ),
    Mutant(
        "a round is started without a lease, and nobody minds",
        "§4.3",
        "core.node.step:_run",
        "not state.lease.good(now)",
        "False",
        "leader",
        (93, 21, 60),
        (
            (
                "core.coordinator.leases:NodeLease.kill_at",
                "0.0 if self.good_from is None else",
                "1e9 if self.good_from is None else",
            ),
            (
                "core.coordinator.liveness:receive",
                "effects += _heartbeat(liveness, node, Heartbeat(message.heartbeat), now)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "what was sent SIGKILL is taken for reaped",
        "§4.8",
        "core.node.step:_timer",
        "if hangs else []), *kill(state)]",
        "if hangs else []), *kill(state), *_all_gone(state)]",
        "slow",
        (130, 173),
        (),
        "leases",
    ),
)
