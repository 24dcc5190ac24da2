"""How each kind of fault strikes, and how everything is healed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace
from tools.simulator.facts import FaultStruck, NodeDrained
from tools.simulator.network import TO_CLIENT, TO_SERVER
from tools.simulator.plan import WAYS_TO_DIE, Fault, loses_locks
from tools.simulator.ports import EMBEDDED_HOST
from tools.simulator.spawner import NEVER_RETRY, RAISED

from holdfast.core.coordinator_io import OperatorAsked
from holdfast.core.features import commands
from holdfast.core.protocol.document import NodeLimits

if TYPE_CHECKING:
    from tools.simulator.cluster import Cluster
    from tools.simulator.machine import Machine

RELEASE_EVERY_S = 0.5
STANDS_APART_S = 8.0
SENT_AGAIN, SENT_AGAIN_AFTER_S = 0.5, 0.002
"""How often the signal that asks a node to leave comes again, and how soon: as Slurm sends it at a
time limit."""
UNHEARD_S = 0.003
"""How long before its word a connection breaks: too short to have another one by then."""
SHORT_STANDS = 0.3
"""How often the workers of a node go on before those of others do."""
ORPHAN_SHARE = 0.5
"""Of a lease, for which that one goes on: nobody is left who would end it when it is over."""
Happen = Callable[["Cluster", "Machine", Fault], None]


def strike(cluster: Cluster, fault: Fault) -> None:
    machine = cluster.target(fault.host)
    if machine is None or cluster.healed:
        return
    now = cluster.timeline.now
    node = machine.process.node if machine.process is not None else ""
    cluster.note(FaultStruck(now, fault.kind, machine.number, now + fault.lasts_s, node))
    lasts = f" for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
    cluster.tell_story(machine, f"*** {fault.kind}{lasts}")
    KINDS[fault.kind](cluster, machine, fault)


def _for_a_while(cluster: Cluster, fault: Fault, undo: Callable[[], None]) -> None:
    """Undo it after its time, or when everything is healed, whichever is first."""
    cluster.timeline.at(min(cluster.timeline.now + fault.lasts_s, cluster.plan.heal_at), undo)


def _count_for_a_while(cluster: Cluster, fault: Fault, thing: object, name: str) -> None:
    """Several faults of one kind may overlap: it is over when the last of them is."""
    setattr(thing, name, getattr(thing, name) + 1)
    _for_a_while(cluster, fault, lambda: setattr(thing, name, getattr(thing, name) - 1))


# What dies.


def _start_again(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    delay_s = fault.lasts_s
    forgets = not cluster.plan.keeps_record and fault.other % 2
    if cluster.plan.embedded and machine.number == EMBEDDED_HOST and forgets:
        # Without its record nobody could know of leases that still run: it stays away as long.
        machine.disk = None
        delay_s = max(delay_s, 1.1 * machine.config.leases.gone_after_s)
        machine.away_until = cluster.timeline.now + delay_s
    cluster.timeline.after(delay_s, _boot, machine)


def _boot(machine: Machine) -> None:
    cluster = machine.cluster
    over = cluster.outcome is not None and cluster.plan.embedded and machine.disk is None
    if cluster.timeline.now < machine.away_until or over:
        return  # Nobody starts the host of a job that is over, and that would not remember it.
    if not machine.up:
        machine.boot()
    machine.start_agent()


def _agent_crashes(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.process is not None:
        machine.process.die()
        _start_again(cluster, machine, fault)


def _node_is_killed(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    process = machine.process
    if process is not None:
        process.die()
        process.spawner.die("killed")
        _start_again(cluster, machine, fault)


def _host_crashes(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.up:
        machine.crash()
        _start_again(cluster, machine, fault)


def _all_are_killed(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """As by a batch system, or a power cut; and all are started again, where they were."""
    way = WAYS_TO_DIE[fault.other % len(WAYS_TO_DIE)]
    for each in cluster.machines:
        process = each.process
        if process is None:
            continue
        if loses_locks(fault, each.number):
            each.notes.clear()
        if way == "power":
            each.crash()
        else:
            process.die()
        if way == "orphan" and each.number == fault.other % len(cluster.machines):
            process.spawner.die("killed", ORPHAN_SHARE * each.config.leases.lease_s)
        elif way != "agents":
            process.spawner.die("killed")
        _start_again(cluster, each, replace(fault, other=0))


def _spawner_is_killed(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.process is not None:
        machine.process.spawner.die("killed")
        _start_again(cluster, machine, fault)


def _drain(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    process = machine.process
    if process is not None:
        cluster.note(NodeDrained(cluster.timeline.now, machine.number, process.node))
        process.signal(signal.SIGTERM)
        if Random(f"double {cluster.plan.seed} {fault.at}").random() < SENT_AGAIN:
            cluster.timeline.after(SENT_AGAIN_AFTER_S, process.signal, signal.SIGTERM)
        _start_again(cluster, machine, fault)


def _whole_tree_is_asked(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Some schedulers signal every process of a node: the workers die of it, in any order."""
    process = machine.process
    if process is None:
        return
    random = Random(f"tree {cluster.plan.seed} {fault.at}")
    for worker in list(process.spawner.workers):
        delay_s = 0.1 * random.random()
        cluster.timeline.after(delay_s, process.spawner.die_of, worker, signal.SIGTERM)
    cluster.note(NodeDrained(cluster.timeline.now, machine.number, process.node))
    cluster.timeline.after(0.1 * random.random(), process.signal, signal.SIGTERM)
    _start_again(cluster, machine, fault)


