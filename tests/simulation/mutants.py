"""All planted bugs; each has to be found. The rules that they break are in docs/design/rules.md."""

from __future__ import annotations

from .mutants_of_coordinator import MUTANTS as OF_THE_COORDINATOR
from .mutants_of_engine import MUTANTS as OF_THE_ENGINE
from .mutants_of_fencing import MUTANTS as OF_FENCING
from .mutants_of_forming import MUTANTS as OF_FORMING
from .mutants_of_hearing import MUTANTS as OF_HEARING
from .mutants_of_leaving import MUTANTS as OF_LEAVING
from .mutants_of_liveness_locks import MUTANTS as OF_NOTES
from .mutants_of_quarantine import MUTANTS as OF_QUARANTINE
from .mutants_of_saving import MUTANTS as OF_SAVING
from .mutants_of_scaling import MUTANTS as OF_SCALING
from .mutants_of_stalls import MUTANTS as OF_STALLS
from .mutants_of_succession import MUTANTS as OF_SUCCESSION
from .mutants_of_the_end import MUTANTS as OF_THE_END
from .planting import Mutant, planted

MUTANTS: tuple[Mutant, ...] = (
    *OF_FORMING,
    *OF_FENCING,
    *OF_THE_COORDINATOR,
    *OF_SUCCESSION,
    *OF_HEARING,
    *OF_LEAVING,
    *OF_THE_ENGINE,
    *OF_NOTES,
    *OF_QUARANTINE,
    *OF_STALLS,
    *OF_SCALING,
    *OF_SAVING,
    *OF_THE_END,
)

__all__ = ["MUTANTS", "Mutant", "planted"]
