"""`--logs-specs`: a class of another package says where the workers of a real job write.

Each test writes a package with an entry point in a folder of its own and puts that on the
path of a real `holdfast run`, as an installation would.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..free_ports import free_port

SPEAK = """
import os, sys
rank = os.environ["RANK"]
print("out of", rank, flush=True)
print("err of", rank, file=sys.stderr, flush=True)
"""
# The first failure ends the others: none may come before all have spoken.
ALL_SPEAK = (
    SPEAK
    + """
import glob, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"spoke-{attempt}-{rank}", "w").close()
while len(glob.glob(f"spoke-{attempt}-*")) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
"""
)
FAIL_ONCE = ALL_SPEAK + "assert attempt != '0', 'the first time'\n"

# Against ours: everything of a rank in one folder, whose name has the attempt and the rank.
OURS = """
import os
from holdfast.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from holdfast.elastic.multiprocessing import to_map

class Mine(LogsSpecs):
    def __init__(self, **wishes):
        super().__init__(**wishes)
        with open("wishes", "a") as file:
            print(type(self._redirects), wishes, file=file)

    @property
    def root_log_dir(self):
        return "mine"

    def reify(self, envs):
        with open("asked", "a") as file:
            print(sorted(envs), sorted(envs[0]), file=file)
        answer = LogsDest()
        for rank, env in envs.items():
            folder = f"mine/{env['TORCHELASTIC_RESTART_COUNT']}-{env['RANK']}"
            answer.stdouts[rank] = f"{folder}/o"
            answer.stderrs[rank] = f"{folder}/e"
            answer.error_files[rank] = os.path.abspath(f"{folder}/why")
            if to_map(self._tee, len(envs))[rank] & Std.OUT:
                answer.tee_stdouts[rank] = f"{folder}/o"
            env["MY_FOLDER"] = folder
        answer.filtered_stdout = "mine/filtered"
        return answer
"""

InstallAs = Callable[[str], dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> InstallAs:
    """Install a module with a class `Mine` as the logs specs `mine`; returns what finds it."""

    def put(module: str) -> dict[str, str]:
        site = tmp_path / "site"
        package = site / "their_logs-1.0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-logs\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(
            "[torchrun.logs_specs]\nmine = their_logs:Mine\nother = their_logs:Other\n"
        )
        (site / "their_logs.py").write_text(textwrap.dedent(module))
        inherited = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), inherited)))}

    return put


def files_below(folder: Path) -> dict[str, str]:
    """What lies below a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
def test_each_attempt_writes_where_the_class_says(
    run_job: Any, install: InstallAs, start: str
) -> None:
    words = ("--logs-specs=mine", start, "--nproc-per-node=2", "--tee=1:1", "--max-restarts=1")
    filters = "--duplicate-stdout-filters=out of 1"
    job = run_job(*words, filters, script=FAIL_ONCE, env=install(OURS))
    assert job.process.returncode == 0, job.stderr
    written = files_below(job.folder / "mine")
    for attempt in ("0", "1"):
        assert written[f"{attempt}-0/o"] == "out of 0\n"
        assert written[f"{attempt}-1/o"] == "out of 1\n"
        assert written[f"{attempt}-1/e"].startswith("err of 1\n")
    assert job.stdout == "[default1]:out of 1\n" * 2
    assert written["filtered"] == "[default1]:out of 1\n" * 2
    reasons = [json.loads(text) for path, text in written.items() if path.endswith("/why")]
    assert any("the first time" in why["message"]["message"] for why in reasons)
    assert [path.name for path in (job.folder / "logs").glob("*/*")] == ["journal.jsonl"]


