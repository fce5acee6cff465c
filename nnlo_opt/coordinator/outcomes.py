"""What becomes of trials: they complete, fail, are pruned, or wait at a rung. Written down, told, and learnt from."""

from nnlo_opt.comm import messages as msg
from nnlo_opt.coordinator.attempts import hopeless_fold
from nnlo_opt.coordinator.ending import Ending
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.records import completion
from nnlo_opt.coordinator.step import Step
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.trial import Assignment, Trial


class Outcomes:
    """Ends trials. What still runs of one that has ended is told to stop, as its result is not needed."""

    def __init__(self, plan: SearchPlan, step: Step, ending: Ending) -> None:
        self._plan = plan
        self._step = step
        self._ending = ending

    def complete(self, trial: Trial) -> None:
        """All folds of the trial have finished."""
        self.write_complete(trial)
        self._step.tell(trial)
        self._ending.check_target(trial)
        self._ending.take(trial)

    def write_complete(self, trial: Trial) -> None:
        """The same of a trial that search and budgets learn of later."""
        self._step.record(completion(trial, self._plan, self._step.now_s))

    def fail(self, trial: Trial, fold: int, reason: str) -> None:
        """A fold of the trial has failed, and with it the trial."""
        which = f"fold {fold}: " if self._plan.n_fold > 1 else ""
        self._end(trial, ev.TrialFailed(time_s=self._step.now_s, trial=trial.number, reason=which + reason))

    def prune(self, trial: Trial, reason: str) -> None:
        """Give the trial up."""
        now_s, figure = self._step.now_s, self._step.policy.figure_so_far(trial.number)
        assert figure is not None, "a trial was judged before it had reported"
        self._end(trial, ev.TrialPruned(time_s=now_s, trial=trial.number, figure_of_merit=figure, reason=reason))

    def _end(self, trial: Trial, event: ev.Event) -> None:
        self._step.record(event)
        self._step.tell(trial)
        self._ending.take(trial)
        for assignment in trial.running:
            self._step.send(assignment.team, msg.StopFold(assignment=assignment.number))

    def pause(self, trial: Trial) -> None:
        """Leave the trial at its rung."""
        figure = self._step.policy.figure_so_far(trial.number)
        assert figure is not None, "a trial waits at a rung before it had reported"
        self._step.record(ev.TrialPaused(time_s=self._step.now_s, trial=trial.number, figure_of_merit=figure))

    def lose(self, assignment: Assignment, reason: str, *, counts: bool) -> None:
        """An assignment has ended with ranks that ran it; `counts`: against `--max-attempts`."""
        now_s = self._step.now_s
        self._step.record(ev.AssignmentLost(time_s=now_s, assignment=assignment.number, reason=reason, counts=counts))

    def is_given_up(self, trial: Trial) -> bool:
        """Fail a trial that was tried often enough."""
        hopeless = None if trial.state.ended else hopeless_fold(trial, self._plan.max_attempts)
        if hopeless is not None:
            self.fail(trial, *hopeless)
        return hopeless is not None
