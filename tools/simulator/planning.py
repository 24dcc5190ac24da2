"""Plans made from a seed: how many hosts, what kind of job, and which faults.

A profile says what kind of trouble a run has. Without one, the seed picks it, small and mixed
ones more often than large ones.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tools.simulator.plan import (
    LEADER,
    Fault,
    FaultKind,
    HostPlan,
    Plan,
    RegisterKind,
    RegisterPlan,
    Strike,
)

from holdfast.core.policy import timing
from holdfast.core.policy.config import (
    JobConfig,
    Leases,
    Program,
    Quarantine,
    Rendezvous,
    RestartPolicy,
    Timeouts,
    WarmStart,
)

DEATHS: tuple[FaultKind, ...] = ("agent crashes", "node is killed", "host crashes")
NETWORK: tuple[FaultKind, ...] = (
    "cut off",
    "cut off from",
    "cut off one way",
    "connection reset",
    "connection half open",
    "slow network",
)
SLEEP: tuple[FaultKind, ...] = ("agent pauses", "host pauses", "leader pauses mid-word")
REGISTER: tuple[FaultKind, ...] = (
    "register down",
    "register mute",
    "register lossy",
    "register slow",
    "register refuses",
    "register changes its leader",
    "deaf to register",
)
OF_ITS_KIND: dict[RegisterKind, tuple[FaultKind, ...]] = {
    "plain": ("register stale",),
    "pushing": ("register stale", "watch breaks", "pushes late", "pushes jumbled"),
    "holding": ("watch breaks", "pushes late", "pushes jumbled"),
    "forgetful": ("register restarts empty",),
}
"""What goes wrong with one kind of register only."""
WORKERS: tuple[FaultKind, ...] = ("worker fails",)
MIXED_ROLES = 0.12
POINTS = 250
"""Among the first so many points of the protocol somebody is struck."""
HUNG_S = 1000.0
"""An import that never ends."""
SLOWNESS: tuple[FaultKind, ...] = ("slow start", "slow stop", "zygote lost")


class Profile(Struct, frozen=True):
    """What kind of trouble."""

    kinds: tuple[FaultKind, ...]
    hosts: tuple[int, int] = (2, 5)
    faults: tuple[int, int] = (1, 6)
    at_leader: float = 0.3
    """How often it strikes the leader."""
    embedded: float = 0.35
    """How often one fixed host carries the coordinator."""
    short_s: tuple[float, float] = (0.2, 8.0)
    """How long what lasts lasts."""
    elastic: float = 0.7
    late: float = 0.3
    """How often a host comes late."""
    spare: float = 0.3
    """How often there are more hosts than seats."""
    roomy: float = 0.25
    """How often there are more seats than hosts."""
    ends_early: float = 0.15
    shortage: float = 0.0
    forgets: float = 0.2
    """How often an embedded coordinator may lose its record."""
    at_the_end: bool = False
    """Faults strike when the workers finish."""
    unwritten: bool = False
    """It takes long until the end of the job is written down."""
    registers: tuple[RegisterKind, ...] = ("plain", "pushing", "holding", "holding", "forgetful")
    leases_s: tuple[float, ...] = (3.0, 4.0, 6.0)
    struck: float = 0.0
    """How often whoever leads is struck at a point of the protocol, whenever that is reached."""
    saves: float = 0.4
    """How often workers ask whether they are to save."""
    breaks: float = 0.0
    """How often they end once they have, if the round is to end."""
    at_one_host: float = 0.0
    """How often what does not strike the leader strikes the last host."""
    hangs: float = 0.0
    """How often a worker is ended where all stand still, and not only told of."""
    slow_first: float = 0.0
    """How often the first host, which leads, is too slow for a seat where not all get one."""


PROFILES: dict[str, Profile] = {
    "mixed": Profile(
        (*DEATHS, *NETWORK, *SLEEP, *REGISTER, *WORKERS, *SLOWNESS, "drain", "spawner is killed")
    ),
    "workers": Profile((*WORKERS, *WORKERS, *SLOWNESS, "worker never retries"), at_leader=0.2),
    "one failure": Profile(WORKERS, faults=(1, 2), late=0.0, ends_early=0.0, spare=0.2),
    "deaths": Profile((*DEATHS, "spawner is killed", "worker fails")),
    "network": Profile(NETWORK, embedded=0.4),
    "sleep": Profile(SLEEP, short_s=(0.5, 12.0), at_leader=0.5),
    "woken": Profile(
        (
            *("agent pauses", "agent pauses", "host pauses", "slow spawner", "slow spawner"),
            *("worker fails", "connection reset", "spawner is killed"),
        ),
        hosts=(2, 4),
        faults=(4, 10),
        at_leader=0.7,
        short_s=(2.0, 14.0),
        leases_s=(3.0, 4.0),
        late=0.0,
    ),
    "leader": Profile((*DEATHS, *NETWORK, *SLEEP, "drain"), at_leader=0.9, embedded=0.1),
    "register": Profile((*REGISTER, *REGISTER, *SLEEP, "cut off"), at_leader=0.6, embedded=0.0),
    "watching": Profile(
        (*DEATHS, *REGISTER, "agent pauses"),
        at_leader=0.7,
        embedded=0.0,
        registers=("pushing", "holding", "holding"),
    ),
    "emptied": Profile(
        (*DEATHS, "agent pauses", "deaf to register", "register down", "cut off"),
        at_leader=0.6,
        embedded=0.0,
        registers=("forgetful",),
    ),
    "emptied twice": Profile(
        (
            *("register restarts empty", "register restarts empty", "register down"),
            *("deaf to register", "agent crashes", "agent pauses"),
        ),
        faults=(4, 8),
        at_leader=0.6,
        embedded=0.0,
        registers=("forgetful",),
        short_s=(0.5, 6.0),
    ),
    "takeover": Profile(
        (*DEATHS, "agent pauses", "deaf to register", "register down", "drain"),
        faults=(1, 1),
        at_leader=0.9,
        embedded=0.0,
        late=0.0,
        spare=0.5,
        ends_early=0.0,
        leases_s=(10.0,),
        slow_first=0.6,
    ),
    "points": Profile(
        (*DEATHS, "agent pauses", "deaf to register", "worker fails", "drain"),
        faults=(1, 3),
        at_leader=0.5,
        embedded=0.1,
        struck=1.0,
    ),
    "drains": Profile(("drain", "drain", "worker fails", "node is killed"), spare=0.5),
    "growth": Profile(("node is killed", "worker fails"), faults=(0, 2), late=0.9, elastic=1.0),
    "slow": Profile((*SLOWNESS, *WORKERS, "drain"), spare=0.7),
    "embedded": Profile((*DEATHS, *NETWORK, *SLEEP), at_leader=0.7, embedded=1.0),
    "unwritten": Profile(
        (
            *(*DEATHS, "drain", "spawner is killed", "connection reset", "agent pauses"),
            *("worker fails", "worker fails", "node stands still"),
        ),
        faults=(1, 4),
        at_leader=0.1,
        embedded=0.3,
        late=0.0,
        forgets=0.0,
        at_the_end=True,
        unwritten=True,
        hangs=0.5,
    ),
    "forgetful": Profile(
        DEATHS, faults=(2, 4), at_leader=1.0, embedded=1.0, short_s=(0.2, 3.0), forgets=1.0
    ),
    "endings": Profile(
        (*DEATHS, "drain", "cut off"), at_leader=0.2, embedded=0.5, late=0.0, at_the_end=True
    ),
    "closings": Profile(
        (*DEATHS, "drain", "worker fails", "closing asked", "released", "released"),
        at_leader=0.4,
        elastic=0.5,
        ends_early=0.7,
    ),
    "liars": Profile(
        ("a liar speaks", "a liar speaks", "worker fails", "node is killed"),
        embedded=1.0,
        forgets=0.0,
    ),
    "again": Profile(
        ("all are killed",),
        faults=(1, 2),
        late=0.0,
        ends_early=0.0,
        short_s=(0.0, 2.0),
        forgets=0.0,
        leases_s=(4.0, 6.0, 30.0),
    ),
    "asked": Profile(
        ("everybody is asked", "whole tree is asked", "drain", "drain", "worker fails"),
        faults=(1, 4),
        at_leader=0.4,
        elastic=0.5,
        spare=0.4,
        saves=0.7,
    ),
    "blamed": Profile(
        (*WORKERS, *WORKERS, *WORKERS, "node is killed"),
        faults=(4, 9),
        at_leader=0.2,
        short_s=(0.2, 1.5),
        spare=0.6,
        late=0.1,
        at_one_host=0.85,
        ends_early=0.0,
    ),
    "shortage": Profile(("node is killed",), faults=(0, 2), late=0.6, shortage=1.0, spare=0.0),
    "stall": Profile(
        (
            *("job stands still", "job stands still", "job stands still", "node stands still"),
            *("connection reset", "connection reset", "connection half open", "slow network"),
            *("cut off from", "agent pauses", *DEATHS),
        ),
        faults=(3, 8),
        at_leader=0.4,
        embedded=0.5,
        late=0.1,
        short_s=(1.0, 30.0),
        hangs=0.6,
    ),
    "unheard": Profile(
        (
            *("job stands still", "job stands still", "job stands still"),
            *("node moves unheard", "node moves unheard", "hang is unheard", "hang is unheard"),
            "node stands still",
        ),
        hosts=(2, 4),
        faults=(4, 9),
        at_leader=0.1,
        embedded=0.5,
        late=0.0,
        spare=0.5,
        ends_early=0.0,
        short_s=(1.0, 25.0),
        hangs=0.5,
    ),
    "scaled": Profile(
        ("scaled", "scaled", "scaled", *DEATHS, *WORKERS, "drain", "agent pauses", "cut off"),
        hosts=(2, 6),
        faults=(2, 7),
        at_leader=0.8,
        elastic=0.5,
        spare=0.5,
    ),
    "saves": Profile(
        (
            *("saving wanted", "saving wanted", "saving wanted", "saving wanted", "saving wanted"),
            *DEATHS,
            *WORKERS,
            *NETWORK,
            "drain",
            "agent pauses",
        ),
        faults=(3, 9),
        at_leader=0.9,
        embedded=0.3,
        late=0.1,
        short_s=(0.2, 5.0),
        saves=1.0,
    ),
    "orderly": Profile(
        (
            *("restart wanted", "restart wanted", "scaled", "scaled", "saving wanted"),
            *("worker fails", "worker fails"),
        ),
        faults=(1, 5),
        at_leader=0.9,
        late=0.8,
        roomy=0.6,
        short_s=(0.2, 5.0),
        saves=1.0,
        elastic=1.0,
        breaks=0.4,
    ),
    "disorderly": Profile(
        (
            *("restart wanted", "restart taken over", "restart taken over"),
            *("scaled", "saving wanted"),
            *("drain", "drain", "drain", "connection reset", "connection reset"),
            *DEATHS,
            *NETWORK,
            *WORKERS,
            "agent pauses",
        ),
        faults=(3, 9),
        at_leader=0.7,
        late=0.6,
        spare=0.4,
        roomy=0.6,
        short_s=(0.2, 5.0),
        saves=1.0,
        elastic=1.0,
        breaks=0.4,
    ),
    "restarts": Profile(
        ("restart wanted", "restart taken over", "restart taken over"),
        faults=(1, 2),
        at_leader=1.0,
        embedded=0.1,
        late=0.0,
        ends_early=0.0,
        short_s=(0.2, 1.0),
        leases_s=(3.0,),
        saves=1.0,
    ),
    "large": Profile(
        (*DEATHS, *NETWORK, *SLEEP, *WORKERS, "drain"), hosts=(8, 40), faults=(1, 5), late=0.1
    ),
    "huge": Profile((*DEATHS, *WORKERS, "drain"), hosts=(100, 200), faults=(1, 3), late=0.0),
}
WEIGHTS = {
    "mixed": 30, "workers": 6, "one failure": 6, "deaths": 8, "network": 10, "sleep": 8,
    "leader": 10, "register": 8, "drains": 6, "growth": 4, "slow": 5, "embedded": 8,
    "watching": 6, "emptied": 4, "emptied twice": 0, "takeover": 4, "points": 6,
    "endings": 4, "forgetful": 2, "shortage": 2, "large": 1.2, "huge": 0.05,
    "closings": 0, "liars": 0, "asked": 0, "again": 0, "blamed": 0, "stall": 0,
    "unheard": 0, "scaled": 0, "saves": 0, "woken": 0, "unwritten": 0,
    "orderly": 0, "disorderly": 0, "restarts": 0,
}  # fmt: skip


def make_plan(seed: int, profile: str = "") -> Plan:
    """The plan that belongs to a seed."""
    random = Random(f"plan {seed} {profile}")
    if not profile:
        profile = random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
    kind = PROFILES[profile]
    embedded = random.random() < kind.embedded
    count = random.randint(*kind.hosts)
    config = _config(random, kind, count, embedded)
    if kind.at_one_host:
        config = _with_quarantine(seed, config)
    if Random(f"hangs {seed}").random() < kind.hangs:
        config = replace(config, oversight=replace(config.oversight, hang="restart"))
    heal_at = _heal_at(random, config)
    register = _register(seed, kind, config)
    faults = _faults(random, kind, heal_at, (count, None if embedded else register.kind))
    hosts = tuple(_host(random, kind, config, number) for number in range(count))
    if kind.unwritten and config.min_nodes < count:
        hosts = _with_latecomer(seed, hosts, faults)
    return Plan(
        seed=seed,
        profile=profile,
        config=config,
        hosts=_with_roles(seed, hosts),
        faults=faults,
        heal_at=heal_at,
        embedded=embedded,
        keeps_record=random.random() < 1 - kind.forgets,
        victims=random.random() < 0.7,
        reports_steps=random.random() < 0.6,
        saves=Random(f"saves {seed}").random() < kind.saves,
        breaks=Random(f"breaks {seed}").random() < kind.breaks,
        enough_nodes=count >= config.min_nodes,
        register=register,
        strike=_strike(seed, kind, embedded),
    )


def _register(seed: int, kind: Profile, config: JobConfig) -> RegisterPlan:
    random = Random(f"register {seed}")
    most = config.leases.drift * 0.49
    return RegisterPlan(
        kind=random.choice(kind.registers),
        patience=random.choice((1 / 3, 0.85, 1.0)),
        clock_rate=1.0 + random.uniform(-most, most),
    )


def _strike(seed: int, kind: Profile, embedded: bool) -> Strike | None:
    random = Random(f"strike {seed}")
    if random.random() >= kind.struck:
        return None
    ways: tuple[FaultKind, ...] = (*DEATHS, "agent pauses", "host pauses", "cut off")
    what = random.choice(ways if embedded else (*ways, "deaf to register"))
    lasts_s, other = random.uniform(*kind.short_s), random.randrange(1000)
    return Strike(random.randrange(1, POINTS), Fault(0.0, what, 0, lasts_s, other))


def _heal_at(random: Random, config: JobConfig) -> float:
    return 5.0 + config.leases.lease_s * random.uniform(2.0, 6.0)


def _config(random: Random, kind: Profile, count: int, embedded: bool) -> JobConfig:
    lease_s = random.choice(kind.leases_s)
    leases = timing.derive(Leases(), {"lease_s": lease_s, "hold_s": lease_s * 1.5})
    seats = count
    if count > 2 and random.random() < kind.spare:
        seats = count - random.randint(1, max(1, count // 3))
    least = random.randint(1, seats) if random.random() < kind.elastic else seats
    if seats == count and random.random() < kind.roomy:
        seats += random.randint(1, 2)
    if random.random() < kind.shortage:
        least = seats = count + 1
    return JobConfig(
        "job",
        Program("script", "train.py"),
        min_nodes=least,
        max_nodes=max(seats, 2),
        rendezvous=Rendezvous(backend="holdfast" if embedded else "etcd"),
        restarts=_policy(random),
        timeouts=_timeouts(random),
        leases=leases,
        warm=WarmStart(),
    ).validate()


def _policy(random: Random) -> RestartPolicy:
    return RestartPolicy(
        max_restarts=random.choice((0, 1, 3, 8)),
        backoff_first_s=0.4,
        backoff_max_s=2.0,
        same_cause_limit=0,
        progress_after_s=4.0,
        fruitless_rounds_limit=random.choice((0, 0, 6)),
    )


def _with_quarantine(seed: int, config: JobConfig) -> JobConfig:
    """Hosts are kept out soon, and not for long; and failures do not use up the budget."""
    random = Random(f"quarantine {seed}")
    first_s = random.choice((2.0, 4.0, 200.0))
    rules = Quarantine(random.choice((2, 2, 3)), first_s, first_s * 2, forget_s=12.0)
    restarts = replace(config.restarts, max_restarts=20, fruitless_rounds_limit=0)
    return replace(config, quarantine=rules, restarts=restarts)


def _timeouts(random: Random) -> Timeouts:
    return Timeouts(
        shutdown_s=random.choice((0.8, 1.5)),
        unkillable_s=0.6,
        preload_s=1.5,
        join_s=random.choice((40.0, 60.0)),
        last_call_s=random.choice((1.0, 2.0)),
        scale_up_delay_s=0.4,
        min_round_s=random.choice((0.5, 1.0)),
        min_round_max_s=4.0,
        drain_s=1.5,
        save_s=2.5,
        close_s=6.0,
    )


def _host(random: Random, kind: Profile, config: JobConfig, number: int) -> HostPlan:
    most = config.leases.drift * 0.49
    late = random.random() < kind.late and number > 0
    host = HostPlan(
        slots=random.choice((1, 1, 2)),
        role="default",
        start_at=random.uniform(1.0, 10.0) if late else 0.3 * random.random(),
        clock_offset_s=random.uniform(1.0, 1e5),
        clock_rate=1.0 + random.uniform(-most, most),
        warm=random.random() < 0.3,
        preload_s=random.choice((0.2, 0.5, HUNG_S)),
    )
    if kind.slow_first and number == 0 and random.random() < kind.slow_first:
        return replace(host, start_at=0.0, warm=True, preload_s=HUNG_S)
    return host


def _with_roles(seed: int, hosts: tuple[HostPlan, ...]) -> tuple[HostPlan, ...]:
    """Now and then a job of two roles."""
    random = Random(f"roles {seed}")
    if random.random() >= MIXED_ROLES:
        return hosts
    return tuple(replace(host, role=random.choice(("trainer", "trainer", "ps"))) for host in hosts)


def _kinds(kind: Profile, register: RegisterKind | None) -> list[FaultKind]:
    """What may go wrong, given the register that there is, if there is one."""
    if register is None:
        return [k for k in kind.kinds if k not in REGISTER]
    if not any(k in REGISTER for k in kind.kinds):
        return list(kind.kinds)
    # As often as all that goes wrong with any register, half of it.
    times = max(1, len([k for k in kind.kinds if k in REGISTER]) // 2)
    own = OF_ITS_KIND[register]
    return [*kind.kinds, *(own[number % len(own)] for number in range(max(times, len(own))))]


ABOUT_THE_END: tuple[tuple[FaultKind, FaultKind], ...] = (
    ("drain", "node is killed"),
    ("job stands still", "node is killed"),
    ("slow stop", "worker fails"),
    ("job stands still", "drain"),
    ("drain", "worker fails"),
)
"""What happens to a host shortly before the end is decided, and shortly after."""


def _unwritten(random: Random, end: float, register: RegisterKind | None) -> list[Fault]:
    """Somebody stops the job, or it comes to its end, and that is not written down for a while."""
    slow: FaultKind = "record slow"
    if register is not None:
        slow = random.choice(("register slow", "register mute", "register down"))
    lasts_s = random.uniform(2.0, 8.0)
    if Random(f"long {lasts_s}").random() < 0.25:
        lasts_s *= 2.0  # So that nodes lose patience, and leaders their term.
    faults = [Fault(end - 0.2, slow, LEADER, lasts_s=lasts_s)]
    for before, after in random.sample(ABOUT_THE_END, random.randint(0, 2)):
        host, other = random.randrange(2), random.randrange(1000)
        lasts_s = random.uniform(2.0, 8.0)
        faults.append(Fault(end - random.uniform(0.0, 1.5), before, host, lasts_s, other))
        faults.append(Fault(end + random.uniform(0.0, 1.5), after, host, lasts_s, other))
    if random.random() < 0.7:
        faults.append(Fault(end, "job stopped", LEADER))
    return faults


def _with_latecomer(
    seed: int, hosts: tuple[HostPlan, ...], faults: tuple[Fault, ...]
) -> tuple[HostPlan, ...]:
    """Now and then a node comes when the end of the job is decided, and not yet written down."""
    random = Random(f"latecomer {seed}")
    ends = [fault.at for fault in faults if fault.kind in ("job stopped", "workers finish")]
    if not ends or random.random() < 0.5:
        return hosts
    comes_at = min(ends) + random.uniform(-0.5, 2.0)
    return (*hosts[:-1], replace(hosts[-1], start_at=comes_at))


def _faults(
    random: Random, kind: Profile, heal_at: float, cluster: tuple[int, RegisterKind | None]
) -> tuple[Fault, ...]:
    count, register = cluster
    kinds = _kinds(kind, register)
    faults: list[Fault] = []
    end = random.uniform(4.0, heal_at - 3.0)
    span = (end, end + 2.5) if kind.at_the_end else (1.0, heal_at - 1.0)
    for _ in range(random.randint(*kind.faults)):
        at_leader = random.random() < kind.at_leader
        what = random.choice(kinds)
        if what == "leader pauses mid-word":
            at_leader = True
        at = random.uniform(*span)
        host = LEADER if at_leader else random.randrange(count)
        if kind.at_one_host and not at_leader and random.random() < kind.at_one_host:
            host = count - 1
        faults.append(
            Fault(
                at=at,
                kind=what,
                host=host,
                lasts_s=random.uniform(*kind.short_s),
                other=random.randrange(1000),
            )
        )
    if kind.at_the_end or random.random() < kind.ends_early:
        faults.append(Fault(at=end, kind="workers finish"))
    if kind.unwritten:
        faults += _unwritten(Random(f"unwritten {random.random()}"), end, register)
    return tuple(sorted(faults, key=lambda fault: fault.at))
