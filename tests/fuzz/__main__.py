"""Fuzz a running coordinator with whatever a client that was let in can say.

    python -m tests.fuzz --minutes 60 --seed 1

Five targets take turns:

    full      a job whose seats are all taken: nothing that a stranger says may touch it
    open      a job with free seats: a stranger may take part, and may end it, but not crash it
    record    the coordinator's record on disk, as it is found at the start
    document  the document in a register, under a running job
    http      a server of health or of pages, and clients that send anything

Whatever must never happen ends the run with what was said, and status 1. New kinds of answers are
added to the corpus, which `tests/fuzz/test_corpus.py` says again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .corpus import Corpus
from .documents import fuzz_document, fuzz_record
from .http_requests import fuzz_http
from .jobs import Broken
from .messages import fuzz_messages

TARGETS = {
    "full": fuzz_messages(True),
    "open": fuzz_messages(False),
    "record": fuzz_record,
    "document": fuzz_document,
    "http": fuzz_http,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--only", choices=list(TARGETS), action="append")
    options = parser.parse_args()
    until = time.monotonic() + options.minutes * 60
    said: Counter[str] = Counter()
    turn = 0
    while time.monotonic() < until:
        for name in options.only or TARGETS:
            seed = f"{options.seed}.{turn}.{name}"
            corpus = Corpus(name)
            with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
                try:
                    said[name] += TARGETS[name](random.Random(seed), Path(folder), corpus)
                except Broken as broken:
                    print(f"BROKEN with seed {seed}: {broken}", flush=True)
                    return 1
            corpus.save()
        turn += 1
        left = max(0.0, until - time.monotonic()) / 60
        print(f"{dict(said)} said so far, {left:.1f} minutes left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
