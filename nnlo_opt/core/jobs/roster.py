"""Who works on what, by the journal: jobs of a search, and the assignments that each of them holds.

An assignment is held by one job from the line that assigns it until a line ends it. Its identity is its number together
with the term that assigned it: a coordinator that was overtaken may use the same number for something else. A report
counts if the job holds the assignment, and a fold is free if no job holds an assignment of it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.joined_job import LEAST_RANKS

#: events that end an assignment
ENDS = (
    ev.AssignmentFinished,
    ev.AssignmentFailed,
    ev.AssignmentStopped,
    ev.AssignmentPaused,
    ev.AssignmentPreempted,
    ev.AssignmentLost,
)


@dataclass(frozen=True, slots=True)
class Held:
    """Assignment that a job holds."""

    job: int
    term: int
    trial: int
    fold: int
    team: int


class Roster:
    """Reducer of a journal.

    Args:
        events: events of the journal so far.
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        #: current term and the job that leads it; 0 before the first
        self.term = self.leader = 0
        #: jobs that have joined and not left
        self.here: set[int] = set()
        #: jobs that have left, and those of them that were expelled
        self.left: set[int] = set()
        self.expelled: set[int] = set()
        #: jobs in the order in which they joined, and for each the number of teams and of ranks up to its own; both are
        #: numbered on
        self._jobs: list[int] = []
        self._n_teams: list[int] = []
        self._n_ranks: list[int] = []
        #: assignment -> who holds it
        self.held: dict[int, Held] = {}
        #: time of the latest event
        self.last_s = 0.0
        #: True if the search is complete, and if it is that or was stopped
        self.is_complete = self.is_over = False
        for event in events:
            self.apply(event)

    def apply(self, event: ev.Event) -> None:
        """Take in the next event."""
        self.last_s = max(self.last_s, event.time_s)
        match event:
            case ev.RunStarted():
                self.is_complete = self.is_over = False
            case ev.RunCompleted() | ev.RunPreempted():
                self.is_over, self.is_complete = True, isinstance(event, ev.RunCompleted)
            case ev.TermBegan():
                self.term, self.leader = event.term, event.job
            case ev.JobJoined():
                self.here.add(event.job)
                self._jobs.append(event.job)
                self._n_teams.append(self.n_teams + event.n_teams)
                self._n_ranks.append(self.n_ranks + max(event.n_ranks, LEAST_RANKS))
            case ev.JobLeft():
                self.here.discard(event.job)
                self.left.add(event.job)
                if event.expelled:
                    self.expelled.add(event.job)
            case ev.FoldAssigned() if event.team < self.n_teams:
                job = self._jobs[bisect_right(self._n_teams, event.team)]
                self.held[event.assignment] = Held(job, self.term, event.trial, event.fold, event.team)
            case _ if isinstance(event, ENDS):
                self.held.pop(event.assignment, None)

    @property
    def n_teams(self) -> int:
        """Number of teams of all jobs that ever joined."""
        return self._n_teams[-1] if self._n_teams else 0

    def teams(self, job: int) -> range:
        """Return the teams of a job."""
        i = self._jobs.index(job)
        return range(self._n_teams[i - 1] if i else 0, self._n_teams[i])

    @property
    def n_ranks(self) -> int:
        """Number of ranks of all jobs that ever joined."""
        return self._n_ranks[-1] if self._n_ranks else 0

    def ranks(self, job: int) -> range:
        """Return the ranks of a job."""
        i = self._jobs.index(job)
        return range(self._n_ranks[i - 1] if i else 0, self._n_ranks[i])

    def job_of(self, rank: int) -> int | None:
        """Return the job of a rank; None if no job has it."""
        return self._jobs[bisect_right(self._n_ranks, rank)] if 0 <= rank < self.n_ranks else None

    def holds(self, job: int, term: int, assignment: int) -> bool:
        """Return True if a report of `job` about this assignment of `term` counts."""
        held = self.held.get(assignment)
        return held is not None and (held.job, held.term) == (job, term)

    def of(self, job: int, before: int | None = None) -> list[int]:
        """Return the assignments that a job holds, if given only those of terms before `before`."""
        return [n for n, held in self.held.items() if held.job == job and (before is None or held.term < before)]

    def is_free(self, trial: int, fold: int) -> bool:
        """Return True if the fold may be assigned."""
        return all((held.trial, held.fold) != (trial, fold) for held in self.held.values())
