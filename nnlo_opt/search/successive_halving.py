"""ASHA and hyperband: most epochs for the trials that are best after few."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nnlo_opt.search.curves import Reports
from nnlo_opt.search.pruning import Decision, PruningPlan, Verdict


@dataclass(frozen=True)
class Brackets:
    """Ladders of rungs, and which trial climbs which.

    Bracket b has its rungs at `epochs[b]`, growing; trial t climbs bracket `cycle[t mod len(cycle)]`.
    """

    epochs: tuple[tuple[int, ...], ...]
    cycle: tuple[int, ...]

    @classmethod
    def one(cls, plan: PruningPlan) -> "Brackets":
        """That of asha: rungs at min_epochs * eta^k, below `max_epochs` where that is known."""
        n_rungs = plan.n_rungs if plan.max_epochs is not None else 40
        return cls(epochs=(tuple(plan.min_epochs * plan.eta**k for k in range(n_rungs)),), cycle=(0,))

    @classmethod
    def of_hyperband(cls, plan: PruningPlan) -> "Brackets":
        """Brackets s = s_max … 0 with s rungs each and n_s = ceil((s_max + 1) / (s + 1) * eta^s) trials in a cycle.

        Li et al., 2018 (arXiv:1603.06560, algorithm 1). So that a short search has its share of each, the trials of the
        brackets are interleaved: the next one goes where most are missing.
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
        """The bracket of a trial."""
        return self.cycle[trial % len(self.cycle)]

    @cached_property
    def rungs(self) -> list[tuple[int, int]]:
        """(bracket, number of the rung) of all rungs, those of most epochs first."""
        every = [(b, k) for b, epochs in enumerate(self.epochs) for k in range(len(epochs))]
        return sorted(every, key=lambda rung: (-self.epochs[rung[0]][rung[1]], rung))


class SuccessiveHalving:
    """Asynchronous successive halving, ASHA (Li et al., 2020, arXiv:1810.05934, algorithm 2), in one or more brackets.

    The value of a trial at a rung is the mean over its folds after so many epochs. Of the n trials that have come to a
    rung the best floor(n / eta) pass it; the others are paused there, and promoted when more have come and they are
    among the best. A trial that has just come and is among them goes on at once, without making room.

    Where trials cannot be paused, this is the stopping variant: a trial is pruned when one of its folds comes to a rung
    and is not among the best max(1, floor(n / eta)) of the n that have, on the same fold.
    """

    def __init__(self, brackets: Brackets, eta: int, *, pauses: bool = True) -> None:
        self._brackets = brackets
        self._eta = eta
        self.pauses = pauses

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        bracket = self._brackets.of(trial)
        if not self.pauses:
            return self._stop(trial, fold, epoch, reports)
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
                    return Decision(Verdict.PRUNE, reason=_reason(trial, rung_epoch, standing, reports))
        return Decision(Verdict.GO_ON)

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        return self._brackets.epochs[self._brackets.of(trial)][reports.n_rungs(trial) :] if self.pauses else ()

    def promotion(self, reports: Reports) -> int | None:
        return next((trial for trial, _, passes in self._waiting(reports) if passes), None)

    def last_resort(self, reports: Reports) -> int | None:
        return next((trial for trial, _, _ in self._waiting(reports)), None)

    def why_left(self, trial: int, reports: Reports) -> str:
        bracket = self._brackets.of(trial)
        epoch = self._brackets.epochs[bracket][reports.n_rungs(trial)]
        return _reason(trial, epoch, self._standing(bracket, epoch, reports), reports)

    def _standing(self, bracket: int, epoch: int, reports: Reports, fold: int | None = None) -> list[tuple[float, int]]:
        """(value, trial) of all trials of the bracket that have come to `epoch`, the best first, the older of equals.

        Values are means over the folds, or those of `fold`. A training that is over before counts with its figure.
        """
        trials = (t for t in reports.trials if self._brackets.of(t) == bracket)
        if fold is None:
            known = ((reports.value_at(t, epoch), t) for t in trials)
        else:
            known = ((reports.curve(t, fold).value_at(epoch), t) for t in trials)
        return sorted((value, t) for value, t in known if value is not None)

    def _passing(self, standing: list[tuple[float, int]]) -> set[int]:
        n = len(standing) // self._eta
        return {trial for _, trial in standing[: n if self.pauses else max(1, n)]}

    def _waiting(self, reports: Reports) -> Iterator[tuple[int, int, bool]]:
        """(trial, epoch of its rung, whether it may pass): the highest rung first, then the best."""
        if not self.pauses:
            return
        for bracket, rung in self._brackets.rungs:
            epoch = self._brackets.epochs[bracket][rung]
            standing = self._standing(bracket, epoch, reports)
            passing = self._passing(standing)
            for _, trial in standing:
                if reports.n_rungs(trial) == rung and not reports.has_ended(trial):
                    yield trial, epoch, trial in passing


def _reason(trial: int, epoch: int, standing: list[tuple[float, int]], reports: Reports) -> str:
    place = [n for _, n in standing].index(trial)
    value = reports.shown(standing[place][0])
    return f"with {value:.6g} after epoch {epoch} it is number {place + 1} of {len(standing)} that came so far"
