"""Decides from the journal whether an ended run is started again. Pure functions.

The exit code of mpirun is not enough: it is 0 after the death of a coordinator under ULFM, and 1, 137 or 143 after the
death of any rank.
"""

from dataclasses import dataclass

from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_PREEMPTED, EXIT_WRONG_REQUEST
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.trials.ledger import Ledger

#: consecutive starts without any rank that are repeated at once: Open MPI's mpirun fails ("listener thread failed to
#: start") if a killed mpirun has left a folder with the same process ID in /tmp
MAX_UNBORN = 3
#: consecutive starts that may achieve nothing: what ended two of them will end a third
MAX_IDLE = 2
#: pauses in seconds before restarts after starts that could not open a run that had worked before: mpirun may reach a
#: node again later
PAUSES_S = (5.0, 10.0, 20.0, 40.0, 80.0)
#: signal of the out-of-memory killer; highest signal number of Linux
_SIGKILL, _LAST_SIGNAL = 9, 64


class Standing(Frozen):
    """State of a run according to its journal, while no process writes to it."""

    #: identifies the last start: Unix time of the first start, number of starts, and of jobs that have joined; (0, 0)
    #: without a journal
    start: tuple[float, int] = (0.0, 0)
    #: number of events whose work no later start repeats
    n_lasting: int = 0
    #: number of assignments of folds to teams
    n_assigned: int = 0
    complete: bool = False
    preempted: bool = False
    #: True if a trial is complete
    has_result: bool = False

    @classmethod
    def of(cls, ledger: Ledger) -> "Standing":
        """Return the state of the run that has this ledger."""
        return cls(
            start=(ledger.first_start_unix_s, len(ledger.sessions) + len(ledger.jobs)),
            n_lasting=sum(session.n_lasting for session in ledger.sessions),
            n_assigned=len(ledger.assignments),
            complete=ledger.complete,
            preempted=bool(ledger.preempted_because),
            has_result=ledger.best() is not None,
        )


class Ended(Frozen):
    """End of one start, with the run's state before and after it."""

    before: Standing
    after: Standing
    #: exit code of mpirun; if negative, the signal that killed it
    exit_code: int
    #: True if the launcher was told to end it
    ordered: bool = False
    #: True if any rank has run
    has_begun: bool = True
    #: description of the first rank that died; empty if unknown
    died: str = ""


class NextStart(Frozen):
    """Decision to start again (`exit_code` is None) or to exit with that code."""

    exit_code: int | None
    #: reason for the user; empty if the ranks have reported it
    sentence: str = ""
    #: seconds to wait before the next start
    pause_s: float = 0.0
    #: True if the same start is repeated because no rank has run
    is_same: bool = False


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Decides about restarts, given the ends of all starts so far.

    Args:
        max_restarts: largest number of restarts.
        max_attempts: value of `--max-attempts`. A fold fails after that many attempts, so that many starts without
            progress are allowed.
    """

    max_restarts: int
    max_attempts: int = 3
    #: number of restarts so far
    n_restarts: int = 0
    #: consecutive starts that added nothing lasting to the journal
    n_idle: int = 0
    #: True once a start has opened the run: then a later failure to do so is not the command's fault
    has_run: bool = False
    #: consecutive starts that have not opened the run, after one that has
    n_absent: int = 0
    #: consecutive starts in which no rank has run
    n_unborn: int = 0

    def judge(self, ended: Ended) -> NextStart:
        """Return the decision after a start; call it exactly once per start."""
        after = ended.after
        has_started = after.start != ended.before.start
        if has_started and after.complete:
            if after.has_result:
                return NextStart(exit_code=EXIT_OK)
            return NextStart(exit_code=EXIT_FAILURE, sentence="the run is complete, and no trial has succeeded")
        if ended.ordered or ended.exit_code == EXIT_PREEMPTED or (has_started and after.preempted):
            return NextStart(exit_code=EXIT_PREEMPTED)
        if ended.exit_code == EXIT_WRONG_REQUEST:
            return NextStart(exit_code=EXIT_WRONG_REQUEST)
        how = _how_it_ended(ended)
        self.n_unborn = 0 if ended.has_begun or has_started else self.n_unborn + 1
        if 0 < self.n_unborn <= MAX_UNBORN:
            again = f"once more ({self.n_unborn} of at most {MAX_UNBORN} times in a row)"
            return NextStart(exit_code=None, sentence=f"{how}, before any rank had begun: {again}", is_same=True)
        if why := self._reason_to_give_up(ended, has_started=has_started):
            return NextStart(exit_code=EXIT_FAILURE, sentence=f"{how}, {why}: giving up")
        self.n_restarts += 1
        pause_s = PAUSES_S[self.n_absent - 1] if self.n_absent else 0.0
        after_s = f" after {pause_s:g} s" if pause_s else ""
        again = f"starting again from the journal{after_s}, restart {self.n_restarts} of at most {self.max_restarts}"
        return NextStart(exit_code=None, sentence=f"{how}: {again}", pause_s=pause_s)

    def _reason_to_give_up(self, ended: Ended, *, has_started: bool) -> str:
        """Count a crashed start; return why there is no other one, or "" to restart."""
        before, after = ended.before, ended.after
        self.has_run = self.has_run or has_started
        self.n_absent = self.n_absent + 1 if self.has_run and not has_started else 0
        if self.n_absent > len(PAUSES_S):
            return f"and none of the last {self.n_absent} starts has opened the run"
        if not self.n_absent:
            grew = after.n_lasting > (before.n_lasting if after.start[0] == before.start[0] else 0)
            self.n_idle = 0 if grew else self.n_idle + 1
            has_tried = after.n_assigned > before.n_assigned
            if self.n_idle >= (max(MAX_IDLE, self.max_attempts + 1) if has_tried else MAX_IDLE):
                return f"and {self.n_idle} starts in a row have added nothing to the journal"
        if self.n_restarts == self.max_restarts:
            return f"after {self.n_restarts} restarts (`--max-restarts`)"
        return ""


def _how_it_ended(ended: Ended) -> str:
    code = ended.exit_code
    # Open MPI and shells add 128 to the number of a signal. ssh, hydra and srun exit with 255 on their own errors.
    number = -code if code < 0 else code - 128 if 128 < code <= 128 + _LAST_SIGNAL else 0
    why = " (SIGKILL, by hand or for lack of memory)" * (number == _SIGKILL)
    how = f"by signal {number}{why}" if number else f"with code {code}"
    return f"{ended.died}{'; ' * bool(ended.died)}the job ended {how} before the run was complete"