def _everybody_is_asked(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """The whole job is cancelled, or comes to its time limit; and is run again."""
    random = Random(f"everybody {cluster.plan.seed} {fault.at}")
    for each in cluster.machines:
        cluster.timeline.after(1.5 * random.random(), _drain, cluster, each, fault)


# What sleeps.


def _agent_pauses(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    process = machine.process
    if process is None:
        return
    machine.pause_agent()

    def resume() -> None:
        if machine.process is process:
            machine.resume_agent()

    _for_a_while(cluster, fault, resume)


def _pauses_mid_word(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    cluster.mid_word[machine.number] = fault.lasts_s


def _host_pauses(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if not machine.up:
        return
    boot = machine.boots
    machine.pause()

    def resume() -> None:
        if machine.boots == boot:
            machine.resume()

    _for_a_while(cluster, fault, resume)


# What is cut.


def _cut(cluster: Cluster, fault: Fault, ways: list[tuple[int, int]]) -> None:
    for source, target in ways:
        cluster.network.cut(source, target)

    def mend() -> None:
        for source, target in ways:
            cluster.network.mend(source, target)

    _for_a_while(cluster, fault, mend)


def _others(cluster: Cluster, machine: Machine) -> list[int]:
    return [other for other in range(len(cluster.machines)) if other != machine.number]


def _cut_off(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    here, others = machine.number, _others(cluster, machine)
    ways = [(here, other) for other in others] + [(other, here) for other in others]
    _cut(cluster, fault, ways)
    if fault.other % 2:
        _deaf_to_register(cluster, machine, fault)


def _cut_off_from(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    here, other = machine.number, fault.other % len(cluster.machines)
    if here != other:
        _cut(cluster, fault, [(here, other), (other, here)])


def _cut_off_one_way(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    here, others = machine.number, _others(cluster, machine)
    if fault.other % 2:
        _cut(cluster, fault, [(here, other) for other in others])
    else:
        _cut(cluster, fault, [(other, here) for other in others])


def _connection_reset(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    process = machine.process
    if process is None:
        return
    own = process.line.connection if process.line is not None else None
    if own is not None:
        cluster.network.reset(own)
    elif process.exchange is not None:
        for connection in process.exchange.roster.controls():
            cluster.network.reset(connection)


def _half_open(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    line = machine.process.line if machine.process is not None else None
    connection = line.connection if line is not None else None
    if connection is not None:
        connection.swallows[TO_SERVER] |= fault.other % 3 != 1
        connection.swallows[TO_CLIENT] |= fault.other % 3 != 2


def _slow_network(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    cluster.network.slow(machine.number, 1)
    _for_a_while(cluster, fault, lambda: cluster.network.slow(machine.number, -1))


# The register.


def _deaf_to_register(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Nothing goes there, or only nothing comes back."""
    register, here = cluster.register, machine.number
    cut = register.unheard if fault.other % 4 == 3 else register.cut_off
    cut[here] = cut.get(here, 0) + 1

    def mend() -> None:
        cut[here] -= 1

    _for_a_while(cluster, fault, mend)


def _register_ails(name: str) -> Happen:
    """Something is wrong with it for everybody, for a while."""

    def happen(cluster: Cluster, machine: Machine, fault: Fault) -> None:
        _count_for_a_while(cluster, fault, cluster.register, name)

    return happen


def _register_changes_its_leader(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    lasts_s = min(fault.lasts_s, cluster.plan.config.leases.term_s)
    cluster.register.hang_until(cluster.timeline.now + lasts_s)
    _count_for_a_while(cluster, replace(fault, lasts_s=lasts_s), cluster.register, "hangs")


def _register_restarts_empty(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    cluster.register.restart_empty()
    away_s = fault.lasts_s if fault.other % 3 == 0 else 0.1 * fault.lasts_s
    _count_for_a_while(cluster, replace(fault, lasts_s=away_s), cluster.register, "down")


def _watch_breaks(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Mostly that of somebody who would follow: the leader has none."""
    hosts = [machine.number] if fault.other % 2 else range(len(cluster.machines))
    for host in hosts:
        cluster.register.watches.break_silently(host, fault.lasts_s)


def _pushes_late(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, cluster.register.watches, "late")


def _pushes_jumbled(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, cluster.register.watches, "jumbled")


# Workers.


def _worker_fails(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    process = machine.process
    running = [] if process is None else [w for w in process.spawner.workers if w.executes]
    if process is not None and running:
        error = NEVER_RETRY if fault.kind == "worker never retries" else RAISED
        process.spawner.fail(running[fault.other % len(running)], "failed", error)


def _slow_start(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, machine, "slow_start")


def _slow_stop(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, machine, "slow_stop")


def _slow_spawner(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, machine, "slow_spawner")


def _zygote_lost(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.process is not None:
        machine.process.spawner.lose_zygote("it ended")


def _workers_finish(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    cluster.finish()


def _node_stands_still(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.process is not None:
        random = Random(f"still {cluster.plan.seed} {fault.at} {machine.number}")
        machine.process.spawner.still.begin(random, fault.lasts_s)


def _node_moves_unheard(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Its connection breaks just before its workers go on."""
    _node_stands_still(cluster, machine, fault)
    before_s = max(0.0, fault.lasts_s - UNHEARD_S)
    cluster.timeline.after(before_s, _connection_reset, cluster, machine, fault)


def _hang_is_unheard(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Its connection breaks with the next word to it of a hang."""
    cluster.deaf_to_hang.add(machine.number)


def lose_word_of_hang(cluster: Cluster, node: str) -> None:
    """A coordinator is about to tell that node of a hang."""
    host = cluster.host_of(node)
    if host in cluster.deaf_to_hang and not cluster.healed:
        cluster.deaf_to_hang.discard(host)
        machine = cluster.machines[host]
        cluster.tell_story(machine, "*** the word of a hang is lost")
        line = machine.process.line if machine.process is not None else None
        if line is not None and line.connection is not None:
            cluster.network.reset(line.connection)


def _job_stands_still(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """All of it, but that now and then one goes on soon: then it is no hang, or not for long."""
    for each in cluster.machines:
        random = Random(f"still {cluster.plan.seed} {fault.at} {each.number}")
        is_short = random.random() < SHORT_STANDS and fault.other % 2 == 0
        lasts_s = fault.lasts_s * (random.random() if is_short else 1.0)
        own = replace(fault, lasts_s=lasts_s)
        apart_s = STANDS_APART_S if fault.other % 3 == 0 else 0.3
        delay_s = apart_s * random.random()
        cluster.timeline.after(delay_s, _node_stands_still, cluster, each, own)


def _closing_asked(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    if machine.process is not None:
        machine.process.ask_for_closing()


def _released(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """The node is not needed any more, from the moment that its workers have succeeded."""
    process = machine.process
    if process is not None and not process.release_if_done():
        cluster.timeline.after(RELEASE_EVERY_S, _released, cluster, machine, fault)


def _a_liar_speaks(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """To whoever carries the coordinator, wherever it strikes."""
    for other in cluster.machines:
        if other.process is not None:
            other.process.post(other.process.hear_liar, fault.other)


def _scaled(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Somebody asks whoever leads for another number of nodes; there are enough, once healed."""
    engine = machine.process.engine if machine.process is not None else None
    coordinating = engine.link.coordinating if engine is not None else None
    if coordinating is None:
        return
    count = len(cluster.machines)
    least = 1 + fault.other % count
    limits = NodeLimits(least, least + fault.other // count % 3, "somebody")
    if not commands.refusal(coordinating.state, "scale", limits):
        wanted = f"between {limits.least} and {limits.most} nodes are wanted"
        cluster.tell_story(machine, f"*** {wanted}")
        coordinating.post(OperatorAsked("scale", limits.by, limits))


def _job_stopped(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Somebody asks whoever leads to end the job."""
    engine = machine.process.engine if machine.process is not None else None
    coordinating = engine.link.coordinating if engine is not None else None
    if coordinating is not None and not commands.refusal(coordinating.state, "stop"):
        coordinating.post(OperatorAsked("stop", "somebody"))


def _record_slow(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    _count_for_a_while(cluster, fault, machine, "slow_record")


def _saving_wanted(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Somebody asks whoever leads to have all save."""
    engine = machine.process.engine if machine.process is not None else None
    coordinating = engine.link.coordinating if engine is not None else None
    if coordinating is not None and not commands.refusal(coordinating.state, "save"):
        cluster.tell_story(machine, "*** all are asked to save")
        coordinating.post(OperatorAsked("save", "somebody", within_s=fault.lasts_s))


def _restart_wanted(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Somebody asks whoever leads for a restart; now and then a worker fails while all save."""
    engine = machine.process.engine if machine.process is not None else None
    coordinating = engine.link.coordinating if engine is not None else None
    if coordinating is not None and not commands.refusal(coordinating.state, "restart"):
        cluster.tell_story(machine, "*** a restart is wanted")
        coordinating.post(OperatorAsked("restart", "somebody"))
        if fault.other % 4 == 0:
            other = cluster.machines[fault.other // 4 % len(cluster.machines)]
            own = replace(fault, kind="worker fails")
            cluster.timeline.after(0.2 * fault.lasts_s, _worker_fails, cluster, other, own)


def _restart_taken_over(cluster: Cluster, machine: Machine, fault: Fault) -> None:
    """Whoever was asked for a restart sleeps, while all save for it, until another one leads."""
    _restart_wanted(cluster, machine, replace(fault, other=1))
    delay_s = 0.3 * Random(f"restart {cluster.plan.seed} {fault.at}").random()
    sleep = replace(fault, lasts_s=0.55 * cluster.plan.config.leases.lease_s)
    cluster.timeline.after(delay_s, _agent_pauses, cluster, machine, sleep)


KINDS: dict[str, Happen] = {
    "worker fails": _worker_fails,
    "worker never retries": _worker_fails,
    "agent crashes": _agent_crashes,
    "node is killed": _node_is_killed,
    "host crashes": _host_crashes,
    "spawner is killed": _spawner_is_killed,
    "agent pauses": _agent_pauses,
    "leader pauses mid-word": _pauses_mid_word,
    "host pauses": _host_pauses,
    "cut off": _cut_off,
    "cut off from": _cut_off_from,
    "cut off one way": _cut_off_one_way,
    "deaf to register": _deaf_to_register,
    "register down": _register_ails("down"),
    "register mute": _register_ails("mute"),
    "register lossy": _register_ails("lossy"),
    "register stale": _register_ails("stale"),
    "register slow": _register_ails("slow"),
    "register refuses": _register_ails("refuses"),
    "register changes its leader": _register_changes_its_leader,
    "register restarts empty": _register_restarts_empty,
    "watch breaks": _watch_breaks,
    "pushes late": _pushes_late,
    "pushes jumbled": _pushes_jumbled,
    "connection reset": _connection_reset,
    "connection half open": _half_open,
    "slow network": _slow_network,
    "drain": _drain,
    "whole tree is asked": _whole_tree_is_asked,
    "everybody is asked": _everybody_is_asked,
    "slow start": _slow_start,
    "slow stop": _slow_stop,
    "slow spawner": _slow_spawner,
    "zygote lost": _zygote_lost,
    "workers finish": _workers_finish,
    "closing asked": _closing_asked,
    "released": _released,
    "a liar speaks": _a_liar_speaks,
    "all are killed": _all_are_killed,
    "job stands still": _job_stands_still,
    "node stands still": _node_stands_still,
    "node moves unheard": _node_moves_unheard,
    "hang is unheard": _hang_is_unheard,
    "scaled": _scaled,
    "saving wanted": _saving_wanted,
    "job stopped": _job_stopped,
    "record slow": _record_slow,
    "restart wanted": _restart_wanted,
    "restart taken over": _restart_taken_over,
}


def heal(cluster: Cluster) -> None:
    """Whatever was undone by time is undone; who sleeps wakes up; who is missing is started."""
    cluster.mid_word.clear()
    for machine in cluster.machines:
        machine.agent_paused = min(machine.agent_paused, 1)
        machine.resume_agent()
        machine.paused = min(machine.paused, 1)
        machine.resume()
    _revive(cluster)


def _revive(cluster: Cluster) -> None:
    """Hosts without an agent get one, as long as the job is not over."""
    if cluster.outcome is not None:
        return
    for machine in cluster.machines:
        if machine.process is None:
            _boot(machine)
    cluster.timeline.after(1.0, _revive, cluster)
