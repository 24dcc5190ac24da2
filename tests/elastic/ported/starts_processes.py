"""`start_processes` and `record` alone."""

import json
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    start_processes,
    to_map,
)
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    get_error_handler,
    record,
)


def power(base, exponent):
    print("computing in", os.environ["NAME"])
    return base**exponent


def stays(base, exponent):
    signal.pause()


@record
def main_of_a_worker():
    raise KeyError("lost")


@record
def passes_it_on(path):
    failure = ProcessFailure(0, 1234, 9, path)
    raise ChildFailedError("child", {5: failure})


@record
def leaves():
    sys.exit(0)


def files_of(paths):
    for rank, path in sorted(paths.items()):
        with open(path, encoding="utf-8") as file:
            print(rank, os.path.basename(path), file.read().split())


def main(folder):
    logs = DefaultLogsSpecs(log_dir=folder, redirects={0: Std.OUT, 1: Std.ALL})
    envs = {0: {"NAME": "zero"}, 1: {"NAME": "one"}}
    context = start_processes("p", power, {0: (2, 3), 1: (3, 2)}, envs, logs, start_method="fork")
    result = context.wait()
    print(
        sorted(result.return_values.items()),
        result.failures,
        result.is_failed(),
        len(context.pids()),
    )
    files_of(result.stdouts)
    context.close()

    command = ("-c", "import sys; print(sys.argv[1:]); sys.exit(len(sys.argv))")
    arguments = {rank: (*command, *("x" * rank)) for rank in range(2)}
    context = start_processes(
        "c", sys.executable, arguments, {0: {}, 1: {}}, DefaultLogsSpecs(redirects=Std.ALL)
    )
    while not (result := context.wait(timeout=1)):
        pass
    print(result.is_failed(), {f.local_rank for f in result.failures.values()} <= {0, 1})

    both = {0: (0, 0), 1: (0, 0)}
    context = start_processes("s", stays, both, {0: {}, 1: {}}, DefaultLogsSpecs(), None, "fork")
    print(context.wait(0), context.name, context.nprocs, sorted(context.pids()))
    context.close(signal.SIGKILL)
    ended = context.wait(10)
    print(ended.is_failed(), ended.failures[0].signal_name(), ended.failures[0].exitcode)
    print(Std.from_str("0:1,1:2"), to_map({0: Std.OUT}, 2), Std.from_str("3") == Std.ALL)
    try:
        start_processes("w", power, {0: ()}, {0: {}, 1: {}}, DefaultLogsSpecs())
    except RuntimeError:
        print("ranks that do not match are refused")
    print(SignalException("ended", signal.SIGTERM).sigval.name)


def recorded(folder):
    mine, theirs = (os.path.join(folder, name) for name in ("mine.json", "passed.json"))
    os.environ["TORCHELASTIC_ERROR_FILE"] = mine
    try:
        main_of_a_worker()
    except KeyError:
        with open(mine, encoding="utf-8") as file:
            message = json.load(file)["message"]
        print(message["message"], {"py_callstack", "timestamp"} <= message["extraInfo"].keys())
    failure = ProcessFailure(1, 77, -9, mine)
    print(failure.signal_name(), failure.message["message"], failure.exitcode)
    os.environ["TORCHELASTIC_ERROR_FILE"] = theirs
    try:
        passes_it_on(mine)
    except ChildFailedError as error:
        print(error.get_first_failure()[0], error.name)
    with open(theirs, encoding="utf-8") as file:
        print(json.load(file)["message"]["message"])
    print(leaves(), type(get_error_handler()).__name__)


if __name__ == "__main__":
    main(os.path.join(sys.argv[1], "logs"))
    recorded(sys.argv[1])
