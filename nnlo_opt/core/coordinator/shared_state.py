"""Decisions of the coordinator in a run that several jobs share: teams come with their job and leave with it.

A job that has joined is away until it follows this coordinator. While it is away it gets nothing, but what it reports
counts, and its trials stay with it: it may still work for a coordinator before this one. When it follows, leaves or is
expelled, the assignments that it still had have been lost, which is in the journal before this state knows it.
"""

from collections.abc import Collection

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.topology import NO_TEAMS, Topology
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.joined_job import JoinedJob
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, UnrecordedFold


def teams_of(job: ev.JobJoined | JoinedJob, n_fold: int, *, every_rank_trains: bool = False) -> Topology:
    """Return the topology of a job, numbered from its own first rank, block and team."""
    return Topology.plan(
        job.n_ranks,
        job.block_size,
        n_fold,
        n_masters=job.n_masters,
        ranks_per_worker=job.n_processes,
        every_rank_trains=every_rank_trains,
    )


def why_refused(job: ev.JobJoined, n_fold: int, *, every_rank_trains: bool = False) -> str:
    """Return why a job cannot join a search with so many folds; empty if it can. As in `core.jobs.lead.Search`."""
    part = teams_of(job, n_fold, every_rank_trains=every_rank_trains)
    if (job.n_blocks, job.n_teams) == (part.n_blocks, len(part.teams)):
        return ""
    return (
        f"A job of {job.n_ranks} ranks must have {len(part.teams)} teams in {part.n_blocks} blocks for this search. "
        f"Received: {job.n_teams} in {job.n_blocks}; start it with the options and the version of the other jobs."
    )


class SharedCoordinatorState(CoordinatorState):
    """Coordinator of teams that come and go. If there is none, the search waits for one.

    Args:
        plan: goal of the search.
        ledger: trials and jobs so far. From now on only this state may change it.
        pruner: as for `Policy`.
        every_rank_trains: as in `Team`.
    """

    is_shared = True

    def __init__(
        self, plan: ins.SearchPlan, ledger: Ledger, pruner: Pruner | None = None, *, every_rank_trains: bool = False
    ) -> None:
        super().__init__(plan, NO_TEAMS, ledger, pruner)
        self._every_rank_trains = every_rank_trains
        #: jobs that follow this coordinator
        self._present: frozenset[int] = frozenset()
        #: jobs that it wants to be gone
        self._expelled = set[int]()
        for job in ledger.jobs.values():
            self._join(job)
            if not job.is_here:
                self.membership.leave(job.teams)
        # How their teams have reformed will be heard: all reports are read again.
        dead = {
            rank for start in ledger.sessions if start.term for ranks in start.lost_ranks.values() for rank in ranks
        }
        for team_index in self.membership.died(dead):
            self.membership.take_unrecorded(team_index)

    def _join(self, job: JoinedJob) -> None:
        self.membership.join(teams_of(job, self.plan.n_fold, every_rank_trains=self._every_rank_trains))
        self.topology = self.membership.topology
        self.suggestions.n_blocks = self.ledger.n_blocks

    # ------------------------------------------------------------ jobs

    def _take(self, event: ins.CoordinatorEvent) -> None:
        if isinstance(event, ins.JobsChanged):
            self._take_jobs(event)
            return
        try:
            super()._take(event)
        except ProtocolError as error:
            if not isinstance(event, ins.FromMaster):
                raise
            # Anyone who can write to its log may have said this; the next coordinator would hear it again.
            self._expel(event.team, f"It reported what no team may report. {error}")

    def _take_jobs(self, event: ins.JobsChanged) -> None:
        lost: list[Assignment] = []
        for recorded in event.recorded:
            self.ledger.apply(recorded)
            match recorded:
                case ev.JobJoined():
                    self._join(self.ledger.jobs[recorded.job])
                case ev.AssignmentLost():
                    lost.append(self.ledger.assignments[recorded.assignment])
                    self.membership.drop(lost[-1])
                case ev.JobLeft():
                    self.membership.leave(self.ledger.jobs[recorded.job].teams)
                    self.suggestions.n_blocks = self.ledger.n_blocks
        changed, self._present = event.present ^ self._present, event.present
        changed |= {recorded.job for recorded in event.recorded if isinstance(recorded, ev.JobLeft)}
        blocks = dict.fromkeys(assignment.block for assignment in lost)
        for number in sorted(changed):
            self._set_away(number, is_away=number not in event.present)
            blocks |= dict.fromkeys(self.ledger.jobs[number].blocks)
        if self.phase is not Phase.OPENING:
            for assignment in lost:
                self._gives_up(self.ledger.trials[assignment.trial])
        self._place_blocks(blocks)

    def _set_away(self, job: int, *, is_away: bool) -> None:
        teams = self.ledger.jobs[job].teams
        self.membership.away = self.membership.away.union(teams) if is_away else self.membership.away.difference(teams)

    def _place_blocks(self, blocks: Collection[int]) -> None:
        for block in blocks:
            self._place_block(block)

    # ------------------------------------------------------------ what is otherwise in such a run

    def _end_left_open(self, last_end: ins.LastEnd, finished: dict[int, UnrecordedFold]) -> None:
        """Leave open what jobs that are here still hold."""
        for assignment in self.ledger.assignments:
            if assignment.end is None:
                job = self.ledger.job_of(assignment)
                if job is not None and job.is_here:
                    self.membership.hold(assignment)
        super()._end_left_open(last_end, finished)

    def _end_preempted(self, team_index: int) -> None:
        """Only a job that is about to leave stops what is wanted: it gets nothing more."""
        super()._end_preempted(team_index)
        job = self._job_of(team_index)
        self._set_away(job.number, is_away=True)
        self._place_blocks(job.blocks)

    def _take_stuck(self, assignment: Assignment, what: str) -> None:
        """Go on without the job."""
        self._expel(assignment.team, what)

    def _expel(self, team_index: int, reason: str) -> None:
        """Send the job of a team away, once."""
        job = self._job_of(team_index)
        if job.number not in self._expelled:
            self._expelled.add(job.number)
            self._instructions.append(ins.Expel(job=job.number, reason=reason))

    def _job_of(self, team_index: int) -> JoinedJob:
        return next(job for job in self.ledger.jobs.values() if team_index in job.teams)
