"""The planted failures: what is done, and what has to be said of it.

A row is a failure. On one machine the culprit is rank 1 of three; on three hosts it is rank 1 on
host2. What has to be said is the kind of cause, who it was, and words that tell what happened.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple

from .staging import Stage
from .surroundings import (
    Surroundings,
    a_certificate,
    a_file_for_logs,
    a_taken_port,
    an_empty_folder,
    an_older_library,
    few_processes,
    full_shared_memory,
    little_memory,
    no_surroundings,
    on_others_only,
    other_settings,
    small_disk,
    stalling_disk,
    talkative_collectives,
)

ONE, THREE = 1, 3
BOTH = (ONE, THREE)
GIVES_UP = ("--join-timeout=3",)
"""Nobody comes to replace what was lost."""
ANYBODY = ""
"""All ranks do it, and any of them may be named."""


class Planted(NamedTuple):
    """A failure, where it is planted, and what has to be said."""

    name: str
    kind: str
    words: tuple[str, ...] = ()
    """That have to be in the agent's text."""
    program: str = "nothing"
    """What the culprit does (`plain_job.py`, or `torch_job.py`)."""
    act: Callable[[Stage], None] | None = None
    """What is done from outside."""
    nodes: tuple[int, ...] = BOTH
    options: tuple[str, ...] = ()
    around: Callable[[Stage], Surroundings] = no_surroundings
    certainty: str = "certain"
    who: str = "rank 1 on {host}"
    told: str = ""
    """A line of the culprit's agent by which it is told, where the job does not end of it."""
    torch: bool = False
    thorough: bool = False
    """Another row is much like it: played by make test-planted and make test-all."""
    torchrun: tuple[str, ...] | None = None
    """Words of which torchrun's summary should have one to tell the kind; None: it is not run."""


def kill(stage: Stage) -> None:
    stage.send_worker(signal.SIGKILL)


def stop(stage: Stage) -> None:
    stage.send_worker(signal.SIGSTOP)


WHOLE_NODE = "{host} (rank 1)"
SOON = ("--hang-after=3",)
TRIED_AGAIN = ("--hang=restart", *SOON)

