"""Bayesian optimization: expected improvement on a Gaussian process; the default algorithm."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnlo_opt.core.search.acquisition import Acquisition, Elsewhere
from nnlo_opt.core.search.base import History, Measured
from nnlo_opt.core.search.design import design_size, has_many_values, latin_hypercube
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.gaussian_process import (
    NOISY_LOG_NOISE,
    PLAIN,
    Assumptions,
    Hyperparameters,
    Observations,
    Posterior,
    fit_hyperparameters,
)
from nnlo_opt.core.search.margins import Bounded, Scale, breaks_a_bound, margins_of, nearest_first, rows_with
from nnlo_opt.core.search.maximisation import Maximisation
from nnlo_opt.core.search.random import SeededSearch, first_new
from nnlo_opt.core.search.segments import Segments
from nnlo_opt.core.search.targets import above_best, relative_noise, span, standardise, warp, without_penalties
from nnlo_opt.core.space.parameters import Categorical
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.trial import TrialState

#: most ended trials used to fit hyperparameters, and most used in a posterior; they bound the cost of a suggestion in
#: long searches
MAX_FITTED, MAX_SEEN = 128, 400
#: at most this many pending trials get fantasies; the latest ones
MAX_PENDING = 100
#: fantasies for each pending trial; even, because they come in pairs of opposite signs
_N_FANTASIES = 16
#: variance added to that of the labels -1 and 1; larger values soften the border between success and failure
_LABEL_NOISE = 0.1
#: number of best trials around which the acquisition is evaluated
_N_BEST = 4
#: complete trials needed to report the best expected one
_N_TOLD = 10
#: noise matters if it exceeds this fraction of the standard deviation of all values, and the log likelihood of the
#: values is higher by this than under the best smooth process without noise
_LEAST_NOISE, _EVIDENCE = 0.08, 2.0
#: a rough process without noise, one of the exponential kernel, may be better by this fraction of that difference
_ROUGH = 0.1
#: the best expected trial may be observed at most so many standard deviations of the noise above the best one
_RIVAL = 3.0
#: largest `span` of values left uncompressed if there are categories, conditions or noise
_WIDE = 8.0
#: every so many suggestions, one leaves a category of the best trial
_N_ELSEWHERE = 4
#: values are noisy if the noise variance relative to that of the compressed values is above this: fits found less than
#: 2e-4 in functions without noise, and more than 8e-3 with noise
_NOISY = 2.5e-3


class _Targets:
    """Measured values of a search, or of a segment from row `start` on, as targets of a process."""

    def __init__(self, history: History, measured: Sequence[Measured], start: int) -> None:
        self._history = history
        self.rows, self._shares, values = (np.array(column) for column in zip(*measured, strict=True))
        self._barred = np.array([history.states[row] is TrialState.FAILED for row in self.rows])
        #: values without penalties, and their standard errors
        self.regular = without_penalties(values, self.rows - start, ~self._barred)
        self.is_penalty = self.regular < values
        self._stds = np.where(self.is_penalty, np.nan, history.stds[self.rows])  # the penalty dominates them

    def distances(self, *, is_warped: bool) -> np.ndarray:
        """Return the distances above the best, compressed or in proportion, (n,) float64."""
        return warp(self.regular) if is_warped else above_best(self.regular)

    def observed(self, n_rows: int, encoding: Encoding, *, is_warped: bool) -> Observations:
        """Return a representative subset of the values, a function of values and arguments only."""
        targets = self.distances(is_warped=is_warped)
        noise = relative_noise(self.regular, self._stds, is_warped=is_warped)
        some = representative(np.where(self._barred, np.inf, targets), n_rows)
        columns = encoding.columns_of(self._history, self.rows[some])
        if encoding.has_shares:
            columns[:, -1] = self._shares[some]
        infeasible = tuple(np.flatnonzero(self._barred[some]).tolist())
        return Observations(columns, encoding.groups, standardise(targets[some]), noise[some], infeasible)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Process fitted to some of the values, compressed or raw."""

    is_warped: bool
    assumed: Assumptions
    #: values it is fitted to
    observed: Observations
    hyperparameters: Hyperparameters


