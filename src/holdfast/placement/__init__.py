"""Where a job runs: what the scheduler that placed us says about it, and nothing else.

A *scheduler* is the program that placed this process on its machine: Slurm, mpirun, a Kubernetes
controller, a cloud's training service. It places, Holdfast holds together.

Rules
- Pure: what is known is a mapping of variables and a reader of small files (`model.Circumstances`).
  Nothing here asks the network, the clock, or a program of the scheduler, which containers do not
  have.
- `schedulers.detect` is the one way in. It returns a `Placement`, a `PlacementRefusal`, or nothing.
- One function reads one scheduler; those that need no thought are rows of a table
  (`services.ROWS`). A module is imported only where a variable of one of its schedulers is set.
- `scheduler_variables` knows which variables describe the scheduler's own ranks: workers must not
  see them.

Detecting is all that is needed of most schedulers. One that Holdfast can also ask to place nodes
has a verb of its own in `cli/`, which uses this room like everybody else.
"""
