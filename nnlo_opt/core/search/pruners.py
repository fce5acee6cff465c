"""Built-in pruners: median stopping rule, ASHA, hyperband.

ASHA and hyperband give most epochs to the trials that were best after a few.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nnlo_opt.core.search.curves import Reports
from nnlo_opt.core.search.pruning import FREEZE_THAW, Decision, Pruner, PruningPlan, Verdict

_GO_ON = Decision(Verdict.GO_ON)
#: freeze-thaw: ratio of the epochs of neighbouring rungs; one decision in so many follows successive halving
_STEP, _TURNS = 1.618, 3


class MedianStopping(Pruner):
    """Median stopping rule of Google Vizier (Golovin et al., 2017, section 3.2.1).

    A trial is pruned after an epoch if its best value so far is worse than the median of the other trials' running
    averages up to that epoch. Only trials that have reached the epoch on the same fold count.

    Args:
        min_epochs: number of epochs that no trial is pruned before.
        min_trials: number of other trials needed for a comparison.
    """

    def __init__(self, min_epochs: int = 1, min_trials: int = 4) -> None:
        self._min_epochs = min_epochs
        self._min_trials = min_trials

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        best = reports.curve(trial, fold).best_until(epoch)
        if best is None or epoch < self._min_epochs:
            return _GO_ON
        others = [curve.mean_until(epoch) for n, curve in reports.curves(fold) if n != trial and curve.reached(epoch)]
        means = [mean for mean in others if mean is not None]
        if len(means) < self._min_trials or best <= (median := statistics.median(means)):
            return _GO_ON
        reason = (
            f"best {reports.shown(best):.6g} up to epoch {epoch}; the median of {len(means)} other trials is "
            f"{reports.shown(median):.6g}"
        )
        return Decision(Verdict.PRUNE, reason=reason)


@dataclass(frozen=True)
class Brackets:
    """Brackets (ladders of rungs), and the assignment of trials to them.

    Bracket b has its rungs at `epochs[b]`, ascending. Trial t belongs to bracket `cycle[t mod len(cycle)]`.
    """

    epochs: tuple[tuple[int, ...], ...]
    cycle: tuple[int, ...]

    @classmethod
    def one(cls, plan: PruningPlan) -> "Brackets":
        """Return the single bracket of asha: rungs at min_epochs * eta^k, below `max_epochs` if it is known."""
        n_rungs = plan.n_rungs if plan.max_epochs is not None else 40
        return cls(epochs=(tuple(plan.min_epochs * plan.eta**k for k in range(n_rungs)),), cycle=(0,))

    @classmethod
    def of_freeze_thaw(cls, plan: PruningPlan) -> "Brackets":
        """Return the rungs of freeze-thaw, from `min_epochs` on, by default an eighteenth of a training."""
        assert plan.max_epochs is not None
        first = plan.min_epochs or -(-plan.max_epochs // 18)
        epochs = sorted({round(first * _STEP**k) for k in range(40)})
        return cls(epochs=(tuple(epoch for epoch in epochs if epoch < plan.max_epochs),), cycle=(0,))

    @classmethod
    def of_hyperband(cls, plan: PruningPlan) -> "Brackets":
        """Return the brackets of hyperband.

        Bracket s = s_max … 0 has s rungs and n_s = ceil((s_max + 1) / (s + 1) * eta^s) trials in a cycle. The sizes
        follow Li et al., 2018 (arXiv:1603.06560, algorithm 1). The brackets are interleaved, so that a short search
        samples all of them: the next trial goes to the bracket with the largest deficit.
        """
        s_max = plan.n_rungs
        rungs = tuple(plan.min_epochs * plan.eta**k for k in range(s_max))
        sizes = [-(-(s_max + 1) * plan.eta**s // (s + 1)) for s in range(s_max, -1, -1)]
        total, given, cycle = sum(sizes), [0] * len(sizes), list[int]()
        for n in range(1, total + 1):
            missing = [size * n - total * count for size, count in zip(sizes, given, strict=True)]
            cycle.append(missing.index(max(missing)))
            given[cycle[-1]] += 1
        return cls(epochs=tuple(rungs[b:] for b in range(s_max + 1)), cycle=tuple(cycle))

    def of(self, trial: int) -> int:
        """Return the index of a trial's bracket."""
        return self.cycle[trial % len(self.cycle)]

    @cached_property
    def rungs(self) -> list[tuple[int, int]]:
        """All rungs as (bracket, number of the rung), from most to fewest epochs."""
        every = [(b, k) for b, epochs in enumerate(self.epochs) for k in range(len(epochs))]
        return sorted(every, key=lambda rung: (-self.epochs[rung[0]][rung[1]], rung))


