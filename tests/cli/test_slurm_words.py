"""`holdfast slurm submit`: no word of a user's leaves its line of the batch script."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.slurm import sort, submission
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.slurm_batch import batch_script

SPECIAL = "\n\r\t\x0b\x0c\x1b\x7f\x85\xa0\u2028\u202e\udc80 '\"\\$`#;&|<>(){}!*?~=%-"
WORDS = st.text(st.sampled_from(SPECIAL + "xyE0:é"), max_size=12)
"""As they can be on a command line: bytes that are no UTF-8 are surrogates there."""
SBATCH = ("--comment", "--job-name", "--partition", "-p", "--mail-user", "--constraint", "--zzz")
PLAIN = ("--nodes=2", "--", "train.py")
NOTED = """
[() { return 1; }
scancel() { :; }
srun() { printf '%s\\0' "$@"; }
"""
"""In place of Slurm's commands and of all tests of files: what `srun` is given is printed."""


def ran(script: str) -> list[str]:
    """The words of `srun`, where the script's shell does just that."""
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", NOTED + script],
        env={"PATH": "/nowhere", "SLURM_ARRAY_JOB_ID": "7"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def lines(script: str) -> list[str]:
    return script.split("\n")


def directives(script: str) -> int:
    """How many of the lines are read by `sbatch`: those up to the first that is no comment."""
    head = lines(script)[: lines(script).index("")]
    assert all(line.startswith("#") for line in head)
    return len(head)


@given(
    option=st.sampled_from(
        [
            *SBATCH,
            *(
                f"--{name}"
                for name in ("nodes", "spares", "folder", "rdzv-backend", "rdzv-endpoint")
            ),
        ]
    ),
    value=WORDS,
)
@settings(max_examples=300, deadline=None)
def test_an_option_is_refused_or_stays_on_its_line(option: str, value: str) -> None:
    for words in ([f"{option}={value}"], [option, value]):
        etcd = ["--rdzv-backend=etcd"] if option == "--rdzv-endpoint" else []
        usual, with_it = _scripts([], PLAIN[2:]), _scripts([*etcd, *words], PLAIN[2:])
        if with_it:
            assert directives(with_it) - directives(usual) in (0, 1, 2)
            assert len(lines(with_it)) - len(lines(usual)) in (0, 1, 2)
            assert ran(with_it)[-1] == "train.py"
            with_it.encode()


@given(program=WORDS.filter(lambda word: not word.startswith("-")), arguments=st.lists(WORDS))
@settings(max_examples=200, deadline=None)
def test_the_program_and_its_arguments_arrive_as_they_are(
    program: str, arguments: list[str]
) -> None:
    words = [program, *arguments]
    script = _scripts([], words)
    if script:
        assert len(lines(script)) == len(lines(_scripts([], PLAIN[2:])))
        assert ran(script)[-len(words) :] == words
        script.encode()


@given(flag=st.sampled_from(["one-allocation", "share-nodes", "no-follow"]), value=WORDS)
@settings(deadline=None)
def test_a_flag_with_something_behind_it_is_refused_or_stays_on_its_line(
    flag: str, value: str
) -> None:
    script = _scripts([f"--{flag}={value}"], PLAIN[2:])
    if script:
        assert directives(script) >= directives(_scripts(["--one-allocation"], PLAIN[2:])) - 1
        assert ran(script)[-1] == "train.py"


def _scripts(ahead: list[str], program: list[str] | tuple[str, ...]) -> str:
    """The script; empty where it is refused."""
    try:
        return batch_script(submission(sort(["--nodes=2", *ahead, "--", *program])))
    except UsageError:
        return ""


@pytest.mark.parametrize("value", ["x\ntouch F", "x\r", "\x1b[2J", "\udcff"])
def test_a_value_for_sbatch_that_does_not_fit_into_a_line_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="batch script"):
        sort(["--nodes=2", "--comment", value, "--", "train.py"])