def test_the_class_is_called_as_torchrun_does(run_job: Any, install: InstallAs) -> None:
    words = ("--logs-specs=mine", "--no-warm", "--redirects=0:3", "--tee=2")
    filtered = "--local-ranks-filter=0,2"
    script = "import os\nprint(os.environ['MY_FOLDER'], os.environ['TORCHELASTIC_ERROR_FILE'])"
    job = run_job(*words, filtered, "--nproc-per-node=2", script=script, env=install(OURS))
    assert job.process.returncode == 0, job.stderr
    assert job.read("wishes") == (
        "<class 'dict'> {'log_dir': 'logs', 'redirects': {0: <Std.ALL: 3>}, "
        "'tee': <Std.ERR: 2>, 'local_ranks_filter': {0, 2}}\n"
    )
    (asked,) = job.read("asked").splitlines()
    assert asked.startswith("[0, 1] ")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"):
        assert f"'{name}'" in asked
    assert "'PATH'" not in asked
    expected = f"mine/0-1 {job.folder}/mine/0-1/why\n"
    assert job.read("mine/0-1/o") == expected, "it set the variables of the workers"


@pytest.mark.torch
@pytest.mark.thorough
def test_a_class_of_pytorchs_family_works_unchanged(run_job: Any, install: InstallAs) -> None:
    theirs = """
        import os
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

        class Mine(DefaultLogsSpecs):
            def reify(self, envs):
                answer = super().reify(envs)
                answer.stdouts[0] = os.path.join(self.root_log_dir, "first")
                answer.tee_stdouts[0] = answer.stdouts[0]
                return answer
    """
    words = ("--logs-specs=mine", "--no-warm", "--nproc-per-node=3", "--redirects=2")
    more = ("--tee=1:3", "--local-ranks-filter=0,1", "--rdzv-id=name")
    script = ALL_SPEAK + "assert rank != '2', 'on purpose'\n"
    job = run_job(*words, *more, script=script, env=install(theirs))
    assert job.process.returncode == 1
    assert "AssertionError: on purpose" in job.stderr
    assert job.read("logs/first") == "out of 0\n"
    (attempt,) = job.folder.glob("logs/name_*/attempt_0")
    written = files_below(attempt)
    assert written["0/stderr.log"] == "err of 0\n"
    assert written["1/stdout.log"] == "out of 1\n"
    assert written["2/stderr.log"].startswith("err of 2\n")
    assert "on purpose" in json.loads(written["2/error.json"])["message"]["message"]
    assert sorted(job.stdout.splitlines()) == ["[default0]:out of 0", "[default1]:out of 1"]
    assert "[default1]:err of 1" in job.stderr.splitlines()
    assert "err of 0" not in job.stderr


def test_a_stream_that_it_leaves_to_us_is_on_the_console(run_job: Any, install: InstallAs) -> None:
    module = """
        import os
        from types import SimpleNamespace

        def Mine(log_dir, redirects, tee, local_ranks_filter):
            assert (redirects, tee) == (0, 3)
            streams = {0: "", 1: os.devnull}
            answer = SimpleNamespace(
                stdouts=streams, stderrs=streams, tee_stdouts={}, tee_stderrs={0: os.devnull},
                error_files={0: os.devnull}, filtered_stdout="", filtered_stderr="",
            )
            return SimpleNamespace(reify=lambda envs: answer)
    """
    script = ALL_SPEAK + "assert rank != '1', 'on purpose'\n"
    words = ("--logs-specs=mine", "--no-warm", "--nproc-per-node=2", "--tee=3")
    job = run_job(*words, "--duplicate-stdout-filters=of", script=script, env=install(module))
    assert job.process.returncode == 1
    assert job.stdout == "out of 0\n"
    assert "err of 0" in job.stderr.splitlines()
    assert "AssertionError: on purpose" in job.stderr, "from an error file of our own"
    assert os.path.exists(os.devnull)


def test_a_file_of_every_attempt_loses_nothing_but_what_was_there_before(
    run_job: Any, install: InstallAs
) -> None:
    module = OURS.replace("{env['TORCHELASTIC_RESTART_COUNT']}-", "")
    words = ("--logs-specs=mine", "--no-warm", "--max-restarts=1")
    module += '\nos.makedirs("mine/0")\nopen("mine/0/o", "w").write("of another job")\n'
    job = run_job(*words, script=FAIL_ONCE, env=install(module))
    assert job.process.returncode == 0, job.stderr
    assert job.read("mine/0/o") == "out of 0\n" * 2