class SuccessiveHalving(Pruner):
    """Asynchronous successive halving, ASHA (Li et al., 2020, arXiv:1810.05934, algorithm 2), in one or more brackets.

    The value of a trial at a rung is the mean over its folds at the epoch of the rung. Of n trials at a rung, the best
    floor(n / eta) pass it. The others are paused, and promoted if they are among the best once more trials have
    arrived. A trial that is among the best on arrival continues without a pause.

    If trials cannot be paused, this is the stopping variant: a trial is pruned when one of its folds reaches a rung
    without being among the best max(1, floor(n / eta)) of the n trials at that rung on the same fold.

    Args:
        brackets: rungs, and the bracket of each trial.
        eta: one in `eta` trials passes a rung.
        pauses: True if trials can be paused and resumed.
    """

    def __init__(self, brackets: Brackets, eta: float, *, pauses: bool = True) -> None:
        self._brackets = brackets
        self._eta = eta
        self.pauses = pauses

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        if not self.pauses:
            return self._stop(trial, fold, epoch, reports)
        bracket = self._brackets.of(trial)
        n_rungs = reports.n_rungs(trial)
        for rung_epoch in self._brackets.epochs[bracket][n_rungs:]:
            if epoch < rung_epoch:
                break
            if trial not in self._passing(self._standing(bracket, rung_epoch, reports)):
                return Decision(Verdict.PAUSE, n_rungs)
            n_rungs += 1
        return Decision(Verdict.GO_ON, n_rungs)

    def _stop(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        bracket = self._brackets.of(trial)
        before = reports.curve(trial, fold).epoch_before(epoch)
        for rung_epoch in self._brackets.epochs[bracket]:
            if before < rung_epoch <= epoch:
                standing = self._standing(bracket, rung_epoch, reports, fold)
                if trial not in self._passing(standing):
                    return Decision(Verdict.PRUNE, reason=_place(trial, rung_epoch, standing))
        return _GO_ON

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        return self.rungs(trial)[reports.n_rungs(trial) :] if self.pauses else ()

    def rungs(self, trial: int) -> tuple[int, ...]:
        return self._brackets.epochs[self._brackets.of(trial)]

    def promotion(self, reports: Reports) -> int | None:
        return next((trial for trial, passes in self._waiting(reports) if passes), None)

    def last_resort(self, reports: Reports) -> int | None:
        return next((trial for trial, _ in self._waiting(reports)), None)

    def place(self, trial: int, epoch: int, reports: Reports) -> str:
        return _place(trial, epoch, self._standing(self._brackets.of(trial), epoch, reports))

    def _standing(self, bracket: int, epoch: int, reports: Reports, fold: int | None = None) -> list[tuple[float, int]]:
        """Return (value, trial) of the bracket's trials that have reached `epoch`, from best to worst, then by age.

        Values are means over the folds, or values of `fold` if given. A training that ended before counts with its
        final figure.
        """
        if fold is None:
            reached = reports.standing(epoch)
        else:
            known = ((curve.value_at(epoch), trial) for trial, curve in reports.curves(fold))
            reached = sorted((value, trial) for value, trial in known if value is not None)
        return [place for place in reached if self._brackets.of(place[1]) == bracket]

    def _passing(self, standing: list[tuple[float, int]]) -> set[int]:
        n = int(len(standing) // self._eta)
        return {trial for _, trial in standing[: n if self.pauses else max(1, n)]}

    def _waiting(self, reports: Reports) -> Iterator[tuple[int, bool]]:
        """Yield (trial, True if it may pass its rung), from the highest rung, and from best to worst."""
        if not self.pauses:
            return
        for bracket, rung in self._brackets.rungs:
            standing = self._standing(bracket, self._brackets.epochs[bracket][rung], reports)
            passing = self._passing(standing)
            for _, trial in standing:
                if reports.n_rungs(trial) == rung and not reports.has_ended(trial):
                    yield trial, trial in passing


class FreezeThaw(SuccessiveHalving):
    """Freeze-thaw rungs: the search chooses the trial to resume (`core.search.bayesian`), ASHA every third one.

    The rungs are close, each with 1.6 times the epochs of the rung below, so that each decision commits few epochs.
    """

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        return super().decide(trial, fold, epoch, reports) if self.pauses else _GO_ON

    def has_turn(self, reports: Reports) -> bool:
        return reports.n_decisions % _TURNS == 0


def _place(trial: int, epoch: int, standing: list[tuple[float, int]]) -> str:
    places = [f"place {i} of {len(standing)} " for i, (_, n) in enumerate(standing, 1) if n == trial]
    return f"{''.join(places)}at epoch {epoch}"


def make_pruner(plan: PruningPlan) -> Pruner:
    """Return the pruner that a plan describes."""
    if plan.name == "median":
        return MedianStopping(plan.min_epochs, plan.min_trials)
    if plan.name == FREEZE_THAW:
        return FreezeThaw(_brackets(plan), _STEP, pauses=plan.pauses)
    return SuccessiveHalving(_brackets(plan), plan.eta, pauses=plan.pauses)


def describe(plan: PruningPlan) -> str:
    """Describe the pruner of a plan in one sentence."""
    if plan.name == "median":
        return (
            f"Pruner median: from epoch {plan.min_epochs} on, a trial ends if it is worse than the median of "
            f"{plan.min_trials} or more other trials."
        )
    if plan.is_own:
        return f"Pruner {plan.name}: it decides which trials end early."
    brackets = _brackets(plan).epochs
    shown = [", ".join(map(str, rungs[:6])) + ", …" * (len(rungs) > 6) or "none" for rungs in brackets]
    of_all = "" if plan.max_epochs is None else f" of {plan.max_epochs}"
    others = (
        "are paused there" if plan.pauses else "end there, because an objective without `checkpoint` cannot be paused"
    )
    how = f"one trial in {plan.eta} passes a rung; the others {others}"
    if plan.name == FREEZE_THAW:
        how = "the search chooses which paused trials to resume"
        if not plan.pauses:
            how = "every trial is trained to its end, because an objective without `checkpoint` cannot be paused"
    return f"Pruner {plan.name}: rungs after epochs {' | '.join(shown)}{of_all}; {how}."


def _brackets(plan: PruningPlan) -> Brackets:
    made = {"hyperband": Brackets.of_hyperband, FREEZE_THAW: Brackets.of_freeze_thaw}
    return made.get(plan.name, Brackets.one)(plan)
