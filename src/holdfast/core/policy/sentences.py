"""What the core tells its users: sentences, as functions of facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.protocol.model import Assignment

SPAWNER_SILENT = "the spawner, the parent of all workers here, does not answer: killing it"
NO_SUBREAPER = "this kernel has no subreaper: processes that workers detach may outlive the job"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def between(least: int, most: int) -> str:
    """`2 to 4 nodes`."""
    nodes = _count(most, "node")
    return nodes if least == most else f"{least} to {nodes}"


def seat(assignment: Assignment) -> str:
    first, last = assignment.workers[0].rank, assignment.workers[-1].rank
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    where = f"node {assignment.group_rank + 1} of {assignment.group_size}"
    return f"round {assignment.round}: {where}, {ranks} of {assignment.world_size}"


def round_ends(number: int, reason: str, left: int, has_failed: bool) -> str:
    """The end of a round, and its effect on this node, where `left` workers still run."""
    stopping = ""
    if left and has_failed:
        stopping = (
            f"; stopping the other {'worker' if left == 1 else f'{left} workers'} of this node"
        )
    elif left:
        stopping = f"; stopping {_count(left, 'worker')} of this node"
    return f"round {number} ends: {reason}{stopping}"


def no_contact(reason: str, is_done: bool, has_job: bool, limit_s: float | None) -> str:
    """The coordinator cannot be reached, and is dialled again for up to `limit_s`."""
    again = "reconnecting" if has_job else "trying until it answers"
    if has_job and limit_s is not None:
        again += f", for up to {limit_s:g} s (--join-timeout)"
    if is_done:
        again = "all workers of this node are done; waiting for that to be recorded"
    return f"no contact with the coordinator: {reason}; {again}"


def passed_on(running: int, grace_s: float, is_interrupt: bool) -> str:
    """The effect of a signal; follows a sentence about it."""
    if not running:
        return ""
    again = "; Ctrl-C again ends at once" if is_interrupt else ""
    return f"; passing it on to {_count(running, 'worker')}, {grace_s:g} s of grace{again}"


INTERRUPTED_AGAIN = "interrupted again: killing the workers at once"


def others_wait(others: int, limit_s: float) -> str:
    """Ending one node of a job that needs all of its nodes does not end the job."""
    nodes = "the other node waits" if others == 1 else f"the other {others} nodes wait"
    there = "there" if others == 1 else "on each of them"
    return (
        f"{nodes} up to {limit_s:g} s (--join-timeout) for another node in place of this one;"
        f" Ctrl-C {there} ends it"
    )


def not_stopped(ranks: Sequence[int], limit_s: float) -> str:
    return f"{named(ranks)} did not stop within {limit_s:g} s (--shutdown-timeout): killing"


def left_behind(processes: Sequence[str], forbidden: Sequence[str]) -> Iterator[str]:
    """Processes that outlive the node; those that are `forbidden` to it may well go on."""
    if processes or not forbidden:
        named = ", ".join(processes) or "a process"
        yield f"{named} did not die from SIGKILL (stuck in the kernel?); going on without it"
    if forbidden:
        words = "belongs to another user: it could not be ended, and may still run"
        yield f"{', '.join(forbidden)} {words}; going on without it"


def spawner_lost(host: str, reason: str, left: Sequence[str]) -> str:
    """The end of a node; processes that are `left` could not be ended."""
    survivors = f", but {', '.join(left)} could not be ended" if left else ""
    return f"the spawner on {host} {reason}; its workers were killed with it{survivors}"


# Rounds (`core.rounds`, `core.seating`).

PAUSING = "pausing before the next round"
FREE = "re-forming, not counted against --max-restarts"
ROUND_OVER = "that round is over"
LOST_LEASE = "had lost the coordinator and stopped its workers"
"""Of a node, as those that follow."""
HAS_STOPPED = "has stopped its workers"
NO_RANK = "this job has fixed ranks, and this node came without --node-rank: standing by"


def last_call(candidates: int, most: int) -> str:
    are = "is" if candidates == 1 else "are"
    enough = f"{_count(candidates, 'node')} {are} enough"
    return f"{enough}; last call for up to {most - candidates} more"


def too_few_yet(candidates: int, least: int, within_s: float | None) -> str:
    limit = "" if within_s is None else f" up to {within_s:g} s (--join-timeout)"
    have = f"{candidates} of at least {_count(least, 'node')}"
    return f"{have}; waiting{limit} for {least - candidates} more"


def too_few_came(candidates: int, least: int, within_s: float) -> str:
    have = f"only {candidates} of at least {_count(least, 'node')}"
    return f"{have} came within {within_s:g} s (--join-timeout)"


def was_lost(reason: str) -> str:
    return f"was lost: {reason}"


def has_left(reason: str) -> str:
    return f"has left: {reason}"


def is_leaving(reason: str) -> str:
    return f"is leaving: {reason}"


ALL_ENDED = "all its processes have ended"
"""Of a node that is gone, as those that follow."""
PROVEN_END = f"{ALL_ENDED}, as its machine confirms"


def silent(for_s: float) -> str:
    return f"it was silent for {for_s:.1f} s"


def may_be_lost(node: str, reason: str) -> str:
    return f"{node} may be lost: {reason}"


def stays_out(node: str, reason: str) -> str:
    return f"{node} stays out: {reason}"


def out_of_reach(silent: int, size: int) -> str:
    """Why a coordinator resigns."""
    return f"{silent} of {size} nodes of the round are out of reach"


def not_stopped_in_time(node: str) -> str:
    return f"{node} has not stopped its workers, and counts as lost when its lease is over"


def not_formed(reason: str, lost: str) -> str:
    return f"{reason}, after {lost} was lost"


def no_seat(number: int, size: int, most: int) -> str:
    """To a node that waits while a round runs."""
    soon = "this one will be taken in soon" if size < most else "standing by"
    return f"round {number} runs with {size} of at most {most} nodes: {soon}"


def round_closing(number: int) -> str:
    return f"round {number} is coming to its end: standing by"


def restart_asked(by: str) -> str:
    return f"{by} asked for a restart"


def fewer_asked(by: str, most: int) -> str:
    return f"{by} asked for at most {_count(most, 'node')}"


def joined(newcomers: int) -> str:
    return "a node has joined" if newcomers == 1 else f"{newcomers} nodes have joined"


def stopping(reason: str, number: int) -> str:
    return f"{reason}; stopping round {number}"


def re_forming(reason: str) -> str:
    return f"{reason}; {FREE}" if reason else FREE


def peers_failed(lost: str) -> str:
    return f"{lost}, and its peers' workers failed as a result"


def and_then(reason: str, further: str) -> str:
    """Why a round ended, and what follows."""
    return f"{reason}; {further}"


def without_progress(rounds: int) -> str:
    return f"{rounds} rounds in a row ended without progress"


def no_further_round(reason: str) -> str:
    return f"{reason}; no further round forms"


def lost_ranks(first: int, last: int) -> str:
    """Follows the name of the node that had them."""
    return f" (rank {first})" if first == last else f" (ranks {first} to {last})"


def missing_ranks(missing: Sequence[int], rivals: tuple[int, str, str] | None) -> str:
    """The fixed ranks without a node, and one that two nodes claim."""
    shown = ", ".join(map(str, missing[:3]))
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    said = f"rank{'' if len(missing) == 1 else 's'} {shown}{more}"
    if rivals is not None:
        rank, holder, other = rivals
        said += f"; rank {rank} is claimed by {holder} and by {other}"
    return said


def rank_too_high(rank: int, size: int) -> str:
    return f"this node came with --node-rank {rank} to a job of {size} nodes: standing by"


def rank_taken(rank: int, by: str) -> str:
    return f"--node-rank {rank} is taken by {by}: this node stands by until that one is gone"


# Restarts (`core.policy.restarts`).

MARKED_HOPELESS = "it was marked as a failure that a restart cannot help"


def not_retryable(exit_code: int) -> str:
    return f"exit code {exit_code} is one of --non-retryable-exit-codes"


def hopeless(why: str) -> str:
    return f"a restart would not help: {why}"


def same_again(times: int, limit: int) -> str:
    again = f"the same failure came {times} times in a row without progress"
    return f"{again} (--same-cause-limit {limit})"


def restarts_used(most: int, window_s: float | None = None) -> str:
    if most == 0:
        return "no restarts were allowed (--max-restarts 0)"
    used = "the only restart was used" if most == 1 else f"all {most} restarts were used"
    return f"{used}{_within(window_s)} (--max-restarts {most})"


def restarting(delay_s: float, counted: int, most: int, window_s: float | None = None) -> str:
    pause = f" in {delay_s:.1f} s" if delay_s else ""
    return f"restarting{pause} ({counted} of {most}{_within(window_s)})"


def _within(window_s: float | None) -> str:
    return "" if window_s is None else f" within {window_s:g} s"


# Takeovers (`core.rounds`, `core.election`) and the end of the job (`core.coordinator`).

REGISTER_ANSWERS = "the register answers again"
RESIGNED = "it has resigned"
OUTRANKED = "another coordinator leads by now"
REGISTER_LOST = "its register was out of reach for too long"
FINISHED_BEFORE = (
    "this job has already finished, before this node came; "
    "use another --rdzv-id, or try again in a minute"
)


def taken_over(by: str) -> str:
    return f"{by or 'another coordinator'} has taken over"


def leader_gone(host: str) -> str:
    return f"the node that was the coordinator, on {host}, is gone with all its processes"


def member_ended(number: int, host: str) -> str:
    return f"a node of round {number}, on {host}, has ended"


def all_reported(number: int, size: int, some_done: bool) -> str:
    nodes = f"all {size} nodes of round {number} have"
    if some_done:
        nodes = f"all nodes of round {number} that are not done have"
    elif size == 1:
        nodes = f"the node of round {number} has"
    return f"{nodes} reported: it goes on"


def awaiting_reports(number: int, nodes: int, within_s: float) -> str:
    who = f"{_count(nodes, 'node')} of round {number}"
    return f"waiting up to {within_s:.0f} s for {who}, which may still run"


def not_reported(who: str, number: int) -> str:
    return f"{who} of round {number} did not report to the new coordinator"


def never_ran(number: int) -> str:
    return f"round {number} had not begun"


def end_unwritten(failure: str) -> str:
    """The outcome is not in the register yet; `failure` unless all workers succeeded."""
    what = f"the job is over ({failure})" if failure else "all workers are done"
    return f"{what}; waiting for the register to record it"


def register_unreachable(reason: str, hold_s: float | None) -> str:
    """For how long a running round goes on without it, if one runs."""
    holds = "" if hold_s is None else f"; a round that runs goes on for at most {hold_s:g} s"
    return f"the register cannot be reached: {reason or 'no answer came'}{holds}"


# Hangs (`core.features.hangs`).

HANGS = "the job hangs"
RESUMED = "the workers of this node are progressing again"


def stalled(workers: int, stalled_s: float, phases: Sequence[str], longest_s: float) -> str:
    """No wait in these phases took longer before."""
    usual = f"{longest_s:.1f} s" if longest_s < 10 else f"{longest_s:.0f} s"
    where = f" in {'/'.join(phases)}" if phases else ""
    return f"{_stalled(workers, stalled_s)}{where}, where no wait took more than {usual} before"


def stalled_silently(workers: int, stalled_s: float) -> str:
    """The workers never gave a sign."""
    return f"{_stalled(workers, stalled_s)}, without work or output"


def _stalled(workers: int, stalled_s: float) -> str:
    who = "the worker has been" if workers == 1 else "all workers have been"
    return f"{who} stalled for {stalled_s:.0f} s"


def straggler(rank: int, pace: float, others: float, for_s: float) -> str:
    theirs = f"where others make {_pace(others)}, for {for_s:.0f} s"
    return f"rank {rank} is a straggler: {_pace(pace)}, {theirs}"


def _pace(steps_a_second: float) -> str:
    if steps_a_second >= 1.0:
        return f"{steps_a_second:.1f} steps a second"
    return f"a step in {1 / steps_a_second:.1f} s"


def slow(behind: str, waiting: str) -> str:
    return f"slow, but moving: {behind}, while {waiting}"


def hang_of_nodes(nodes: int, stalled_s: float, locations: str, finished: Sequence[str]) -> str:
    """All workers of several nodes stall; those of the `finished` nodes had ended well."""
    ended = f"; all workers on {', '.join(finished)} had ended with exit code 0" if finished else ""
    stalled = f"all workers on {nodes} nodes have been stalled for {stalled_s:.0f} s"
    return f"{HANGS}: {stalled}: {locations}{ended}"


def hang_here(words: str, ended: Sequence[int], ended_s: float, file: str) -> str:
    """The workers of this node stall; those of the `ended` ranks had exited well before."""
    also = ""
    if ended:
        how = f"had ended with exit code 0 {ended_s:.0f} s before"
        also = f"; {named(ended)} {how}, and may be what they wait for"
    stacks = f"; their stacks: {file}" if file else ""
    return f"{HANGS}: {words}{also}{stacks}"


def ending_for_hang(rank: int) -> str:
    return f"ending rank {rank} for it (--hang restart)"


def ended_for_hang(location: str, file: str) -> str:
    """The error of the worker that was ended."""
    stacks = f"; stacks: {file}" if file else ""
    return f"the job hung, and it was ended{location and ' '}{location}{stacks}"


def stuck(rank: int, pid: int | None, words: str) -> str:
    return f"rank {rank} (pid {pid}) {words}"


def located(file: str) -> str:
    return f"where each worker was: {file}"


def first_sign_time(limit_s: float) -> str:
    """A deadline, as those that follow."""
    return f"the time to its first sign (--start-timeout {limit_s:g})"


def first_step_time(limit_s: float) -> str:
    return f"the time to the first step (--first-step-timeout {limit_s:g})"


def run_time(limit_s: float) -> str:
    return f"the time of the whole run (--run-timeout {limit_s:g})"


def scope_deadline(scope: str) -> str:
    return f"the deadline of {scope}"


def scope_timer(scope: str) -> str:
    return f"the timer of {scope}"


def deadline_missed(deadline: str, location: str) -> str:
    return f"{deadline} ran out" + (f" while it was {location}" if location else "")


def ending_for_deadline(rank: int, missed: str, file: str) -> str:
    return f"rank {rank}: {missed}; ending it{its_stack(file)}"


def its_stack(file: str) -> str:
    return f"; its stack: {file}" if file else ""


# Workers that do not exit (`core.features.exits`).


def not_exited(worker: str, after_s: float, where: str) -> str:
    return f"{worker} has not exited, {round(after_s, 1):g} s after others finished{where}"


def ending_unexited(worker: str, limit_s: float, where: str, has_finished: bool) -> str:
    counts = "it had finished" if has_finished else "it counts as failed"
    late = f"{limit_s:g} s after others finished (--exit-timeout)"
    return f"{worker} has not exited, {late}: ending it; {counts}{where}"


def ended_unexited(limit_s: float, where: str) -> str:
    """The error of the worker that was ended."""
    late = f"{limit_s:g} s after others finished (--exit-timeout)"
    return f"it had not exited {late}, and was ended{where}"


def at_exit(location: str, has_finished: bool) -> str:
    """A worker's location; it `has_finished` if it is past the end of its program."""
    past = "past the end of its program" if has_finished else ""
    words = ", ".join(filter(None, (past, location)))
    return f"; it is {words}" if words else ""


