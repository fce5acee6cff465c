"""Ledger: reduces events to trials.

The same code applies events in a live run and in a replay of its journal, so a resumed run has the same state.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from nnlo_opt.core.base.errors import JournalError, ProtocolError
from nnlo_opt.core.base.records import MAX_INTEGER
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.identity import RunIdentity, StartSettings
from nnlo_opt.core.trials.joined_job import JoinedJob, with_team
from nnlo_opt.core.trials.objectives import Objective, OutcomeConstraint, ParetoSet, losses
from nnlo_opt.core.trials.trial import Assignment, AssignmentEnd, FoldResult, Loss, Trial, TrialState


@dataclass(slots=True)
class Session:
    """Part of a run from one start to its end, or to the crash that ended it."""

    n_ranks: int
    n_blocks: int
    started_at_s: float
    #: time of its last event
    last_at_s: float
    #: number of trials measured before it
    n_before: int = 0
    #: time of the last end or pause of a trial; 0 before the first
    measured_at_s: float = 0.0
    #: number of its events whose work no later start repeats
    n_lasting: int = 0
    #: number of the term that it is, in a run that several jobs share; else 0
    term: int = 0
    #: block -> its world ranks that have died, in the order of their deaths
    lost_ranks: dict[int, list[int]] = field(default_factory=dict)
    #: block that has lost ranks -> (number of its living ranks, number of its ranks that train)
    ranks_left: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def lost_blocks(self) -> list[int]:
        """Blocks that can no longer train because too few ranks are left."""
        return sorted(block for block, (_, n_ranks) in self.ranks_left.items() if not n_ranks)


class Ledger:
    """All trials of a run, reduced from the events of its journal; read by exporters and reports.

    Do not set attributes from outside: only `apply` and `replay` change a ledger.

    Args:
        events: events to `replay` first.
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        #: trial number -> trial; numbers are 0, 1, 2, … without gaps
        self.trials: list[Trial] = []
        #: number of trials in each state, updated by `_enter`
        self._n_in_state = dict.fromkeys(TrialState, 0)
        #: number -> running trial, updated by `_enter`
        self.under_way: dict[int, Trial] = {}
        #: direction -> best feasible trial so far; empty before there is one
        self._best: dict[str, Trial] = {}
        #: assignment number -> assignment; numbers are 0, 1, 2, … without gaps
        self.assignments: list[Assignment] = []
        #: one per RunStarted
        self.sessions: list[Session] = []
        #: number -> job, in the order in which they joined; empty unless several jobs share the run
        self.jobs: dict[int, JoinedJob] = {}
        #: current term and number of the job that leads it; 0 unless several jobs share the run
        self.term = self.leader = 0
        #: from the first RunStarted, with the changeable parts of the last one
        self.identity = RunIdentity()
        #: from the last RunStarted
        self.settings = StartSettings()
        #: observations of other runs, from the first RunStarted
        self.adopted: list[dict[str, Any]] = []
        #: trial with the best expected figure of merit; None unless the search has found noise
        self.best_expected: Trial | None = None
        #: bytes of torn ends cut off the journal by all starts
        self.cut_bytes: int = 0
        #: Unix time of second 0
        self.first_start_unix_s: float = 0.0
        #: wall seconds of each suggestion, in trial order
        self.suggest_s: list[float] = []
        #: CPU seconds of the coordinator over all sessions that ended cleanly
        self.coordinator_cpu_s: float = 0.0
        #: why the run is complete; empty before
        self.completed_because: str = ""
        #: metrics of the best model on the test data; empty if it was not measured
        self.test: dict[str, float] = {}
        #: why the last start ended before the search was complete; empty if it did not
        self.preempted_because: str = ""
        #: objectives from the first RunStarted if there are several, else empty
        self.objectives: tuple[Objective, ...] = ()
        #: outcome constraints from the first RunStarted
        self.constraints: tuple[OutcomeConstraint, ...] = ()
        #: non-dominated feasible trials; empty for a single objective
        self.pareto = ParetoSet()
        #: numeric parameter -> types of its values, from the first RunStarted
        self._types: dict[str, type | tuple[type, ...]] = {}
        self.replay(events)

    @property
    def complete(self) -> bool:
        """True if the last start ran to the end of the search."""
        return bool(self.completed_because)

    @property
    def ended_because(self) -> str:
        """Why the last start ended, if known; empty before its end."""
        return self.completed_because or self.preempted_because

    @property
    def is_training(self) -> bool:
        """True if the run is a single training, False if it is a search."""
        return self.identity.search_space is None

    @property
    def direction(self) -> Literal["min", "max"]:
        """Direction, `min` or `max`, of the figure of merit."""
        return "max" if self.identity.direction == "max" else "min"

    @property
    def sign(self) -> float:
        """Factor that turns a figure of merit of the run into one to be minimised."""
        return _SIGNS[self.direction]

    @property
    def is_shared(self) -> bool:
        """True if the last start is a term of jobs that share the run."""
        return bool(self.sessions and self.sessions[-1].term)

    @property
    def jobs_here(self) -> list[JoinedJob]:
        """Jobs that have joined and not left; none unless several jobs share the run."""
        return [job for job in self.jobs.values() if job.is_here]

    def job_of(self, assignment: Assignment) -> JoinedJob | None:
        """Return the job whose team got an assignment; None if no jobs shared the run then."""
        job = with_team(self.jobs, assignment.team)
        return job if job is not None and job.had(assignment.number, assignment.team) else None

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the last start, or of the jobs that are here."""
        if self.sessions and not self.is_shared:
            return self.sessions[-1].n_blocks
        return sum(len(job.blocks) for job in self.jobs_here)

    @property
    def n_ranks(self) -> int:
        """Number of ranks of the last start, or of the jobs that are here."""
        if self.sessions and not self.is_shared:
            return self.sessions[-1].n_ranks
        return sum(job.n_ranks for job in self.jobs_here)

    @property
    def result(self) -> Trial | None:
        """The best trial; for a training the last one, which may be interrupted."""
        return self.trials[-1] if self.trials and self.is_training else self.best()

    @property
    def ended(self) -> list[Trial]:
        """Ended trials, in the order of their ends."""
        return sorted((t for t in self.trials if t.ended_at_s is not None), key=lambda trial: trial.ended_at_s or 0.0)

    @property
    def n_ended(self) -> int:
        """Number of ended trials."""
        return sum(n for state, n in self._n_in_state.items() if state.ended)

    @property
    def n_measured(self) -> int:
        """Number of ended and paused trials, which account for most of the time."""
        return self.n_ended + self._n_in_state[TrialState.PAUSED]

    def n_by_state(self) -> dict[str, int]:
        """Return the number of trials in every state, zeros included."""
        return {state.value: n for state, n in self._n_in_state.items()}

    def best(self, direction: str | None = None) -> Trial | None:
        """Return the feasible trial with the lowest (`min`) or highest (`max`) figure of merit; None without one.

        By default in the direction of the run. Ties are broken by the other objectives, so that the trial is in the
        Pareto set, then by age. For a training it is the last complete trial, which continued the ones before.
        """
        if self.is_training:
            return next((trial for trial in reversed(self.trials) if trial.state is TrialState.COMPLETE), None)
        return self._best.get(direction or self.direction)

    def named(self, number: int, time_s: float) -> ev.BestExpected | None:
        """Return the event that trial `number` (-1: none) is the best expected one; None if already recorded."""
        known = -1 if self.best_expected is None else self.best_expected.number
        return None if number == known else ev.BestExpected(time_s=time_s, trial=number)

    def replay(self, events: Iterable[ev.Event]) -> None:
        """Apply the events of a journal; JournalError at one that contradicts those before it, which stay applied."""
        try:
            for event in events:
                self.apply(event)
        except ProtocolError as error:
            raise JournalError(
                f"The events of a journal must be consistent. Received: {error} `nnlo-opt repair RUN` keeps those "
                "that are."
            ) from error

    def apply(self, event: ev.Event) -> None:
        """Apply one event.

        Raises:
            ProtocolError: the event contradicts earlier ones; the ledger is unchanged.
        """
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise ProtocolError(f"The ledger has no rule for {type(event).__name__}.")
        handler(self, event)
        if self.sessions:
            session = self.sessions[-1]
            session.last_at_s = max(session.last_at_s, event.time_s)
            if isinstance(event, _MEASURED):
                session.measured_at_s = event.time_s
            session.n_lasting += ev.lasts(event)

    # ------------------------------------------------------------ one method per event

    def _run_started(self, event: ev.RunStarted) -> None:
        identity = RunIdentity.of(event.identity)
        if not self.sessions:
            self.identity = identity
            self.adopted = event.adopted
            self.first_start_unix_s = event.unix_s - event.time_s
            self._types = {p.name: _TYPES[p.kind] for p in identity.parameters if p.kind in _TYPES}
            several = identity.objectives
            # A single objective is the figure of merit; its name is only for display.
            self.objectives = tuple(map(Objective.parse, several)) if len(several) > 1 else ()
            self.constraints = tuple(map(OutcomeConstraint.parse, identity.constraints))
        self.identity = self.identity.as_of(identity)
        self.settings = StartSettings.of(event.settings)
        self.cut_bytes += event.cut_bytes
        self.completed_because = self.preempted_because = ""
        self.test = {}
        self.sessions.append(Session(event.n_ranks, event.n_blocks, event.time_s, event.time_s, self.n_measured))

    def _term_began(self, event: ev.TermBegan) -> None:
        self.term, self.leader = event.term, event.job
        if self.sessions:
            self.sessions[-1].term = event.term

    def _job_joined(self, event: ev.JobJoined) -> None:
        if event.job in self.jobs:
            raise ProtocolError(f"Job {event.job} has joined twice.")
        last = next(reversed(self.jobs.values()), None)
        self.jobs[event.job] = JoinedJob.after(last, event, len(self.assignments))

    def _job_left(self, event: ev.JobLeft) -> None:
        if event.job not in self.jobs or not self.jobs[event.job].is_here:
            raise ProtocolError(f"Job {event.job} left, and was not here.")
        self.jobs[event.job].leave(event)

    def _run_completed(self, event: ev.RunCompleted) -> None:
        self.completed_because, self.test = event.reason, event.test
        self.coordinator_cpu_s += event.coordinator_cpu_s

    def _run_preempted(self, event: ev.RunPreempted) -> None:
        self.preempted_because = event.reason
        self.coordinator_cpu_s += event.coordinator_cpu_s
        for trial in [*self.under_way.values()]:
            if not trial.running:  # some folds finished at the last moment
                self._enter(trial, TrialState.PREEMPTED)

    def _trial_suggested(self, event: ev.TrialSuggested) -> None:
        if event.trial != len(self.trials):
            raise ProtocolError(f"Trial {event.trial} was suggested where {len(self.trials)} is next.")
        for name, value in event.point.items():
            kind = self._types.get(name)
            if kind and (not isinstance(value, kind) or (isinstance(value, int) and abs(value) > MAX_INTEGER)):
                raise ProtocolError(f"Trial {event.trial} has {value!r} as {name}.")
        self.trials.append(Trial(number=event.trial, point=event.point, origin=event.origin))
        self._n_in_state[TrialState.PENDING] += 1
        self.suggest_s.append(event.suggest_s)

    def _fold_assigned(self, event: ev.FoldAssigned) -> None:
        trial = self._trial(event.trial)
        if event.assignment != len(self.assignments):
            raise ProtocolError(f"Assignment {event.assignment} was made where {len(self.assignments)} is next.")
        if trial.state.ended or event.fold in trial.folds:
            raise ProtocolError(f"Fold {event.fold} of trial {event.trial} was assigned after its end.")
        if any(running.fold == event.fold for running in trial.running):
            raise ProtocolError(f"Fold {event.fold} of trial {event.trial} was assigned while it runs.")
        assignment = Assignment(
            number=event.assignment,
            trial=event.trial,
            fold=event.fold,
            attempt=event.attempt,
            block=event.block,
            team=event.team,
            n_ranks=event.n_ranks,
            assigned_at_s=event.time_s,
            term=self.term,
        )
        self.assignments.append(assignment)
        trial.assignments.append(assignment)
        self._enter(trial, TrialState.RUNNING)

    def _fold_began(self, event: ev.FoldBegan) -> None:
        assignment = self._running(event.assignment)
        assignment.started_at_s = event.time_s
        assignment.epoch = assignment.first_epoch = event.epoch
        assignment.waited_s = event.waited_s

    def _epoch_ended(self, event: ev.EpochEnded) -> None:
        assignment = self._running(event.assignment)
        assignment.epoch, assignment.metrics = event.epoch, event.metrics
        if event.figure_of_merit is not None:
            # An epoch repeated after a crash may have another figure: keep the one that decisions were based on.
            trial = self.trials[assignment.trial]
            trial.first_epochs.setdefault(assignment.fold, 0 if event.counts_from_0 else 1)
            reports = trial.reports
            if event.epoch > next(reversed(reports.get(assignment.fold, {})), 0):
                reports.setdefault(assignment.fold, {})[event.epoch] = event.figure_of_merit

    def _assignment_finished(self, event: ev.AssignmentFinished) -> None:
        assignment = self._end(event.assignment, AssignmentEnd.FINISHED, event.time_s)
        self.trials[assignment.trial].folds[assignment.fold] = FoldResult.of(event)

    def _assignment_failed(self, event: ev.AssignmentFailed) -> None:
        self._end(event.assignment, AssignmentEnd.FAILED, event.time_s).reason = event.reason

    def _assignment_stopped(self, event: ev.AssignmentStopped) -> None:
        self._end(event.assignment, AssignmentEnd.STOPPED, event.time_s)

    def _assignment_paused(self, event: ev.AssignmentPaused) -> None:
        self._end(event.assignment, AssignmentEnd.PAUSED, event.time_s)

    def _ranks_lost(self, event: ev.RanksLost) -> None:
        if event.assignment >= 0:
            assignment = self._running(event.assignment)
            if event.counts:
                assignment.losses.append(Loss(assignment.epoch, ev.died_text(event.ranks)))
        session = self.sessions[-1]
        session.lost_ranks.setdefault(event.block, []).extend(event.ranks)
        session.ranks_left[event.block] = event.n_alive, event.n_ranks

    def _assignment_lost(self, event: ev.AssignmentLost) -> None:
        assignment = self._end(event.assignment, AssignmentEnd.LOST, event.time_s)
        assignment.reason = event.reason
        if event.counts:
            assignment.losses.append(Loss(assignment.epoch, event.reason, event.of_script))
        self._interrupt(assignment, TrialState.PENDING)

    def _assignment_preempted(self, event: ev.AssignmentPreempted) -> None:
        self._interrupt(self._end(event.assignment, AssignmentEnd.PREEMPTED, event.time_s), TrialState.PREEMPTED)

    def _interrupt(self, assignment: Assignment, state: TrialState) -> None:
        trial = self.trials[assignment.trial]
        if not trial.state.ended and not trial.running:
            self._enter(trial, state)

    def _trial_completed(self, event: ev.TrialCompleted) -> None:
        if self.objectives and event.objectives.keys() != {objective.name for objective in self.objectives}:
            raise ProtocolError(
                f"Trial {event.trial} has {list(event.objectives)} for {len(self.objectives)} objectives."
            )
        trial = self._end_trial(event.trial, TrialState.COMPLETE, event.time_s)
        trial.figure_of_merit = event.figure_of_merit
        trial.figure_of_merit_std = event.figure_of_merit_std
        trial.objectives = event.objectives
        trial.objectives_std = event.objectives_std
        trial.outcomes = {bound.name: _mean_of(trial, bound.name) for bound in self.constraints}
        trial.feasible = all(bound.allows(trial.outcomes[bound.name]) for bound in self.constraints)
        if not trial.feasible:
            return
        for direction, sign in _SIGNS.items():
            best = self._best.get(direction)
            if best is None or self._rank(trial, sign) < self._rank(best, sign):
                self._best[direction] = trial
        if self.objectives:
            self.pareto.add(trial.number, losses(self.objectives, trial.objectives))

    def _rank(self, trial: Trial, sign: float) -> tuple[float, Any, int]:
        """Return the sort key of complete trials, best first, then by age."""
        assert trial.figure_of_merit is not None
        return sign * trial.figure_of_merit, losses(self.objectives, trial.objectives), trial.number

    def _best_expected(self, event: ev.BestExpected) -> None:
        trial = None if event.trial < 0 else self._trial(event.trial)
        if trial is not None and not trial.feasible:
            raise ProtocolError(f"Trial {event.trial} is expected to be the best, but is {trial.standing}.")
        self.best_expected = trial

    def _trial_failed(self, event: ev.TrialFailed) -> None:
        self._end_trial(event.trial, TrialState.FAILED, event.time_s).reason = event.reason

    def _trial_paused(self, event: ev.TrialPaused) -> None:
        trial = self._open(event.trial)
        if trial.running:
            raise ProtocolError(f"Trial {event.trial} was paused while it runs.")
        self._enter(trial, TrialState.PAUSED)
        trial.figure_so_far = event.figure_of_merit

    def _trial_promoted(self, event: ev.TrialPromoted) -> None:
        trial = self._open(event.trial)
        if event.n_rungs <= trial.n_rungs:
            raise ProtocolError(
                f"Trial {event.trial} has passed {trial.n_rungs} rungs, and is to pass {event.n_rungs}."
            )
        trial.n_rungs = event.n_rungs
        if trial.state is TrialState.PAUSED:
            self._enter(trial, TrialState.PENDING)

    def _trial_pruned(self, event: ev.TrialPruned) -> None:
        trial = self._end_trial(event.trial, TrialState.PRUNED, event.time_s)
        trial.figure_so_far = event.figure_of_merit
        trial.reason = event.reason

    # ------------------------------------------------------------ helpers

    def _trial(self, number: int) -> Trial:
        if not 0 <= number < len(self.trials):
            raise ProtocolError(f"Trial {number} is not known.")
        return self.trials[number]

    def _running(self, number: int) -> Assignment:
        if not 0 <= number < len(self.assignments):
            raise ProtocolError(f"Assignment {number} is not known.")
        assignment = self.assignments[number]
        if assignment.end is not None:
            raise ProtocolError(f"Assignment {number} has already {assignment.end}.")
        return assignment

    def _end(self, number: int, end: AssignmentEnd, time_s: float) -> Assignment:
        assignment = self._running(number)
        assignment.end = end
        assignment.ended_at_s = time_s
        return assignment

    def _end_trial(self, number: int, state: TrialState, time_s: float) -> Trial:
        trial = self._open(number)
        self._enter(trial, state)
        trial.ended_at_s = time_s
        return trial

    def _open(self, number: int) -> Trial:
        trial = self._trial(number)
        if trial.state.ended:
            raise ProtocolError(f"Trial {number} has already ended: {trial.state}.")
        return trial

    def _enter(self, trial: Trial, state: TrialState) -> None:
        """Change the state of a trial; the only place that does."""
        self._n_in_state[trial.state] -= 1
        self._n_in_state[state] += 1
        trial.state = state
        if state is TrialState.RUNNING:
            self.under_way[trial.number] = trial
        else:
            self.under_way.pop(trial.number, None)


#: events that end or pause a trial
_MEASURED = (ev.TrialCompleted, ev.TrialFailed, ev.TrialPaused, ev.TrialPruned)
#: kind of a parameter -> types of its values
_TYPES: dict[str, type | tuple[type, ...]] = {"real": (int, float), "integer": int}
#: direction -> factor that turns a figure of merit into one to be minimised
_SIGNS = {"min": 1.0, "max": -1.0}


#: event -> the method of its name, such as `_trial_failed` for TrialFailed
_HANDLERS: dict[type[ev.Event], Callable[[Ledger, Any], None]] = {
    kind: getattr(Ledger, re.sub("(?=[A-Z])", "_", kind.__name__).lower()) for kind in ev.Event.__subclasses__()
}


def _mean_of(trial: Trial, metric: str) -> float:
    """Return the mean of a metric over the finished folds; NaN if one lacks it."""
    return mean_and_std([fold.metrics.get(metric, math.nan) for fold in trial.folds.values()] or [math.nan])[0]


def mean_and_std(figures: list[float]) -> tuple[float, float]:
    """Return the mean with the population standard deviation."""
    mean = math.fsum(figures) / len(figures)
    return mean, math.sqrt(math.fsum((figure - mean) ** 2 for figure in figures) / len(figures))
