"""Run a file as `runpy.run_path` does: `python run_path.py SCRIPT ARGS…`."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    if not sys.flags.safe_path:
        del sys.path[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
