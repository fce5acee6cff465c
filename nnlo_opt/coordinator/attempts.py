"""`--max-attempts`: which losses of ranks count against a trial, and when it is given up. Pure.

The loss of ranks that train a fold counts when it is known that one of them died: it may have been the trial that
killed it. Whether the assignment is lost with them, or goes on with the others, makes no difference: else a trial could
kill all ranks of a block, one after another. Where nobody knows what ended a job that nobody has ended, the attempts
under way count if the whole start has brought nothing that lasts: then there is no other way on. All other losses
(somebody ends the job, a rank of another team dies, a node crashes in a search that makes progress) count against no
trial. After an epoch that no attempt has come to before, the count begins anew: a trial that takes many starts is not
given up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnlo_opt.trials.trial import Assignment, Loss, Trial


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


def losses_in_vain(trial: Trial, fold: int) -> list[Loss]:
    """The losses since the fold got further than ever before."""
    losses: list[Loss] = []
    furthest = 0
    for assignment in trial.assignments:
        if assignment.fold != fold:
            continue
        for loss in assignment.losses:
            if loss.epoch > furthest:
                losses, furthest = [], loss.epoch
            losses.append(loss)
        if assignment.epoch > furthest:
            losses, furthest = [], assignment.epoch
    return losses


def hopeless_fold(trial: Trial, max_attempts: int) -> tuple[int, str] | None:
    """A fold that has lost ranks often enough, and why the trial fails by it; None where there is none."""
    for fold in sorted({a.fold for a in trial.assignments} - trial.folds.keys()):
        losses = losses_in_vain(trial, fold)
        if len(losses) >= max_attempts:
            times = "once" if len(losses) == 1 else f"{len(losses)} times in a row"
            return fold, f"ranks that trained it were lost {times} (`--max-attempts`), at last: {losses[-1].reason}"
    return None
