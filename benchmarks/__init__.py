"""Holdfast beside torchrun, measured in the same run. `python -m benchmarks --help`."""
