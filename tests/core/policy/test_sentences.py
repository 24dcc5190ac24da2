"""What the core tells its users, word by word. Other tests compare with the functions."""

from __future__ import annotations

import pytest

from holdfast.core.policy import sentences
from holdfast.core.policy.sentences import (
    at_exit,
    can_save,
    cold_start,
    deadline_missed,
    ended_for_hang,
    ended_unexited,
    ending_for_deadline,
    ending_for_hang,
    ending_unexited,
    failed_there,
    hang_here,
    hang_of_nodes,
    imported_by_each,
    imported_too_early,
    importing,
    its_stack,
    late_save,
    left_behind,
    located,
    named,
    needed_all_the_same,
    no_contact,
    no_such_node,
    not_exited,
    not_stopped,
    not_the_host,
    one_node_only,
    others_wait,
    passed_on,
    preload_too_late,
    quarantined,
    quarantined_here,
    round_ends,
    save_asked,
    save_over,
    saving_already,
    scaled,
    seat,
    slow,
    stalled,
    stalled_silently,
    stuck,
)
from holdfast.core.protocol.model import Assignment, Endpoint, Ranks

FILE = "/logs/stacks_1.txt"
WORKER = "rank 1 on here (pid 102)"


def assignment(*ranks: int) -> Assignment:
    workers = tuple(Ranks(local, rank, rank) for local, rank in enumerate(ranks))
    return Assignment(3, 0, 1, 2, 8, 8, workers, Endpoint("10.0.0.1", 29500))


