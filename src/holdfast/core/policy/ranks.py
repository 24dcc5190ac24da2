"""Which nodes sit in a round, in what order, and with which ranks.

Three questions, one function each, all answered by the coordinator before a round is
announced. Candidates come in the order in which they arrived.

Seats (`select`)
1. A former member that is a candidate always gets a seat: it has state.
2. A newcomer takes a seat that a node of its own role left. A job has `maximum` seats;
   each seat of the former round belongs to the role of the node that last held it.
3. A seat that was never held goes to any newcomer, whatever its role.
4. Among newcomers the one that arrived first is served first. Nodes without a seat stand by.

Order (`order`)
5. Former members first, in the order that they had: the oldest are in front, so rank 0 is
   one that has state. Newcomers come after them.
6. Newcomers among themselves: by rank hint, then topology key, then host name, both in
   natural order (node2 before node10), then arrival. No hint comes after every hint, no
   key after every key.
7. In the very first round a hint is a position: hint k is position k, where k is free. Of two
   nodes with one hint the first to arrive has it and the other the next one; hints
   beyond the end take the last positions. The others fill the rest, in the order of 6.

Ranks (`assign`)
8. Global ranks are dense (0 … world size − 1), and contiguous on each node.
9. Role ranks are dense within a role, in the same order.

Where ranks are fixed (`by_rank`), in place of 1 to 7
10. A node sits at the rank that it was started with, in every round, or nowhere.
11. Of several that claim one rank the one with state sits, the newest first, then the one
    that arrived first. The others stand by until it is gone.

The keeper of the rounds remembers a seat that stays empty for want of its role: `seat_holders`
returns the last holder of each seat, and `select` takes that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo, Ranks

_NUMBERS = re.compile("([0-9]+)")


def select(
    candidates: Sequence[NodeInfo], former: Sequence[NodeInfo], maximum: int
) -> tuple[NodeInfo, ...]:
    """The candidates that get a seat in the next round, former members first, then by arrival.

    `former` holds the last holder of every seat of the former round (`seat_holders`), and
    is empty before the first round. The caller decides whether absent former members may be
    replaced yet. Fewer may sit than there are candidates even below `maximum`, when the
    seats left are of other roles.
    """
    present = {candidate.node: candidate for candidate in candidates}
    sitting = [present[member.node] for member in former if member.node in present][:maximum]
    held = {member.node for member in former}
    left = Counter(member.role for member in former if member.node not in present)
    never_held = maximum - len(former)
    for candidate in candidates:
        if candidate.node in held or len(sitting) >= maximum:
            continue
        if left[candidate.role] > 0:
            left[candidate.role] -= 1
        elif never_held > 0:
            never_held -= 1
        else:
            continue
        sitting.append(candidate)
    return tuple(sitting)


def seat_holders(
    former: Sequence[NodeInfo], members: Sequence[NodeInfo], maximum: int
) -> tuple[NodeInfo, ...]:
    """The last holder of each seat, once `members` sit: they, and those that were not replaced."""
    sitting = {member.node for member in members}
    filled = Counter(member.role for member in members)
    filled.subtract(member.role for member in former if member.node in sitting)
    absent = []
    for member in former:
        if member.node in sitting:
            continue
        if filled[member.role] > 0:
            filled[member.role] -= 1
        else:
            absent.append(member)
    return (*members, *absent)[:maximum]


def order(candidates: Iterable[NodeInfo], previous: Sequence[str] = ()) -> tuple[NodeInfo, ...]:
    """The nodes of a round in the order of their ranks; `previous` names the former order."""
    positions = {node: position for position, node in enumerate(previous)}
    arrived = list(candidates)
    survivors = [candidate for candidate in arrived if candidate.node in positions]
    newcomers = [candidate for candidate in arrived if candidate.node not in positions]
    if not positions:
        return _by_position(newcomers)
    survivors.sort(key=lambda candidate: positions[candidate.node])
    newcomers.sort(key=_preference)  # stable: arrival decides among equals
    return (*survivors, *newcomers)


def _by_position(arrived: Sequence[NodeInfo]) -> tuple[NodeInfo, ...]:
    """Rule 7: hinted nodes at their positions, the others in between."""
    hinted = sorted((n for n in arrived if n.rank_hint is not None), key=_hint)
    others = iter(sorted((n for n in arrived if n.rank_hint is None), key=_preference))
    behind = len(arrived) - len(hinted)
    seated: dict[int, NodeInfo] = {}
    position = -1
    for index, member in enumerate(hinted):
        # Not so far back that nodes with a higher hint would not fit behind it.
        position = min(max(_hint(member), position + 1), behind + index)
        seated[position] = member
    return tuple(seated[i] if i in seated else next(others) for i in range(len(arrived)))


def by_rank(
    candidates: Iterable[NodeInfo], previous: Sequence[str], size: int
) -> dict[int, NodeInfo]:
    """The node at each fixed rank of a job of this size; none at a rank without a candidate.

    Candidates come in the order of their arrival; `previous` names the nodes with state, the
    newest first. Ranks come in their order.
    """
    positions = {node: position for position, node in enumerate(previous)}
    seated: dict[int, NodeInfo] = {}
    for candidate in sorted(candidates, key=lambda one: positions.get(one.node, len(positions))):
        if candidate.rank_hint is not None and 0 <= candidate.rank_hint < size:
            seated.setdefault(candidate.rank_hint, candidate)
    return dict(sorted(seated.items()))


def _hint(member: NodeInfo) -> int:
    return member.rank_hint or 0


Natural = tuple[tuple[int, str], ...]


def _preference(member: NodeInfo) -> tuple[bool, int, bool, Natural, Natural]:
    return (
        member.rank_hint is None,
        _hint(member),
        not member.topology,
        natural(member.topology),
        natural(member.host),
    )


def natural(text: str) -> Natural:
    """A sort key by which numbers inside of words count as numbers.

    Digits are compared by length and then as text: equal to comparing them as numbers, and
    no length of a name from the network makes it expensive or an error.
    """
    parts = enumerate(_NUMBERS.split(text))
    keys = [_number(part) if position % 2 else (0, part) for position, part in parts]
    return (*keys, (0, text))


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant


def assign(
    members: Sequence[NodeInfo], *, round: int, restart_count: int, master: Endpoint
) -> dict[str, Assignment]:
    """Give every node of a round its part of it, keyed by node."""
    world_size = sum(member.slots for member in members)
    role_sizes: dict[str, int] = {}
    for member in members:
        role_sizes[member.role] = role_sizes.get(member.role, 0) + member.slots
    next_rank = 0
    next_role_rank = dict.fromkeys(role_sizes, 0)
    assignments = {}
    for group_rank, member in enumerate(members):
        first_role_rank = next_role_rank[member.role]
        assignments[member.node] = Assignment(
            round=round,
            restart_count=restart_count,
            group_rank=group_rank,
            group_size=len(members),
            world_size=world_size,
            role_world_size=role_sizes[member.role],
            workers=tuple(
                Ranks(local_rank=local, rank=next_rank + local, role_rank=first_role_rank + local)
                for local in range(member.slots)
            ),
            master=master,
        )
        next_rank += member.slots
        next_role_rank[member.role] += member.slots
    return assignments
