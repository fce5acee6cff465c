"""Bayesian search, the default: expected improvement on a Gaussian process."""

import hashlib
from collections.abc import Sequence

import numpy as np

from nnlo_opt.search.acquisition import Acquisition, chance_of_success
from nnlo_opt.search.base import History, TrialState
from nnlo_opt.search.design import design_size, latin_hypercube
from nnlo_opt.search.encoding import Encoding
from nnlo_opt.search.gaussian_process import Hyperparameters, Observations, Posterior, fit_hyperparameters
from nnlo_opt.search.maximisation import Maximisation
from nnlo_opt.search.random import may_be_tried, suggestion_rng, unseen_point
from nnlo_opt.search.targets import relative_noise, standardise, warp
from nnlo_opt.space.space import Point, Space

#: ended trials that hyperparameters are fitted to, and that a posterior has seen, at most: what bounds the cost of a
#: suggestion at any length of the history
MAX_FITTED, MAX_SEEN = 128, 400
#: pending trials that a posterior imagines values of, at most: the latest
MAX_PENDING = 100
#: values imagined for each of them; even, as they come in pairs of opposite signs
_N_FANTASIES = 16
#: the best trials, near which the acquisition is looked at
_N_BEST = 4


class BayesianSearch:
    """Expected improvement on a Gaussian process (Jones, Schonlau and Welch, 1998, J. Global Optim. 13, 455).

    The first `n_initial_points` suggestions are a Latin hypercube, whatever values come back (None: as many as
    `design_size` says). Values are compressed by `targets.warp`. A pending trial counts with several imagined values,
    over which the expected improvement is averaged (Snoek, Larochelle and Adams, 2012, NeurIPS, section 3.2). A second
    process is fitted to which trials failed, and the expected improvement is multiplied by the chance of success that
    it sees (Gardner et al., 2014, ICML); a failed trial besides counts with what is believed of its value, lifted
    towards the median as far as its failure was due.

    Hyperparameters belong to the first ended trials of the history, whose number grows by one at first and in steps of
    a twentieth later. So what is remembered of the last fit is exact: with the same trials it would come out the same.
    """

    def __init__(self, space: Space, seed: int, n_initial_points: int | None = None) -> None:
        self._space = space
        self._seed = seed
        self._encoding = Encoding(space)
        #: quantiles of the first suggestions, by their number
        self._design = latin_hypercube(n_initial_points or design_size(space), len(space.parameters), seed).tolist()
        #: by what it is for, the last fit: the digest of all that it depends on, and its result
        self._memo: dict[str, tuple[bytes, Hyperparameters]] = {}

    def suggest(self, history: History) -> Point | None:
        rng = suggestion_rng(self._seed, history)
        complete = history.rows(TrialState.COMPLETE)
        point: Point | None = None
        if history.n_suggested < len(self._design):
            point = self._space.from_unit(self._design[history.n_suggested])
        elif len(complete):
            point = self._most_promising(history, complete, rng)
        else:  # many blocks, or failures
            from nnlo_opt.search.sobol import sobol_sequence  # takes longer to import than everything else

            unit = sobol_sequence(len(self._space.parameters), self._seed, history.n_suggested).random(1)[0]
            point = self._space.from_unit(unit.tolist())
        if point is None or not may_be_tried(point, history):
            return unseen_point(self._space, history, rng)
        return point

    def _most_promising(self, history: History, complete: np.ndarray, rng: np.random.Generator) -> Point | None:
        """The unseen point with the largest acquisition that was found; None where none was, or there is no fit."""
        try:
            failures = self._failures(history, complete)
            acquisition = Acquisition(self._values(history, complete, failures, rng), failures)
        except np.linalg.LinAlgError:  # values that no smooth function has; a random point brings news
            return None
        best = complete[np.argsort(history.values[complete], kind="stable")][:_N_BEST]
        return Maximisation(acquisition, self._encoding, history, rng).run([history.points[row] for row in best])

    def _values(
        self, history: History, complete: np.ndarray, failures: Posterior | None, rng: np.random.Generator
    ) -> Posterior:
        """What is believed of the warped values, with fantasies where trials are pending."""
        hyperparameters = self._fit("values", self._measured(history, complete[: scheduled(len(complete))], MAX_FITTED))
        known = self._measured(history, complete, MAX_SEEN)
        posterior = Posterior(hyperparameters, known)
        if failures is not None:
            columns = self._columns(history, history.rows(TrialState.FAILED)[-MAX_PENDING:])
            expected = posterior.predict(columns)[0]
            lift = np.maximum(np.median(known.values) - expected, 0.0)
            due = 1.0 - chance_of_success(failures, columns)[:, None]
            posterior = posterior.with_values(columns, expected + due * lift)
        pending = history.rows(TrialState.PENDING)[-MAX_PENDING:]
        if len(pending):
            columns = self._columns(history, pending)
            half = rng.normal(size=(len(pending), _N_FANTASIES // 2))
            posterior = posterior.with_values(columns, posterior.draw(columns, np.concatenate([half, -half], axis=1)))
        return posterior

    def _failures(self, history: History, complete: np.ndarray) -> Posterior | None:
        """What is believed of failing: -1 for a trial that completed, 1 for one that failed; None where none did."""
        if not len(history.rows(TrialState.FAILED)):
            return None
        ended = np.sort(np.concatenate([complete, history.rows(TrialState.FAILED)]))
        labels = np.where(np.isin(ended, complete), -1.0, 1.0)
        fitted = representative(-labels[: scheduled(len(ended))], MAX_FITTED)
        seen = representative(-labels, MAX_SEEN)
        hyperparameters = self._fit(
            "failures", self._observed(history, ended[fitted], labels[fitted], np.ones(len(fitted)))
        )
        return Posterior(hyperparameters, self._observed(history, ended[seen], labels[seen], np.ones(len(seen))))

    def _fit(self, what: str, observations: Observations) -> Hyperparameters:
        parts = (observations.columns, observations.values, observations.relative_noise)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if self._memo.get(what, (b"",))[0] != digest:
            self._memo[what] = digest, fit_hyperparameters(observations)
        return self._memo[what][1]

    def _measured(self, history: History, rows: np.ndarray, n_rows: int) -> Observations:
        """Representative ones of `rows`, with warped values; a function of nothing but `rows`."""
        values = history.values[rows]
        warped, noise = warp(values), relative_noise(values, history.stds[rows])
        some = representative(warped, n_rows)
        return self._observed(history, rows[some], standardise(warped[some]), noise[some])

    def _observed(self, history: History, rows: np.ndarray, values: np.ndarray, noise: np.ndarray) -> Observations:
        return Observations(self._columns(history, rows), self._encoding.groups, values, noise)

    def _columns(self, history: History, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        return self._encoding.columns([history.points[row] for row in rows])


def scheduled(n_ended: int) -> int:
    """To how many of `n_ended` trials hyperparameters are fitted: to all of 40, then in steps of a twentieth."""
    n_fitted = min(n_ended, 40)
    while n_fitted + n_fitted // 20 <= n_ended and n_fitted >= 40:
        n_fitted += n_fitted // 20
    return n_fitted


def representative(values: np.ndarray, n_rows: int) -> np.ndarray:
    """At most `n_rows` indices into `values`, growing: half of them the lowest values, the others spread evenly."""
    if len(values) <= n_rows:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    lowest, rest = order[: n_rows // 2], np.sort(order[n_rows // 2 :])
    spread = np.linspace(0, len(rest) - 1, n_rows - n_rows // 2).round().astype(int)
    return np.sort(np.concatenate([lowest, rest[spread]]))