# Saving (`core.features.saving`).


def can_save(reason: str, workers: int, within_s: float) -> str:
    within = f"{round(within_s, 1):g} s"
    return f"{reason}; {_count(workers, 'worker')} of this node can save, for up to {within}"


def late_save(nodes: int, of: int) -> str:
    return f"{nodes} of {of} nodes have not saved yet; they still may"


ALL_LEFT = "has no worker left in the round: they were asked to save, and have ended"
"""Of a node."""
SAVE_ENDS = {
    "saved": "all workers that ask have saved",
    "nobody looks": "nobody saves: no worker of this job looks at holdfast.draining()",
    "given up": "nobody saves: not all workers asked, or came to a common step, in time",
}


def save_over(result: str, step: int | None) -> str:
    return SAVE_ENDS[result] + ("" if step is None else f", at step {step}")


# Warm start (`core.features.warm_start`).

ZYGOTE_SILENT = "the process that forks warm workers does not answer: killing it"
WORTH_SAYING_S = 0.2
"""Imports that cost each worker less than this are not reported."""


def importing(packages: Sequence[str]) -> str:
    return f"importing {', '.join(packages) or 'modules'} once for all workers of this node"


def cold_start(reason: str) -> str:
    return f"workers start cold: {reason}"


def preload_too_late(limit_s: float) -> str:
    return f"preloading took more than {limit_s:g} s"