def test_nodes_ask_one_by_one(start_job: Any, install: InstallAs) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    words = ("--logs-specs=mine", "--no-warm", "--nnodes=2", f"--rdzv-endpoint={endpoint}")
    env = install(OURS)
    jobs = [start_job(*words, "--snapshot-dir=.", script=SPEAK, env=env) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.stderr for job in jobs]
    written = [files_below(job.folder / "mine") for job in jobs]
    found = sorted((path, text) for one in written for path, text in one.items() if "/o" in path)
    assert found == [("0-0/o", "out of 0\n"), ("0-1/o", "out of 1\n")]
    for job in jobs:
        job.expect_nothing_left()


# --- what cannot work ---------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_those_that_are_known(
    run_job: Any, install: InstallAs
) -> None:
    job = run_job("--logs-specs=nobodys", script=SPEAK, env=install(OURS))
    assert job.process.returncode == 2
    said, hint = job.stderr.splitlines()
    assert said == "holdfast: --logs-specs: there is no logs spec 'nobodys'"
    assert hint.startswith("hint: known: ")
    assert hint.endswith("mine and other")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "message", "hint"),
    [
        ("import no_such_module", "cannot be made: ModuleNotFoundError: No module", "raised at"),
        ("Mine = dict", "is a dict, which has no `reify`", "register a subclass"),
    ],
    ids=["raises", "is something else"],
)
def test_what_cannot_be_made_is_said_in_a_sentence_and_no_job_starts(
    run_job: Any, install: InstallAs, module: str, message: str, hint: str
) -> None:
    job = run_job("--logs-specs=mine", script="open('ran', 'w')", env=install(module))
    assert job.process.returncode == 2
    said, more = job.stderr.splitlines()
    assert said.startswith(f"holdfast: the logs specs mine {message}")
    assert more.startswith(f"hint: {hint}")
    assert sorted(path.name for path in job.folder.iterdir()) == [
        "agent.stderr", "agent.stdout", "program.py", "tmp",
    ]  # fmt: skip
    assert list((job.folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "message", "frame"),
    [
        ("raise KeyError('rank')", "the logs specs mine failed: KeyError: 'rank'", "in reify"),
        ("del answer.stdouts[1]", "stdouts has the local ranks [0], and must have 0 to 1", ""),
    ],
    ids=["raises", "is incomplete"],
)
def test_a_wrong_answer_ends_the_job_with_the_reason(
    run_job: Any, install: InstallAs, answer: str, message: str, frame: str
) -> None:
    module = OURS.replace("return answer", f"{answer}\n        return answer")
    words = ("--logs-specs=mine", "--no-warm", "--nproc-per-node=2")
    job = run_job(*words, script="open('ran', 'w')", env=install(module))
    assert job.process.returncode == 1
    assert message in job.stderr
    assert frame in job.stderr
    assert ("Traceback" in job.stderr) == bool(frame), "theirs or none"
    assert "registered_logs.py" not in job.stderr
    assert not (job.folder / "ran").exists()


def test_an_answer_that_comes_at_last_is_taken(run_job: Any, install: InstallAs) -> None:
    """It raises in the first attempt: that costs a restart, as any failure does."""
    module = OURS.replace(
        "return answer",
        "if env['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "            raise OSError(28, 'the disk is full')\n"
        "        return answer",
    )
    words = ("--logs-specs=mine", "--no-warm", "--max-restarts=1")
    job = run_job(*words, script=SPEAK, env=install(module))
    assert job.process.returncode == 0, job.stderr
    assert "the disk is full" in job.stderr
    assert job.read("mine/1-0/o") == "out of 0\n"


def test_a_job_without_one_loads_nothing_of_it(run_job: Any) -> None:
    job = run_job("--no-warm", script="", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in job.stderr.splitlines()}
    assert "holdfast.processes.output.stream_plans" in loaded
    unwanted = (
        "importlib.metadata",
        "holdfast.processes.output.registered_logs",
        "holdfast.elastic",
    )
    assert not loaded.intersection((*unwanted, "holdfast.observe.event_handlers"))