PLANTED = (
    Planted("an exception", "exception", ("ValueError: the batch is empty",), "exception",
            torchrun=("ValueError",)),
    Planted("an exception in a thread", "exception in a thread", ("shard 7 has no header",),
            "in_a_thread", torchrun=("ValueError",)),
    Planted("an exception in a data loader", "exception in a data loader",
            ("(ValueError: sample 2 is empty, in data loader 0)",), "in_a_data_loader", torch=True,
            torchrun=("ValueError",)),
    Planted("sys.exit(3)", "exit code", ("ended with exit code 3",), "exit_code",
            torchrun=("exitcode  : 3",)),
    Planted("a NaN guard that exits", "exit code", ("(last line: loss is NaN at step 3, ending)",),
            "not_a_number", torchrun=("NaN",)),
    Planted("a segmentation fault", "crash", ("SIGSEGV", "in ctypes.string_at at plain_job.py:"),
            "segfault", torchrun=("SIGSEGV",)),
    Planted("a stack overflow", "stack overflow", ("in descend at plain_job.py:",),
            "stack_overflow", torchrun=("overflow",)),
    Planted("an abort", "abort", ("SIGABRT", "Assertion `size > 0' failed"), "abort",
            torchrun=("SIGABRT",)),
    Planted("a bus error, with a full /dev/shm", "bus error", ("SIGBUS",), "bus_error",
            around=full_shared_memory, torchrun=("SIGBUS",)),
    Planted("SIGKILL from outside", "killed from outside", ("SIGKILL",), act=kill,
            torchrun=("SIGKILL",)),
    Planted("out of memory, in a control group", "out of memory", ("out-of-memory killer",),
            "out_of_memory", around=little_memory, torchrun=("memory",)),
    Planted("a deadlock of two groups", "hang",
            ("it was ended in all_reduce at torch_job.py", "in all_reduce at torch_job.py"),
            "other_order", options=TRIED_AGAIN, certainty="likely", torch=True, torchrun=("hang",)),
    Planted("one rank skips a collective", "ended too early",
            ("had ended with exit code 0, while others still ran",), "skips_a_collective",
            certainty="likely", torch=True, torchrun=("rank      : 1",)),
    Planted("one rank leaves the loop early", "ended too early",
            ("rank 1 on", "had ended with exit code 0"), "ends_too_early",
            certainty="likely", torchrun=("rank      : 1",)),
    Planted("different shapes", "collectives that differ",
            ("it called ALLREDUCE [3], and all others ALLREDUCE [2]",), "other_shape",
            certainty="likely", around=talkative_collectives, torch=True, torchrun=("mismatch",)),
    Planted("a wait for a file that never comes", "hang", ("in load_batch at plain_job.py",),
            "waits_for_a_file", options=TRIED_AGAIN, certainty="likely", torchrun=("hang",)),
    Planted("a lock, while DDP waits in backward", "hang",
            ("ranks 0 and 2", "wait in backward at torch_job.py", "in takes_a_lock_twice at"),
            "in_a_lock", options=TRIED_AGAIN, certainty="likely", torch=True, torchrun=("hang",)),
    Planted("a sleep, while DDP waits in backward", "hang", ("wait in backward at torch_job.py",),
            "in_a_sleep", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("an empty pipe, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in reads_an_empty_pipe at"),
            "in_a_pipe", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("an empty queue, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in threading.wait at"),
            "in_a_queue", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a call that holds the GIL, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in reads_with_the_gil_held at"),
            "reads_with_the_gil_held", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a child that does not end, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in subprocess._try_wait at torch_job.py:"),
            "waits_for_a_child", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a pool that does not answer, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in threading.wait at torch_job.py:"),
            "waits_for_a_pool", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a data loader that stalls, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in DataLoader at torch_job.py:"),
            "reads_a_loader_that_stalls", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a rank that does not exit, while DDP waits in backward", "hang",
            ("wait in backward at torch_job.py", "in threading._shutdown at threading.py:"),
            "ends_while_a_thread_lives", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("an empty pipe, while FSDP waits", "hang", ("in reads_an_empty_pipe at",),
            "shards_with_progress", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("an empty pipe, while a barrier waits", "hang",
            ("wait in barrier at torch_job.py", "in reads_an_empty_pipe at"),
            "waits_in_a_barrier_with_progress", options=TRIED_AGAIN, certainty="likely",
            torch=True, thorough=True, torchrun=("hang",)),
    Planted("a rank that has ended, while init_process_group waits", "ended too early",
            ("had ended with exit code 0", "wait in init_process_group at torch_job.py"),
            "ends_before_init", options=TRIED_AGAIN, certainty="likely", torch=True,
            torchrun=("init_process_group",)),
    Planted("a pipe, while init_process_group waits", "hang",
            ("wait in init_process_group at torch_job.py", "in reads_an_empty_pipe at"),
            "reads_a_pipe_before_init", options=TRIED_AGAIN, certainty="likely", torch=True,
            torchrun=("hang",)),
    Planted("a lock, while init_process_group waits", "hang",
            ("wait in init_process_group at torch_job.py", "in takes_a_lock_twice at"),
            "takes_a_lock_before_init", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a lock in a job that tells no steps", "hang",
            ("wait in backward at torch_job.py", "in takes_a_lock_twice at"),
            "in_a_lock_unsaid", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("a lock, until DDP times out", "collective timed out",
            ("it was in takes_a_lock_twice at torch_job.py:", "ranks 0 and 2 waited"),
            "in_a_lock_until_a_time_out", certainty="likely", torch=True, torchrun=("lock",)),
    Planted("a sleep, until DDP times out", "collective timed out", ("it was in <lambda> at",),
            "in_a_sleep_until_a_time_out", certainty="likely", torch=True, thorough=True,
            torchrun=("sleep",)),
    Planted("an empty pipe, until DDP times out", "collective timed out",
            ("it was in reads_an_empty_pipe at torch_job.py:",), "in_a_pipe_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("pipe",)),
    Planted("an empty queue, until DDP times out", "collective timed out",
            ("it was in threading.wait at torch_job.py:",), "in_a_queue_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("queue",)),
    Planted("a rank that never joins its group", "collective timed out",
            ("it was in reads_an_empty_pipe at torch_job.py:",), "never_joins",
            certainty="likely", torch=True, torchrun=("join",)),
    Planted("a call that holds the GIL, until DDP times out", "collective timed out",
            ("it was in re.fullmatch at torch_job.py:",), "holds_the_gil_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("gil",)),
    Planted("an endless loop, until DDP times out", "collective timed out",
            ("it was in loops_for_ever at torch_job.py:",), "loops_for_ever_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("loop",)),
    Planted("a child that does not end, until DDP times out", "collective timed out",
            ("it was in subprocess._try_wait at torch_job.py:",),
            "waits_for_a_child_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("child",)),
    Planted("a pool that does not answer, until DDP times out", "collective timed out",
            ("it was in threading.wait at torch_job.py:",), "waits_for_a_pool_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("pool",)),
    Planted("a data loader that stalls, until DDP times out", "collective timed out",
            ("it was in DataLoader at torch_job.py:",),
            "reads_a_loader_that_stalls_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("loader",)),
    Planted("an exception whose process lives on", "exception",
            ("ValueError: the batch is empty",), "raises_while_a_thread_lives_until_a_time_out",
            torch=True, torchrun=("batch",)),
    Planted("a rank that has finished and does not exit", "collective timed out",
            ("it was in threading._shutdown at threading.py:",),
            "ends_while_a_thread_lives_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("finished",)),
    Planted("a rank that has ended, until DDP times out", "ended too early",
            ("had ended with exit code 0",), "ends_well_until_a_time_out",
            certainty="likely", torch=True, thorough=True, torchrun=("rank      : 1",)),
    Planted("a pipe, until a barrier times out", "collective timed out",
            ("it was in reads_an_empty_pipe at torch_job.py:",), "waits_in_a_barrier",
            certainty="likely", torch=True, thorough=True, torchrun=("barrier",)),
    Planted("a pipe, until a monitored barrier times out", "collective timed out",
            ("it was in reads_an_empty_pipe at torch_job.py:",), "waits_in_a_monitored_barrier",
            certainty="likely", torch=True, thorough=True, torchrun=("Rank 1",)),
    Planted("an extra step of one rank", "extra step",
            ("rank 2 on", "and it went on alone"), "makes_an_extra_step",
            certainty="likely", torch=True, thorough=True, torchrun=("step",)),
    Planted("a pipe, until FSDP times out", "collective timed out",
            ("it was in reads_an_empty_pipe at torch_job.py:",), "shards",
            certainty="likely", torch=True, torchrun=("pipe",)),
    Planted("a step that one rank leaves out", "collectives that differ",
            ("it waited in barrier at torch_job.py:", "ranks 0 and 2 in backward at torch_job.py:"),
            "leaves_out_a_step", certainty="likely", torch=True, torchrun=("barrier",)),
    Planted("another collective of one rank", "collectives that differ",
            ("it waited in barrier at torch_job.py:", "in all_gather at torch_job.py:"),
            "calls_another_collective", certainty="likely", torch=True, thorough=True,
            torchrun=("barrier",)),
    Planted("a group that one rank does not make", "collectives that differ",
            ("it waited in all_reduce at torch_job.py:", "in new_group at torch_job.py:"),
            "makes_no_group", certainty="likely", torch=True, thorough=True,
            torchrun=("new_group",)),
    Planted("a group that one rank does not make, while all wait", "hang",
            ("waits in all_reduce at torch_job.py:", "wait in new_group at torch_job.py:"),
            "makes_no_group_unsaid", options=TRIED_AGAIN, certainty="likely", torch=True,
            torchrun=("hang",)),
    Planted("a server that does not answer, in a pipeline", "hang",
            ("it was ended in receives_in_a_pipeline at torch_job.py:",),
            "receives_in_a_pipeline", options=TRIED_AGAIN, certainty="likely", torch=True,
            thorough=True, torchrun=("hang",)),
    Planted("an empty data folder on one host", "ended too early",
            ("had ended with exit code 0",), "reads_a_folder", around=an_empty_folder,
            nodes=(THREE,), certainty="likely", torch=True),
    Planted("a name that cannot be looked up", "name not resolved", ("gaierror",),
            "asks_for_a_name", torchrun=("Name or service", "name resolution")),
    Planted("a certificate that has expired", "certificate not accepted", ("has expired",),
            "asks_a_server", around=a_certificate("20200101", "20210101"),
            torchrun=("has expired",)),
    Planted("a certificate of the future", "certificate not accepted", ("is not yet valid",),
            "asks_a_server", around=a_certificate("20900101", "20910101"), thorough=True,
            torchrun=("not yet valid",)),
    Planted("an endless loop, with a deadline", "deadline",
            ("the deadline of step 3 ran out while it was in endless_loop at plain_job.py",),
            "endless_loop"),
    Planted("a timer of PyTorch's that runs out", "deadline",
            ("the timer of loading ran out while it was in",), "timer_runs_out",
            options=("--file-timer",)),
    Planted("a stopped process", "stopped", act=stop, options=SOON,
            told=r"holdfast: rank 1 \(pid \d+\) is stopped by a signal, for \d+ s: kill -CONT"),
    Planted("a disk that does not answer", "stuck in the kernel",
            ("is stuck in the kernel for", "/disk/checkpoint.pt",
             "no signal reaches it"),
            "writes_to_a_disk", nodes=(ONE,), around=stalling_disk,
            options=("--stuck-timeout=2", "--unkillable-timeout=1")),
    Planted("a full disk", "full disk", ("No space left on device",), "disk_full",
            around=small_disk, torchrun=("No space left",)),
    Planted("a log directory that cannot be made", "refused", nodes=BOTH, around=a_file_for_logs,
            options=GIVES_UP,
            told=r"holdfast: cannot make the log directory in logs: .*\nhint: give --log-dir"),
    Planted("a port that is taken", "port taken", ("Address already in use",), nodes=(ONE,),
            around=a_taken_port, who="rank 0 on {host}"),
    Planted("a missing module on one host", "missing module", ("tokenizer_of_the_job",),
            "missing_module", nodes=(THREE,), around=on_others_only("tokenizer_of_the_job.py")),
    Planted("an older library on one host", "different versions",
            ("host2 has layers 1.0, all others 2.0", "AttributeError"), "older_library",
            nodes=(THREE,), around=an_older_library, certainty="likely"),
    Planted("a wrong number of ranks", "exception",
            ("the configuration is for 4 ranks, and there are 3",), "check_world", who=ANYBODY,
            torchrun=("4 ranks",)),
    Planted("other settings on one host", "settings", nodes=(THREE,), around=other_settings,
            told=r"this node was started with --max-restarts 7"),
    Planted("a damaged checkpoint", "damaged file", ("pickle data was truncated",),
            "bad_checkpoint", torchrun=("Unpickling",)),
    Planted("a missing file on one host", "missing file", ("data/shard-0001.bin",),
            "missing_file", nodes=(THREE,), around=on_others_only("data/shard-0001.bin")),
    Planted("a killed agent", "killed agent", ("all its processes have ended",),
            act=Stage.kill_agent, nodes=(THREE,), options=GIVES_UP, who=WHOLE_NODE),
    Planted("a killed spawner", "killed spawner", ("the spawner on", "SIGKILL"),
            act=Stage.kill_spawner, nodes=(THREE,), options=GIVES_UP, who=WHOLE_NODE),
    Planted("a killed spawner, of the only node", "killed spawner", ("the spawner on", "SIGKILL"),
            act=Stage.kill_spawner, nodes=(ONE,), who="{host}"),
    Planted("a lost host", "lost host or network", ("silent",), act=Stage.lose_host,
            nodes=(THREE,), options=("--join-timeout=8",), certainty="likely", who=WHOLE_NODE),
    Planted("a cut network", "lost host or network", ("silent",), act=Stage.cut,
            nodes=(THREE,), options=("--join-timeout=8",), certainty="likely", who=WHOLE_NODE),
    Planted("a slow rank", "straggler", program="slow_rank", nodes=(ONE,),
            options=("--straggler-after=3", "--heartbeat=0.5"),
            told=r"holdfast: rank 1 is a straggler: .* where others make"),
    Planted("a clock that is an hour behind", "exception", ("ValueError: the batch is empty",),
            "clock_is_behind", certainty="likely", torchrun=("ValueError",)),
    Planted("a limit of processes", "too many processes", ("can't start new thread",),
            "too_many_processes", around=few_processes, torchrun=("start new thread",)),
    Planted("a limit of open files", "too many open files", ("Too many open files",),
            "too_many_files", torchrun=("Too many open files",)),
)  # fmt: skip