def imported_by_each(module: str, cost_s: float, reason: str) -> str:
    """The module cannot be preloaded."""
    cost = f", about {cost_s:.1f} s" if cost_s >= WORTH_SAYING_S else ""
    hint = ""
    if " reads " in reason and "RANK" in reason:
        hint = f" (if that does not matter: --preload {module})"
    return f"each worker imports {module} itself{cost}: {reason}{hint}"


def imported_too_early(module: str, variable: str) -> str:
    """The program sets the variable before it imports the module, which reads it."""
    why = f"the program sets {variable} before it does so"
    return f"from the next round on, each worker imports {module} itself: {why}"


# Requests (`core.features.requests`).

NOT_JOINED = "this node has not joined the job yet"
TOO_MANY_REQUESTS = "too many requests; try again in a moment"
NO_NODE_NAMED = "no node named"


def no_such_node(name: str) -> str:
    return f"no node is called {name}"


# Operators' commands (`core.features.commands`).

JOB_OVER = "the job is over"
JOB_CLOSING = "the job is coming to its end: no further round will form"
ROUND_CLOSING = "the round is coming to its end"
NO_ROUND = "no round is running: a restart is under way, or the job waits for nodes"
BAD_LIMITS = "a job has at least 1 node, and a maximum that is not below its minimum"
FIXED_RANKS = "the nodes of this job have fixed ranks (--node-rank), so their number is fixed, too"