class BayesianSearch(SeededSearch):
    """Expected improvement on a Gaussian process (Jones, Schonlau and Welch, 1998, J. Global Optim. 13, 455).

    The first `n_initial_points` suggestions are a Latin hypercube, independent of the values. A stalled search restarts
    (`segments`). Pending trials have fantasies, over which the expected improvement is averaged (Snoek, Larochelle and
    Adams, 2012, NeurIPS, section 3.2). A second process models failure, and the expected improvement is multiplied by
    its chance of success (Gardner et al., 2014, ICML). A failed trial enters the first process with the expected value
    at its point, an infeasible one with its own value, which never is the incumbent (Gelbart, Snoek and Adams, 2014,
    UAI). Both are raised towards the median by the chance of failure, except when hyperparameters are fitted.

    Values are compressed by `targets.warp` if they span decades, and in continuous spaces unless noise is found in
    them. In spaces with categories or conditions, compression can trap a search in one category; therefore the kernel
    has an additive part there, and every fourth suggestion leaves a category of the best trial.

    Each constrained outcome has its own process (`core.search.margins`), whose chance of feasibility is one more
    factor. A trial with a known outcome outside its bounds does not count as failed for the second process.

    If trials were pruned, the completed fraction of the training is one more input of the process (Swersky, Snoek and
    Adams, 2013, NeurIPS; Klein et al., 2020, arXiv:2003.10865), which learns how early values predict final ones. A
    paused trial resumes if its expected improvement per remaining second exceeds that of the best new point
    (freeze-thaw; Swersky, Snoek and Adams, 2014, arXiv:1406.3896).

    Hyperparameters are fitted to the first ended trials of the history, a number that grows by one at first and by a
    twentieth later. Between two steps the fit is reused, which is exact: the same trials give the same fit.

    Args:
        space: search space of all points.
        seed: at least 0.
        n_initial_points: size of the Latin hypercube; None for `design_size(space)`.
    """

    def __init__(self, space: Space, seed: int, n_initial_points: int | None = None) -> None:
        super().__init__(space, seed)
        #: encodings without and with the completed fraction of the training
        self._encodings = Encoding(space), Encoding(space, has_shares=True)
        #: quantiles of the first suggestions, indexed by the number of the suggestion
        self._design = latin_hypercube(n_initial_points or design_size(space), len(space.parameters), seed).tolist()
        self._segments = Segments(space, len(self._design), seed)
        #: True if one category or branch has enough points to trap a search
        self._is_mixed = any(map(has_many_values, space.parameters)) and any(
            isinstance(parameter, Categorical) or parameter.condition is not None for parameter in space.parameters
        )
        #: purpose -> last fit: digest of all its inputs, and its result
        self._memo: dict[str, tuple[bytes, Hyperparameters]] = {}

    def suggest(self, history: History) -> Point | None:
        point = self._proposal(history)
        if point is not None and history.waiting_trial(point) is not None:
            return point
        return first_new([point], history, self._rng(history))

    def design_at(self, history: History) -> list[float] | None:
        """Return the quantiles of the design's next point, absent parameters included; None after the last one."""
        is_over = history.n_adopted + history.n_suggested >= len(self._design)
        return None if is_over else self._design[history.n_suggested]

    def best_expected(self, history: History, rows: np.ndarray) -> int | None:
        """Return the row with the least expected value among `rows`; None unless values are noisy.

        The expectation is the posterior mean at the point, which also uses neighbouring values and the spread over
        folds, so a value that is low by chance counts less. Penalties are ignored: the step to them looks like noise.

        Args:
            history: as for `suggest`.
            rows: rows of complete trials.
        """
        encoding, own = self._encoding_of(history), None
        try:
            while True:
                if len(rows) < _N_TOLD:
                    return None
                fitted, every = self._fitted(history, own, encoding)
                if not every.is_penalty.any():
                    break
                penalties = every.rows[every.is_penalty]
                rows = np.setdiff1d(rows, penalties)
                own = np.setdiff1d(np.arange(len(history.points)) if own is None else own, penalties)
            if not self._is_noisy(fitted):
                return None
            seen = every.observed(MAX_SEEN, encoding, is_warped=fitted.is_warped)
            means = Posterior(fitted.hyperparameters, seen).predict(encoding.columns_of(history, rows))[0][:, 0]
        except np.linalg.LinAlgError:
            return None
        distances = every.distances(is_warped=fitted.is_warped)
        noise_std = np.sqrt(fitted.hyperparameters.noise) * distances.std()
        of_rows = distances[np.searchsorted(every.rows, rows, side="right") - 1]  # the last is of the full training
        is_rival = of_rows - of_rows.min() <= _RIVAL * noise_std
        return int(rows[np.where(is_rival, means, np.inf).argmin()])

    def _is_noisy(self, fitted: _Fitted) -> bool:
        """Return True if noise explains the values better than a function without noise, smooth or rough."""
        found, observed = fitted.hyperparameters, fitted.observed
        if np.sqrt(found.noise) < _LEAST_NOISE:
            return False
        noisy = Posterior(found, observed).log_likelihood
        exact = replace(observed, relative_noise=1e-9 * observed.relative_noise)

        def evidence(assumed: Assumptions) -> float:
            without = self._fit(f"values without noise, {assumed.is_rough}", exact, assumed)
            return noisy - Posterior(without, exact).log_likelihood

        against_smooth = evidence(fitted.assumed)
        if against_smooth <= _EVIDENCE:
            return False
        return evidence(replace(fitted.assumed, is_rough=True)) > -_ROUGH * against_smooth

    def _encoding_of(self, history: History) -> Encoding:
        return self._encodings[any(measured.share < 1.0 for measured in history.measured)]

    def _rng(self, history: History) -> np.random.Generator:
        return np.random.default_rng((self._seed, history.n_suggested, history.n_promoted))

    def _proposal(self, history: History) -> Point | None:
        """Return the point to try next; None if there is none."""
        rng = self._rng(history)
        complete = history.rows(TrialState.COMPLETE)
        if (units := self.design_at(history)) is not None:
            return self._space.from_unit(units)
        segment = self._segments.of(history)
        if segment is not None and (point := self._segments.point(segment, history)) is not None:
            return point
        own = None if segment is None else segment.rows(len(history.points))
        if len(_among(own, complete)) or (not len(complete) and len(nearest_first(history))):
            return self._most_promising(history, complete, own, rng)
        # No value yet: more blocks than initial points, or all trials failed.
        from nnlo_opt.core.search.sobol import sobol_sequence  # takes longer to import than everything else

        unit = sobol_sequence(len(self._space.parameters), self._seed, history.n_suggested).random(1)[0]
        return self._space.from_unit(unit.tolist())

    def _most_promising(
        self, history: History, complete: np.ndarray, own: np.ndarray | None, rng: np.random.Generator
    ) -> Point | None:
        """Return the unseen point with the largest acquisition found; None if there is no such point or no fit.

        Only values of the rows `own` are used; None for all.
        """
        encoding = self._encoding_of(history)
        try:
            failures = self._failures(history, complete, encoding)
            values = self._values(history, failures, own, encoding, rng)
            margins = self._margins(history, encoding)
        except np.linalg.LinAlgError:  # values that no smooth function fits; a random point adds information
            return None
        complete = _among(own, complete)
        if not len(complete):  # no feasible trial yet: the nearly feasible ones count as best
            complete = nearest_first(history)[:_N_BEST]
        ranking = history.values[complete]
        if encoding.has_shares:
            ends = values.predict(encoding.columns_of(history, complete))[0]
            ranking, whole = ends.mean(axis=1), [measured.row for measured in history.measured if measured.share == 1.0]
            # The incumbent is the best finished trial; until one has finished, expected final values.
            values.least = (ends[np.isin(complete, whole)] if whole else ends).min(axis=0)
        best = [history.points[row] for row in complete[np.argsort(ranking, kind="stable")][:_N_BEST]]
        constraints = [*([failures] if failures else []), *margins]
        acquisition = Acquisition(values, constraints)
        left = self._category_to_leave(history, values, encoding, best[0])
        looked_at = acquisition if left is None else Elsewhere(values, constraints, left)
        new = Maximisation(looked_at, encoding, history, rng).run(best)
        return _sooner(new, acquisition, encoding, history) if history.max_epochs and history.waiting else new

    def _category_to_leave(self, history: History, values: Posterior, encoding: Encoding, best: Point) -> int | None:
        """Return the column of a category of the `best` trial that the next suggestion must avoid; usually None.

        Every second time it belongs to the parameter with the shortest length scale, every fourth time to the next one,
        and so on.
        """
        turn, rest = divmod(len(history.points) - len(self._design), _N_ELSEWHERE)
        parameters = self._space.parameters
        chosen = [i for i, p in enumerate(parameters) if isinstance(p, Categorical) and p.name in best]
        may_leave = self._is_mixed and history.has_fixed_values and not encoding.has_shares
        if rest != _N_ELSEWHERE - 1 or not chosen or not may_leave:
            return None
        chosen.sort(key=lambda i: values.hyperparameters.lengths[i])
        parameter = chosen[min(_trailing_zeros(turn + 1), len(chosen) - 1)]
        return int(encoding.first[parameter] + parameters[parameter].key(best[parameters[parameter].name]))

    def _values(
        self,
        history: History,
        failures: Bounded | None,
        own: np.ndarray | None,
        encoding: Encoding,
        rng: np.random.Generator,
    ) -> Posterior:
        """Return the posterior of the values, with fantasies for pending trials."""
        posterior, median = self._of_measured(history, failures, own, encoding)
        failed = _among(own, history.rows(TrialState.FAILED))
        is_unknown = np.isnan(history.values[failed])
        if failures is not None and is_unknown.any():
            columns = encoding.columns_of(history, failed[is_unknown][-MAX_PENDING:])
            lifted = _lifted(posterior.predict(columns)[0], median, failures, columns)
            posterior = posterior.with_values(columns, lifted)
        pending = history.rows(TrialState.PENDING)[-MAX_PENDING:]
        if len(pending):
            columns = encoding.columns_of(history, pending)
            half = rng.normal(size=(len(pending), _N_FANTASIES // 2))
            posterior = posterior.with_values(columns, posterior.draw(columns, np.concatenate([half, -half], axis=1)))
        return posterior

    def _of_measured(
        self, history: History, failures: Bounded | None, own: np.ndarray | None, encoding: Encoding
    ) -> tuple[Posterior, float]:
        """Return the posterior of the measured values, and their median."""
        fitted, every = self._fitted(history, own, encoding)
        known = every.observed(MAX_SEEN, encoding, is_warped=fitted.is_warped)
        median, rows = float(np.median(known.values)), list(known.infeasible)
        if failures is not None:
            known.values[rows] = _lifted(known.values[rows, None], median, failures, known.columns[rows])[:, 0]
        return Posterior(fitted.hyperparameters, known), median

    def _fitted(self, history: History, own: np.ndarray | None, encoding: Encoding) -> tuple[_Fitted, _Targets]:
        """Return the process fitted to the rows `own` (None: all), and their measured values."""
        failed = _among(own, history.rows(TrialState.FAILED))
        values = history.values[failed].tolist()
        infeasible = [Measured(row, 1.0, v) for row, v in zip(failed.tolist(), values, strict=True) if not np.isnan(v)]
        kept = range(len(history.points)) if own is None else set(own.tolist())
        measured = sorted([*(one for one in history.measured if one.row in kept), *infeasible])
        start, what = (0, "whole") if own is None else (int(own[0]), "segment")
        first, every = (_Targets(history, some, start) for some in (measured[: scheduled(len(measured))], measured))

        def fit(purpose: str, assumed: Assumptions, *, is_warped: bool) -> _Fitted:
            observed = first.observed(MAX_FITTED, encoding, is_warped=is_warped)
            return _Fitted(is_warped, assumed, observed, self._fit(f"{what}, {purpose}", observed, assumed))

        # Values of unfinished trainings and of changing objectives are always compressed.
        may_be_raw = history.has_fixed_values and not encoding.has_shares and span(first.regular) <= _WIDE
        if may_be_raw and self._is_mixed:
            return fit("raw", Assumptions(is_additive=True), is_warped=False), every
        compressed = fit("compressed", PLAIN, is_warped=True)
        if may_be_raw and compressed.hyperparameters.noise > _NOISY:
            return fit("noisy", Assumptions(log_noise=NOISY_LOG_NOISE), is_warped=False), every
        return compressed, every

    def _failures(self, history: History, complete: np.ndarray, encoding: Encoding) -> Bounded | None:
        """Return the process of failure, -1 for a complete trial and 1 for a failed one; None if no trial failed.

        A trial with a known outcome outside its bounds does not count as failed here.
        """
        failed = history.rows(TrialState.FAILED)
        explained = failed[[breaks_a_bound(history, row) for row in failed.tolist()]]
        if len(explained) == len(failed):
            return None
        ended = np.sort(np.concatenate([complete, failed]))
        labels = np.where(np.isin(ended, complete) | np.isin(ended, explained), -1.0, 1.0)
        fitted = representative(-labels[: scheduled(len(ended))], MAX_FITTED)
        seen = representative(-labels, MAX_SEEN)
        of_fitted, of_seen = (_plain(history, ended[some], labels[some], encoding) for some in (fitted, seen))
        return Bounded(process=Posterior(self._fit("failures", of_fitted), of_seen), high=0.0, noise=_LABEL_NOISE)

    def _margins(self, history: History, encoding: Encoding) -> list[Bounded]:
        """Return the process of each constrained outcome with known values; pending trials get the mean."""
        names = dict.fromkeys(bound.name for bound in history.bounds)
        margins = [self._margin(name, history, encoding) for name in names if len(rows_with(history, name))]
        pending = history.rows(TrialState.PENDING)[-MAX_PENDING:]
        if not len(pending):
            return margins
        columns = encoding.columns_of(history, pending)
        return [replace(m, process=m.process.with_values(columns, m.process.predict(columns)[0])) for m in margins]

    def _margin(self, name: str, history: History, encoding: Encoding) -> Bounded:
        """Return the process of an outcome, on the scale that best predicts which trials are feasible."""
        rows = rows_with(history, name)
        known = margins_of(history, name, rows)
        fits: dict[Scale, tuple[float, Hyperparameters]] = {}
        for scale, margins in margins_of(history, name, rows[: scheduled(len(rows))]).items():
            if scale in known:
                fitted = margins.part(representative(margins.distances, MAX_FITTED))
                observations = _plain(history, fitted.rows, fitted.figures, encoding)
                fit = self._fit(f"{scale} of {name}", observations)
                fits[scale] = fitted.credibility(Posterior(fit, observations)), fit
        scale = max(fits, key=lambda scale: fits[scale][0])
        seen, fit = known[scale].part(representative(known[scale].distances, MAX_SEEN)), fits[scale][1]
        process = Posterior(fit, _plain(history, seen.rows, seen.figures, encoding))
        return Bounded(process=process, low=seen.low, high=seen.high, noise=fit.noise)

    def _fit(self, what: str, observations: Observations, assumed: Assumptions = PLAIN) -> Hyperparameters:
        parts = (observations.columns, observations.values, observations.relative_noise)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if self._memo.get(what, (b"",))[0] != digest:
            self._memo[what] = digest, fit_hyperparameters(observations, assumed)
        return self._memo[what][1]


def _sooner(new: Point | None, acquisition: Acquisition, encoding: Encoding, history: History) -> Point | None:
    """Return the point of a paused trial if it gains more per second of a block, else the `new` point."""
    rows, taken = list(history.waiting), list(history.waiting.values())
    start_s = np.array([one["start_s"] for one in taken])
    epoch_s = np.array([one["train_s"] / one["n_epochs"] for one in taken])
    n_left = np.array([max(1, history.max_epochs - history.epochs_of(row)) for row in rows])
    # The acquisition is a logarithm. The nanosecond is for simulated trainings that take no time.
    scores = acquisition(encoding.columns_of(history, rows)) - np.log(start_s + epoch_s * n_left + 1e-9)
    if new is not None:
        of_new = acquisition(encoding.columns([new]))[0]
        if of_new - np.log((start_s + epoch_s * history.max_epochs).mean() + 1e-9) > scores.max():
            return new
    return dict(history.points[rows[int(scores.argmax())]])


def _lifted(values: np.ndarray, median: float, failures: Bounded, columns: np.ndarray) -> np.ndarray:
    """Return values (n, k) of failed trials at `columns`, raised towards the median by the chance of failure."""
    chance = np.exp(failures.log_chance(columns))
    return values + (1.0 - chance[:, None]) * np.maximum(median - values, 0.0)


def _plain(history: History, rows: np.ndarray, values: np.ndarray, encoding: Encoding) -> Observations:
    """Return `values` of the trials in `rows`, equally noisy."""
    return Observations(encoding.columns_of(history, rows), encoding.groups, values, np.ones(len(rows)))


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


def _among(own: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
    """Return the ascending `rows` that are in `own`; all for None."""
    return rows if own is None else np.intersect1d(own, rows)


def scheduled(n_ended: int) -> int:
    """Return the number of trials to fit, given `n_ended`: all up to 40, then in steps of a twentieth."""
    n_fitted = min(n_ended, 40)
    while n_fitted + n_fitted // 20 <= n_ended and n_fitted >= 40:
        n_fitted += n_fitted // 20
    return n_fitted


def representative(values: np.ndarray, n_rows: int) -> np.ndarray:
    """Return at most `n_rows` ascending indices of `values`: half of them the lowest values, half evenly spread."""
    if len(values) <= n_rows:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    lowest, rest = order[: n_rows // 2], np.sort(order[n_rows // 2 :])
    spread = np.linspace(0, len(rest) - 1, n_rows - n_rows // 2).round().astype(int)
    return np.sort(np.concatenate([lowest, rest[spread]]))
