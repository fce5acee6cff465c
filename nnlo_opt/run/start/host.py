"""Host of a run: the process in which it is started."""

from collections.abc import Callable, Sequence

from nnlo_opt.coordinator.coordinator import Observer
from nnlo_opt.coordinator.instructions import CoordinatorEvent
from nnlo_opt.records import Value
from nnlo_opt.run.start.interruption import Interruption
from nnlo_opt.run.workload.findings import Findings
from nnlo_opt.space.space import Space


class Host(Value):
    """Process in which a run is started; here a command, which owns the process."""

    #: name of the program, for the journal; empty: the driver's
    program: str = ""
    #: lines are printed, search and reports have processes of their own, and the process may be ended by a stuck rank
    owns_process: bool = True
    #: if False, the journal is in a temporary folder: it is not synced, and no reports are written
    keeps_files: bool = True
    #: the best model is written to the run directory
    saves_model: bool = True
    #: if False, the first trial that fails ends the search; None: only if no trial has succeeded before
    catch: bool | None = True
    #: wish of the user that the search ends; None: Ctrl-C ends the process
    interruption: Interruption | None = None
    #: search space, if no process of the search loads it; None in a training
    space: Space | None = None
    #: returns how many trials may run at a time, out of as many as there are blocks
    n_wanted: Callable[[int], int] = int
    #: description of model and data; None: a trainer rank is asked
    findings: Findings | None = None
    #: hear every event after the ledger knows it
    observers: Sequence[Observer] = ()
    #: returns requests of a script to its search since the last call
    requests: Callable[[], Sequence[CoordinatorEvent]] = tuple


class Script(Host):
    """A user's own script, which goes on after the run; errors are raised."""

    owns_process: bool = False
    saves_model: bool = False
