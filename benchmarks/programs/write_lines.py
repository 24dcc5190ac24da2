"""Write so many megabytes of known lines to stdout, as fast as they are taken."""

# isort: off
import stamp
import os
import sys
import time

import line_pattern

template = line_pattern.block_template(int(os.environ["RANK"]))
begun = time.monotonic()
for number in range(line_pattern.block_count(int(sys.argv[1]))):
    rest = memoryview(line_pattern.block(template, number))
    while rest:
        rest = rest[os.write(1, rest) :]
stamp.report(begun)
