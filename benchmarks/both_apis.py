"""(n) One launcher script through both APIs: PyTorch's, and `holdfast.elastic`.

The script (`programs/through_either_api.py`) imports from the one or the other and names the
backend, c10d or holdfast; all else is the same and left at its defaults. A function runs on two
workers, one that needs PyTorch also on eight. The clock starts when the script has imported all
that it imports, and stops when it has the workers' values. How long the imports take is told apart.

What a worker has to import is part of it. PyTorch ships a function together with code of its
own that imports torch, whether the function needs it or not; ours does not.
"""

from __future__ import annotations

import sys
from functools import partial

from msgspec import Struct

from benchmarks.figures import Figure, Target
from benchmarks.jobs import Job, Report
from benchmarks.launchers import (
    PROGRAMS,
    Launcher,
    free_port,
    holdfast,
    torchrun_with_shared_store,
)
from benchmarks.session import Session

PROGRAM = "through_either_api.py"
DEADLINE_S = 120.0
WORKERS = 2
MANY_WORKERS = 8
FACES = ("elastic_launch", "LocalElasticAgent")
METHODS = ("spawn", "fork")
FUNCTIONS = {"rank": "needs no torch", "tensor": "returns a tensor"}
FAILING = "rank_after_a_failure"
FAILING_WITH_TORCH = "tensor_after_a_failure"


class Api(Struct, frozen=True):
    """Where a script imports from, and the backend that it names."""

    launcher: Launcher
    """Its name and its environment; the command is another one."""
    modules: str
    launching: str
    backend: str


class Case(Struct, frozen=True):
    """How the script is called."""

    face: str
    function: str
    method: str
    workers: int = WORKERS

    def command(self, api: Api) -> list[str]:
        where = [api.modules, api.launching, api.backend]
        how = [self.face, self.function, self.method, str(free_port())]
        how.append(str(self.workers))
        return [sys.executable, str(PROGRAMS / PROGRAM), *where, *how]


APIS = (
    Api(holdfast, "holdfast.elastic", "holdfast.elastic.launcher", "holdfast"),
    Api(
        torchrun_with_shared_store,
        "torch.distributed.elastic",
        "torch.distributed.launcher",
        "c10d",
    ),
)


def both_apis(session: Session) -> list[Figure]:
    """Launch and values, for each way to do so; then a failure and a restart."""
    figures: list[Figure] = []
    for face in FACES:
        for method in METHODS:
            for function in FUNCTIONS:
                case = Case(face, function, method)
                own = _launch_figures(case, with_whole=not figures)
                _alternate(session, own, case)
                figures += own
    for method in METHODS:
        own = _failure_figures(method)
        _alternate(session, own, Case("elastic_launch", FAILING, method))
        figures += own
    return figures + _with_torch(session)


def _with_torch(session: Session) -> list[Figure]:
    """Many workers that import PyTorch: what a zygote is for."""
    what = f"{MANY_WORKERS} workers by spawn, function returns a tensor"
    values = Figure("n", "tensors_spawn", f"elastic_launch, {what}: call to values")
    values.target = Target("ratio at least", 3)
    _alternate(session, [values], Case("elastic_launch", "tensor", "spawn", MANY_WORKERS))
    what = f"rank 1 of {MANY_WORKERS} by spawn kills itself, to the last tensor of the next ones"
    restart = Figure("n", "restart_tensors_spawn", what)
    restart.target = Target("ratio at least", 10)
    failing = Case("elastic_launch", FAILING_WITH_TORCH, "spawn", MANY_WORKERS)
    _alternate(session, [restart], failing)
    return [values, restart]


def _launch_figures(case: Case, with_whole: bool) -> list[Figure]:
    what = f"{case.face}, {WORKERS} workers by {case.method}, function {FUNCTIONS[case.function]}"
    name = f"{case.face}_{case.function}_{case.method}"
    figures = [Figure("n", name, f"{what}: call to values")]
    if with_whole:
        figures.append(Figure("n", f"{name}_imports", "… imports of the script, before the call"))
        figures.append(Figure("n", f"{name}_whole", "… the whole script, from command to end"))
    return figures


def _failure_figures(method: str) -> list[Figure]:
    what = f"rank 1 of {WORKERS} by {method} kills itself, to the last first line of the next two"
    return [
        Figure("n", f"restart_{method}", what),
        Figure("n", f"restart_{method}_total", "… with that restart: call to values"),
    ]


def _alternate(session: Session, figures: list[Figure], case: Case) -> None:
    for repeat in range(session.repeats):
        for api in APIS:
            sample = partial(_sample, session, api, case, len(figures))
            session.take(figures, api.launcher, sample, repeat)


def _sample(session: Session, api: Api, case: Case, wanted: int) -> list[float]:
    with session.job(api.launcher, case.command(api)) as job:
        if case.function in (FAILING, FAILING_WITH_TORCH):
            return [_restarted_s(job, case.workers), _times(job)[1]][:wanted]
        whole_s = job.await_success(DEADLINE_S)
        imported_s, called_s = _times(job)
        return [called_s, imported_s, whole_s][:wanted]


def _restarted_s(job: Job, workers: int) -> float:
    """From the moment at which rank 1 kills itself; waits for the end of the script."""

    def begun(reports: list[Report]) -> list[float]:
        return [report.begun for report in reports if report.attempt == 1]

    job.await_reports(lambda reports: len(begun(reports)) == workers, DEADLINE_S)
    job.await_success(DEADLINE_S)
    failed_at = next(report.reached for report in job.reports if report.attempt == 0)
    return max(begun(job.reports)) - failed_at


def _times(job: Job) -> tuple[float, float]:
    """How long the script's imports took, and then the call."""
    imported_s, called_s = map(float, (job.folder / "times").read_text().split())
    return imported_s, called_s
