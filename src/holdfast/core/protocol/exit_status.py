"""What `holdfast run` ends with: one number for each way in which a job can end.

Kept free of imports: the command asks for these before it loads anything else.
"""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
USAGE = 2
NOT_FORMED = 3
BY_SIGNAL = 128
"""Added to the number of the signal that ended the job, as shells do."""
