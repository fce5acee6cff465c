"""Who works on what, by the journal: jobs of a search, and the assignments that each of them holds.

An assignment is held by one job from the line that assigns it until a line ends it. Its identity is its number together
with the term that assigned it: a coordinator that was overtaken may use the same number for something else. A report
counts if the job holds the assignment, and a fold is free if no job holds an assignment of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.joined_job import JoinedJob, with_team

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
        #: number -> job, in the order in which they joined
        self.jobs: dict[int, JoinedJob] = {}
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
                last = next(reversed(self.jobs.values()), None)
                self.jobs[event.job] = JoinedJob.after(last, event, n_assignments=0)
            case ev.JobLeft() if event.job in self.jobs:
                self.jobs[event.job].leave(event)
            case ev.FoldAssigned() if (job := with_team(self.jobs, event.team)) is not None:
                self.held[event.assignment] = Held(job.number, self.term, event.trial, event.fold, event.team)
            case _ if isinstance(event, ENDS):
                self.held.pop(event.assignment, None)

    @property
    def here(self) -> set[int]:
        """Jobs that have joined and not left."""
        return {number for number, job in self.jobs.items() if job.is_here}

    @property
    def left(self) -> set[int]:
        """Jobs that have left."""
        return self.jobs.keys() - self.here

    @property
    def n_ranks(self) -> int:
        """Number of ranks of all jobs that ever joined."""
        return max((job.ranks.stop for job in self.jobs.values()), default=0)

    def job_of(self, rank: int) -> JoinedJob | None:
        """Return the job of a rank; None if no job has it."""
        return next((job for job in self.jobs.values() if rank in job.ranks), None)

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
