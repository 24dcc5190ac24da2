"""The report at the end of a job, word by word."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure, Outcome
from holdfast.observe.report import render

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    step(batch)
ValueError: bad batch
"""


def failure(rank: int = 1, status: ExitStatus | None = None, **details: object) -> Failure:
    return Failure(
        node="node7-ab",
        host="node7",
        local_rank=rank % 4,
        rank=rank,
        role="trainer",
        pid=4000 + rank,
        status=status or ExitStatus(code=1),
        observed_at=5.0,
        **details,  # type: ignore[arg-type]
    )


def report(outcome: Outcome, journal: str | None = None) -> str:
    return "\n" + render(outcome, journal)


def failed(cause: Failure | None = None, *others: Failure) -> Outcome:
    return Outcome("failed", "rank 1 failed; no restarts were allowed", 1, cause, others)


def test_a_success_has_nothing_to_report() -> None:
    assert render(Outcome("succeeded", "all workers succeeded", 0), "/logs/journal") == ""


def test_a_failure_names_who_where_how_and_why_and_then_the_others() -> None:
    lost = ErrorDetail("RuntimeError: Connection closed by peer")
    outcome = failed(
        failure(1, error=ErrorDetail("ValueError: bad batch", TRACEBACK), stderr_tail=TRACEBACK),
        failure(5, ExitStatus(code=2)),
        failure(0, error=lost),
        failure(2, ExitStatus(signal=15), stopped_by_us=True),
    )
    assert report(outcome, journal="/logs/journal.jsonl") == dedent("""
        holdfast: the job failed: rank 1 failed; no restarts were allowed

          First observed failure
            who      rank 1 (local rank 1, trainer)
            where    node7, pid 4001
            how      ended with exit code 1
            error    ValueError: bad batch

              Traceback (most recent call last):
                File "train.py", line 7, in <module>
                  step(batch)
              ValueError: bad batch

          Then
            rank 5 on node7: failed too (exit code 2)
            rank 0 on node7: failed because it lost a peer (exit code 1)
            rank 2 on node7: stopped by Holdfast (signal 15 (SIGTERM))

          journal: /logs/journal.jsonl
    """)


def test_a_signal_is_named_and_so_is_the_evidence_of_who_sent_it() -> None:
    killed = failure(1, ExitStatus(signal=9), out_of_memory="oom_kill rose by 1 in its cgroup")
    assert report(failed(killed)) == dedent("""
        holdfast: the job failed: rank 1 failed; no restarts were allowed

          First observed failure
            who      rank 1 (local rank 1, trainer)
            where    node7, pid 4001
            how      killed by signal 9 (SIGKILL); oom_kill rose by 1 in its cgroup
    """)


def test_without_a_traceback_the_last_lines_of_stderr_are_shown() -> None:
    assert report(failed(failure(1, ExitStatus(signal=11), stderr_tail="loading\nstep 1\n"))) == (
        dedent("""
            holdfast: the job failed: rank 1 failed; no restarts were allowed

              First observed failure
                who      rank 1 (local rank 1, trainer)
                where    node7, pid 4001
                how      killed by signal 11 (SIGSEGV)

                last lines of stderr:
                  loading
                  step 1
        """)
    )


def test_what_stands_on_stderr_besides_the_traceback_is_shown_too() -> None:
    tail = f"CUDA error: device lost\n\n{TRACEBACK}"
    text = report(failed(failure(1, error=ErrorDetail("E: x", TRACEBACK), stderr_tail=tail)))
    assert "last lines of stderr:\n      CUDA error: device lost\n" in text
    assert text.count("step(batch)") == 1


def test_a_traceback_that_pytorch_printed_with_the_rank_before_each_line_is_shown_once() -> None:
    printed = "".join(f"[rank1]: {line}\n" for line in ("", *TRACEBACK.splitlines()))
    tail = f"[rank1]: not of it\n{printed}[rank1]:[W1116 main.cpp:7] Warning: [rank1]: twice\n"
    text = report(failed(failure(1, error=ErrorDetail("E: x", TRACEBACK), stderr_tail=tail)))
    assert text.count("step(batch)") == 1
    kept = ["[rank1]: not of it", "[rank1]:[W1116 main.cpp:7] Warning: [rank1]: twice"]
    shown = "".join(f"      {line}\n" for line in kept)
    assert text.endswith(f"\n    last lines of stderr:\n{shown}")


@pytest.mark.parametrize(
    ("outcome", "headline"),
    [
        (
            Outcome("interrupted", "SIGTERM was sent to the agent on node7", 143),
            "holdfast: the job was interrupted: SIGTERM was sent to the agent on node7\n",
        ),
        (
            Outcome("not_formed", "1 of at least 2 nodes after 600 s", 3),
            "holdfast: the group could not form: 1 of at least 2 nodes after 600 s\n",
        ),
        (
            failed(),
            "holdfast: the job failed: rank 1 failed; no restarts were allowed\n",
        ),
    ],
)
def test_an_end_without_a_cause_is_told_in_one_line(outcome: Outcome, headline: str) -> None:
    assert render(outcome, None) == headline


def test_of_many_others_the_first_are_shown_and_the_rest_are_counted() -> None:
    others = [failure(rank) for rank in range(2, 14)]
    lines = report(failed(failure(1), *others)).splitlines()
    assert lines[-9:-1] == [
        f"    rank {r} on node7: failed too (exit code 1)" for r in range(2, 10)
    ]
    assert lines[-1] == "    and 4 more"


def test_of_a_long_traceback_the_end_is_shown() -> None:
    trace = "\n".join(f"frame {number}" for number in range(100))
    text = report(failed(failure(1, error=ErrorDetail("E: x", trace))))
    assert "      … 60 lines left out\n      frame 60\n" in text
    assert text.endswith("      frame 99\n")


@given(
    message=st.text(max_size=2000),
    trace=st.text(max_size=5000),
    tail=st.text(max_size=5000),
    others=st.integers(0, 50),
)
def test_a_report_has_a_bounded_length_and_ends_its_last_line(
    message: str, trace: str, tail: str, others: int
) -> None:
    cause = failure(1, error=ErrorDetail(message, trace), stderr_tail=tail)
    outcome = failed(cause, *[failure(2)] * others)
    text = render(outcome, "/logs/journal.jsonl")
    assert text.endswith("\n")
    assert text.count("\n") < 100
    assert max(map(len, text.splitlines())) < 600
