"""Request of a user's own script for a search or a training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnlo_opt.coordinator.coordinator import Observer
from nnlo_opt.run.findings import Findings
from nnlo_opt.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Request of a user's own script, which owns its process; errors are raised."""

    #: name of the program, for the journal
    program: str
    #: search space; None: a training
    space: Space | None
    #: description of model and data; None: a trainer rank is asked
    findings: Findings | None
    #: if False, the journal is in a temporary folder: it is not synced, and no reports are written
    keeps_files: bool
    #: the best model is written to the run directory
    saves_model: bool = False
    #: if False, the first trial that fails ends the search
    catch: bool = True
    #: hear every event after the ledger knows it
    observers: Sequence[Observer] = ()
    #: returns how many trials may run at a time, out of as many as there are blocks
    n_wanted: Callable[[int], int] = int