def one_node_only(most: int) -> str:
    """The job cannot be scaled."""
    alone = "this job was started for one node alone, and no other can join it"
    return f"{alone}: start it with --nnodes 1:{max(most, 2)} and an --rdzv-endpoint"


def saving_already(reason: str) -> str:
    return f"workers are saving already: {reason}"


def save_asked(by: str) -> str:
    return f"{by} asked all workers to save"


def scaled(by: str, least: int, most: int) -> str:
    return f"{by} asked for {between(least, most)}"


# Quarantine (`core.features.quarantine`).


def failed_there(rounds: int, where: str = "there") -> str:
    """Why a host is quarantined."""
    if rounds > 1:
        return f"{rounds} rounds in a row failed {where}"
    return f"a round failed {where} again"


def quarantined(host: str, left_s: float, why: str) -> str:
    return f"{host} is quarantined for {_left(left_s)}: {why}"


def quarantined_here(left_s: float, why: str, after: int) -> str:
    """To a node of the host."""
    policy = f"--quarantine-after {after}"
    return f"this node is quarantined for another {_left(left_s)}: {why} ({policy}); standing by"


def paused_here(left_s: float, losses: int) -> str:
    """To a node whose host is paused, by its losses or for another reason."""
    why = f": {losses} rounds lost a node of this host" if losses else ""
    return f"this host is paused for another {_left(left_s)}{why}; standing by"


def paused(nodes: Sequence[str]) -> str:
    """Follows what a job waits for."""
    return f"; paused: {', '.join(nodes)}"


def needed_all_the_same(host: str, why: str, least: int, most: int) -> str:
    needs = f"the job needs {'' if least == most else 'at least '}{_count(least, 'node')}"
    return f"{host} takes part although {why}: {needs}"


def not_the_host(host: str, other: str) -> str:
    return f"{host} is not quarantined any more: the same failure came on {other}"


def _left(seconds: float) -> str:
    return f"{max(1.0, seconds):.0f} s"


def named(ranks: Sequence[int]) -> str:
    """`rank 1`; `ranks 0, 2`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
