"""`--max-attempts`: which lost attempts count against a trial, and when it is given up. Pure.

An attempt at a fold that was lost counts when it is known that a rank of its team died: it may have been the trial
that killed it. Where nobody knows what ended a job that nobody has ended, the attempts under way count if the whole
start has brought nothing that lasts: then there is no other way on. All other losses (somebody ends the job, a rank of
another team dies, a node crashes in a search that makes progress) count against no trial. An attempt that gets further
than those before it, by an epoch, is the first again: a trial that takes many starts is not given up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnlo_opt.trials.trial import Assignment, AssignmentEnd, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEnd:
    """What is known of how the start before this one has ended."""

    #: team -> its rank that died first, in words, and how
    died: Mapping[int, str] = field(default_factory=dict)
    #: the job ended by itself, and nobody knows why
    unexplained: bool = False

    def loss_of(self, assignment: Assignment, *, fruitless: bool) -> tuple[str, bool]:
        """(why this assignment was lost, whether that counts); `fruitless`: that start brought nothing that lasts."""
        if how := self.died.get(assignment.team):
            return how, True
        if self.unexplained and fruitless:
            return "the job died, nobody knows of what, before anything was achieved", True
        return "the run was ended", False


#: somebody has ended it, as far as is known
WAS_ENDED = LastEnd()


def n_losses(trial: Trial, fold: int) -> int:
    """Attempts at the fold in a row that were lost, count, and got no further than those before."""
    n, furthest = 0, 0
    for assignment in trial.assignments:
        if assignment.fold != fold:
            continue
        if assignment.epoch > furthest:
            n, furthest = 0, assignment.epoch
        n += assignment.end is AssignmentEnd.LOST and assignment.counts
    return n


def hopeless_fold(trial: Trial, max_attempts: int) -> tuple[int, str] | None:
    """A fold that was tried often enough, and why the trial fails by it; None where there is none."""
    for fold in sorted({a.fold for a in trial.assignments} - trial.folds.keys()):
        n = n_losses(trial, fold)
        if n >= max_attempts:
            last = next(a for a in reversed(trial.assignments) if a.fold == fold and a.counts)
            times = "once" if n == 1 else f"{n} times"
            return fold, f"it was tried {times} (`--max-attempts`), and lost each time: {last.reason}"
    return None
