"""A launcher that keeps logs by hand: streams in files, tails of them, what failed in words."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

from torch.distributed.elastic.control_plane import worker_main
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from torch.distributed.elastic.multiprocessing.tail_log import TailLog


def work(files: dict[int, str]) -> None:
    for rank, path in files.items():
        with redirect_stdout(path), redirect_stderr(f"{path}.err"):
            print(f"step 1 of {rank}")
            os.system(f"echo a child of {rank}")
            print("a warning", file=sys.stderr)
            print(f"last words of {rank}")


def follow(folder: Path) -> None:
    files = {rank: str(folder / f"{rank}.log") for rank in range(3)}
    shown = io.StringIO()
    prefixes = {2: "[the last]: "}
    tail = TailLog(
        "trainer", files, shown, prefixes, 0.01, log_line_filter=lambda line: "step" not in line
    ).start()
    work(files)
    print(tail.stopped())
    tail.stop()
    print(tail.stopped(), *sorted(shown.getvalue().splitlines()), sep="\n")
    print(Path(f"{files[0]}.err").read_text(encoding="utf-8"), end="")


def tell() -> None:
    codes = {0: -9, 1: 3, 2: -15}
    failures = {
        rank: ProcessFailure(rank, 100 + rank, code, "none") for rank, code in codes.items()
    }
    text = str(ChildFailedError("trainer", failures))
    for code, pid, name in sorted(
        re.findall(r"exitcode\s*: (-?\d+) \(pid: (\d+)\)(?: +\((\w+)\))?", text)
    ):
        print(code, pid, name)


@worker_main()
def main(folder: Path) -> None:
    follow(folder)
    tell()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    with worker_main():
        print("done")