NODES = [
    (seat(assignment(4)), "round 3: node 2 of 2, rank 4 of 8"),
    (seat(assignment(4, 5, 6)), "round 3: node 2 of 2, ranks 4 to 6 of 8"),
    (round_ends(3, "it failed", 0, True), "round 3 ends: it failed"),
    (
        round_ends(3, "it failed", 1, True),
        "round 3 ends: it failed; stopping the other worker of this node",
    ),
    (
        round_ends(3, "it failed", 2, True),
        "round 3 ends: it failed; stopping the other 2 workers of this node",
    ),
    (
        round_ends(3, "host2 left", 2, False),
        "round 3 ends: host2 left; stopping 2 workers of this node",
    ),
    (
        no_contact("refused", False, False, None),
        "no contact with the coordinator: refused; trying until it answers",
    ),
    (
        no_contact("refused", False, True, 600.0),
        "no contact with the coordinator: refused; reconnecting, for up to 600 s (--join-timeout)",
    ),
    (
        no_contact("refused", True, True, 600.0),
        (
            "no contact with the coordinator: refused; "
            "all workers of this node are done; waiting for that to be recorded"
        ),
    ),
    (passed_on(0, 30.0, True), ""),
    (passed_on(1, 30.0, False), "; passing it on to 1 worker, 30 s of grace"),
    (
        passed_on(2, 30.0, True),
        "; passing it on to 2 workers, 30 s of grace; Ctrl-C again ends at once",
    ),
    (
        others_wait(1, 600.0),
        (
            "the other node waits up to 600 s (--join-timeout) for another node in place of "
            "this one; Ctrl-C there ends it"
        ),
    ),
    (
        others_wait(3, 600.0),
        (
            "the other 3 nodes wait up to 600 s (--join-timeout) for another node in place of "
            "this one; Ctrl-C on each of them ends it"
        ),
    ),
    (not_stopped((1,), 30.0), "rank 1 did not stop within 30 s (--shutdown-timeout): killing"),
    (
        not_stopped((1, 2), 30.0),
        "ranks 1, 2 did not stop within 30 s (--shutdown-timeout): killing",
    ),
    (
        "\n".join(left_behind(["pid 7"], ["pid 8"])),
        (
            "pid 7 did not die from SIGKILL (stuck in the kernel?); going on without it\n"
            "pid 8 belongs to another user: it could not be ended, and may still run; "
            "going on without it"
        ),
    ),
    (named((1, 2)), "ranks 1, 2"),
]
NODE_ENDS = [
    (sentences.ALL_ENDED, "all its processes have ended"),
    (sentences.PROVEN_END, "all its processes have ended, as its machine confirms"),
    (sentences.silent(6.04), "it was silent for 6.0 s"),
    (sentences.INTERRUPTED_AGAIN, "interrupted again: killing the workers at once"),
    (
        sentences.spawner_lost("b", "was killed", []),
        "the spawner on b was killed; its workers were killed with it",
    ),
    (
        sentences.spawner_lost("b", "was killed", ["pid 7", "pid 8"]),
        (
            "the spawner on b was killed; its workers were killed with it, "
            "but pid 7, pid 8 could not be ended"
        ),
    ),
]
ROUNDS = [
    (sentences.last_call(1, 3), "1 node is enough; last call for up to 2 more"),
    (sentences.last_call(2, 3), "2 nodes are enough; last call for up to 1 more"),
    (sentences.too_few_yet(1, 2, None), "1 of at least 2 nodes; waiting for 1 more"),
    (
        sentences.too_few_yet(0, 1, 600.0),
        "0 of at least 1 node; waiting up to 600 s (--join-timeout) for 1 more",
    ),
    (
        sentences.too_few_came(1, 2, 600.0),
        "only 1 of at least 2 nodes came within 600 s (--join-timeout)",
    ),
    (sentences.may_be_lost("b", "it is silent"), "b may be lost: it is silent"),
    (sentences.stays_out("b", "no GPU"), "b stays out: no GPU"),
    (sentences.out_of_reach(2, 4), "2 of 4 nodes of the round are out of reach"),
    (
        sentences.not_stopped_in_time("b"),
        "b has not stopped its workers, and counts as lost when its lease is over",
    ),
    (sentences.not_formed("only 1 came", "b (rank 1)"), "only 1 came, after b (rank 1) was lost"),
    (
        sentences.no_seat(3, 2, 4),
        "round 3 runs with 2 of at most 4 nodes: this one will be taken in soon",
    ),
    (sentences.no_seat(3, 4, 4), "round 3 runs with 4 of at most 4 nodes: standing by"),
    (sentences.round_closing(3), "round 3 is coming to its end: standing by"),
    (sentences.restart_asked("ada"), "ada asked for a restart"),
    (sentences.fewer_asked("ada", 1), "ada asked for at most 1 node"),
    (sentences.joined(1), "a node has joined"),
    (sentences.joined(2), "2 nodes have joined"),
    (sentences.stopping("b was lost", 3), "b was lost; stopping round 3"),
    (
        sentences.re_forming("b was lost"),
        "b was lost; re-forming, not counted against --max-restarts",
    ),
    (sentences.re_forming(""), "re-forming, not counted against --max-restarts"),
    (
        sentences.peers_failed("b was lost"),
        "b was lost, and its peers' workers failed as a result",
    ),
    (sentences.without_progress(3), "3 rounds in a row ended without progress"),
    (sentences.no_further_round("done"), "done; no further round forms"),
    (sentences.lost_ranks(2, 2), " (rank 2)"),
    (sentences.lost_ranks(2, 3), " (ranks 2 to 3)"),
    (sentences.missing_ranks([1], None), "rank 1"),
    (
        sentences.missing_ranks([1, 2, 3, 4, 5], (0, "a", "b")),
        "ranks 1, 2, 3 and 2 more; rank 0 is claimed by a and by b",
    ),
    (
        sentences.rank_too_high(9, 2),
        "this node came with --node-rank 9 to a job of 2 nodes: standing by",
    ),
    (
        sentences.rank_taken(0, "a"),
        "--node-rank 0 is taken by a: this node stands by until that one is gone",
    ),
]
RESTARTS = [
    (sentences.MARKED_HOPELESS, "it was marked as a failure that a restart cannot help"),
    (sentences.not_retryable(4), "exit code 4 is one of --non-retryable-exit-codes"),
    (sentences.hopeless("a file is missing"), "a restart would not help: a file is missing"),
    (
        sentences.same_again(3, 2),
        "the same failure came 3 times in a row without progress (--same-cause-limit 2)",
    ),
    (sentences.restarts_used(0), "no restarts were allowed (--max-restarts 0)"),
    (
        sentences.restarts_used(1, 60.0),
        "the only restart was used within 60 s (--max-restarts 1)",
    ),
    (sentences.restarts_used(2), "all 2 restarts were used (--max-restarts 2)"),
    (sentences.restarting(0.0, 1, 2), "restarting (1 of 2)"),
    (sentences.restarting(1.25, 1, 2, 100.0), "restarting in 1.2 s (1 of 2 within 100 s)"),
]
TAKEOVERS = [
    (sentences.taken_over("b"), "b has taken over"),
    (sentences.taken_over(""), "another coordinator has taken over"),
    (
        sentences.leader_gone("b"),
        "the node that was the coordinator, on b, is gone with all its processes",
    ),
    (sentences.member_ended(3, "b"), "a node of round 3, on b, has ended"),
    (sentences.all_reported(3, 2, False), "all 2 nodes of round 3 have reported: it goes on"),
    (sentences.all_reported(3, 1, False), "the node of round 3 has reported: it goes on"),
    (
        sentences.all_reported(3, 2, True),
        "all nodes of round 3 that are not done have reported: it goes on",
    ),
    (
        sentences.awaiting_reports(3, 1, 12.1),
        "waiting up to 12 s for 1 node of round 3, which may still run",
    ),
    (
        sentences.not_reported("2 nodes", 3),
        "2 nodes of round 3 did not report to the new coordinator",
    ),
    (sentences.never_ran(3), "round 3 had not begun"),
    (
        sentences.end_unwritten(""),
        "all workers are done; waiting for the register to record it",
    ),
    (
        sentences.end_unwritten("rank 1 failed"),
        "the job is over (rank 1 failed); waiting for the register to record it",
    ),
    (
        sentences.register_unreachable("", 60.0),
        (
            "the register cannot be reached: no answer came; "
            "a round that runs goes on for at most 60 s"
        ),
    ),
    (sentences.register_unreachable("refused", None), "the register cannot be reached: refused"),
]
HANGS = [
    (
        stalled(2, 308.2, ["evaluation", "training"], 1.04),
        (
            "all workers have been stalled for 308 s in evaluation/training, "
            "where no wait took more than 1.0 s before"
        ),
    ),
    (
        stalled(1, 308.2, [], 10.4),
        "the worker has been stalled for 308 s, where no wait took more than 10 s before",
    ),
    (stalled_silently(1, 5.0), "the worker has been stalled for 5 s, without work or output"),
    (
        slow("rank 1 is in f", "rank 0 waits"),
        "slow, but moving: rank 1 is in f, while rank 0 waits",
    ),
    (
        hang_of_nodes(2, 300.4, "all wait", []),
        "the job hangs: all workers on 2 nodes have been stalled for 300 s: all wait",
    ),
    (
        hang_of_nodes(2, 300.4, "all wait", ["a", "b"]),
        (
            "the job hangs: all workers on 2 nodes have been stalled for 300 s: all wait; "
            "all workers on a, b had ended with exit code 0"
        ),
    ),
    (hang_here("stalled", [], 0.0, ""), "the job hangs: stalled"),
    (
        hang_here("stalled", [1], 2.0, FILE),
        (
            "the job hangs: stalled; rank 1 had ended with exit code 0 2 s before, "
            f"and may be what they wait for; their stacks: {FILE}"
        ),
    ),
    (ending_for_hang(1), "ending rank 1 for it (--hang restart)"),
    (
        ended_for_hang("in f at a.py:1", FILE),
        f"the job hung, and it was ended in f at a.py:1; stacks: {FILE}",
    ),
    (ended_for_hang("", ""), "the job hung, and it was ended"),
    (sentences.RESUMED, "the workers of this node are progressing again"),
    (stuck(1, 102, "is stopped by a signal"), "rank 1 (pid 102) is stopped by a signal"),
    (located(FILE), f"where each worker was: {FILE}"),
    (deadline_missed("the deadline of loading", ""), "the deadline of loading ran out"),
    (
        ending_for_deadline(
            1, deadline_missed("the deadline of loading", "in load at a.py:3"), FILE
        ),
        (
            "rank 1: the deadline of loading ran out while it was in load at a.py:3; ending it; "
            f"its stack: {FILE}"
        ),
    ),
    (its_stack(""), ""),
    (sentences.first_sign_time(2.0), "the time to its first sign (--start-timeout 2)"),
    (sentences.first_step_time(1.5), "the time to the first step (--first-step-timeout 1.5)"),
    (sentences.run_time(60.0), "the time of the whole run (--run-timeout 60)"),
    (sentences.scope_deadline("loading"), "the deadline of loading"),
    (sentences.scope_timer("loading"), "the timer of loading"),
]
EXITS = [
    (
        not_exited(WORKER, 30.0, its_stack(FILE)),
        f"{WORKER} has not exited, 30 s after others finished; its stack: {FILE}",
    ),
    (
        ending_unexited(WORKER, 60.0, at_exit("in f at a.py:1", True), True),
        (
            f"{WORKER} has not exited, 60 s after others finished (--exit-timeout): ending it; "
            "it had finished; it is past the end of its program, in f at a.py:1"
        ),
    ),
    (
        ending_unexited(WORKER, 60.0, at_exit("", False), False),
        (
            f"{WORKER} has not exited, 60 s after others finished (--exit-timeout): ending it; "
            "it counts as failed"
        ),
    ),
    (
        ended_unexited(60.0, at_exit("in f at a.py:1", False)),
        (
            "it had not exited 60 s after others finished (--exit-timeout), and was ended; "
            "it is in f at a.py:1"
        ),
    ),
]
SAVING = [
    (
        can_save("host2 leaves", 1, 20.0),
        "host2 leaves; 1 worker of this node can save, for up to 20 s",
    ),
    (
        can_save("host2 leaves", 2, 0.26),
        "host2 leaves; 2 workers of this node can save, for up to 0.3 s",
    ),
    (late_save(1, 2), "1 of 2 nodes have not saved yet; they still may"),
    (save_over("saved", 7), "all workers that ask have saved, at step 7"),
    (
        save_over("nobody looks", None),
        "nobody saves: no worker of this job looks at holdfast.draining()",
    ),
    (
        save_over("given up", None),
        "nobody saves: not all workers asked, or came to a common step, in time",
    ),
    (save_asked("ada"), "ada asked all workers to save"),
    (saving_already("ada asked"), "workers are saving already: ada asked"),
]
WARM_START = [
    (importing(["torch", "numpy"]), "importing torch, numpy once for all workers of this node"),
    (importing([]), "importing modules once for all workers of this node"),
    (cold_start(preload_too_late(60.0)), "workers start cold: preloading took more than 60 s"),
    (imported_by_each("small", 0.1, "it raised"), "each worker imports small itself: it raised"),
    (
        imported_by_each("lightning", 2.13, "it reads LOCAL_RANK when imported"),
        (
            "each worker imports lightning itself, about 2.1 s: it reads LOCAL_RANK when imported "
            "(if that does not matter: --preload lightning)"
        ),
    ),
    (
        imported_too_early("torch", "TORCH_LOGS"),
        (
            "from the next round on, each worker imports torch itself: "
            "the program sets TORCH_LOGS before it does so"
        ),
    ),
]
OPERATORS = [
    (no_such_node("x"), "no node is called x"),
    (
        one_node_only(1),
        (
            "this job was started for one node alone, and no other can join it: "
            "start it with --nnodes 1:2 and an --rdzv-endpoint"
        ),
    ),
    (scaled("ada", 1, 2), "ada asked for 1 to 2 nodes"),
    (scaled("ada", 1, 1), "ada asked for 1 node"),
]
QUARANTINE = [
    (
        quarantined("b", 299.6, failed_there(3)),
        "b is quarantined for 300 s: 3 rounds in a row failed there",
    ),
    (
        quarantined_here(0.2, failed_there(1, "here"), 3),
        (
            "this node is quarantined for another 1 s: a round failed here again "
            "(--quarantine-after 3); standing by"
        ),
    ),
    (
        needed_all_the_same("b", failed_there(3), 2, 2),
        "b takes part although 3 rounds in a row failed there: the job needs 2 nodes",
    ),
    (
        needed_all_the_same("b", failed_there(3), 1, 2),
        "b takes part although 3 rounds in a row failed there: the job needs at least 1 node",
    ),
    (
        sentences.paused_here(1.6, 2),
        "this host is paused for another 2 s: 2 rounds lost a node of this host; standing by",
    ),
    (sentences.paused_here(5.0, 0), "this host is paused for another 5 s; standing by"),
    (sentences.paused(["b", "c"]), "; paused: b, c"),
    (not_the_host("b", "a"), "b is not quarantined any more: the same failure came on a"),
]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        *(*NODES, *NODE_ENDS, *ROUNDS, *RESTARTS, *TAKEOVERS, *HANGS, *EXITS, *SAVING, *WARM_START),
        *(*OPERATORS, *QUARANTINE),
    ],
)
def test_its_words(sentence: str, words: str) -> None:
    assert sentence == words
