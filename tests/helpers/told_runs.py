"""A run in short, for tests of what is told of it."""

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import assigned, completed, finished


class Story:
    """Applies events to a ledger; trials and assignments are numbered as they come."""

    def __init__(self, n_blocks=1, **identity):
        self.ledger = Ledger()
        self.start(0.0, n_blocks, **identity)

    def apply(self, *events):
        for event in events:
            self.ledger.apply(event)

    def start(self, time_s, n_blocks=1, **identity):
        unix_s = 1000.0 + time_s
        self.apply(ev.RunStarted(time_s=time_s, unix_s=unix_s, n_ranks=5, n_blocks=n_blocks, identity=identity))

    def suggest(self, time_s, suggest_s=0.0, **point):
        trial = len(self.ledger.trials)
        self.apply(ev.TrialSuggested(time_s=time_s, trial=trial, point=point, suggest_s=suggest_s))
        return trial

    def assign(self, time_s, trial, *, block=1, fold=0, team=0):
        assignment, attempt = len(self.ledger.assignments), self.ledger.trials[trial].n_attempts(fold) + 1
        self.apply(assigned(assignment, trial, time_s, block=block, fold=fold, team=team, attempt=attempt))
        return assignment

    def begin(self, time_s, assignment, waited_s=None):
        self.apply(ev.FoldBegan(time_s=time_s, assignment=assignment, waited_s=waited_s))

    def finish(self, time_s, assignment, figure=0.5, **more):
        self.apply(finished(assignment, figure, time_s, **more))

    def complete(self, time_s, trial, figure=0.5, std=0.0, **objectives):
        self.apply(completed(trial, figure, time_s, std, **objectives))

    def lose(self, time_s, assignment):
        self.apply(ev.AssignmentLost(time_s=time_s, assignment=assignment))

    def trial(self, begin_s, end_s, figure=0.5, block=1):
        """A trial that is assigned as it is suggested, and whose only fold finishes."""
        trial = self.suggest(begin_s, n=len(self.ledger.trials))
        self.finish(end_s, self.assign(begin_s, trial, block=block), figure)
        return trial
