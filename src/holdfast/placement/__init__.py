"""Where a job runs: what the engine that placed us says about it, and nothing else.

An *engine* is whatever placed this process on its machine: Slurm, mpirun, a Kubernetes controller,
a cloud's training service. It places, Holdfast holds together.

Rules
- Pure: what is known is a mapping of variables and a reader of small files (`model.Circumstances`).
  Nothing here asks the network, the clock, or a program of the engine, which containers do not
  have.
- `engines.detect` is the one way in. It returns a `Placement`, a `PlacementRefusal`, or nothing.
- One module is one engine; those that need no thought are rows of a table (`by_variables`). A
  module is imported only where one of its engine's variables is set.
- `ranks_of_engines` knows which variables describe the engine's own ranks: workers must not see
  them.

Detecting is all that is needed of most engines. One that Holdfast can also ask to place nodes has a
verb of its own in `cli/`, which uses this room like everybody else.
"""
