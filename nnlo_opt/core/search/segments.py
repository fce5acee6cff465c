"""Restarts of a stalled search: each segment has a new design, and a process that sees its own trials only.

A process fitted to many trials around one optimum expects no improvement elsewhere, so more trials do not help. The
designs are deterministic, so a resumed search recognises from the history where each segment began.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.design import latin_hypercube
from nnlo_opt.core.search.random import feasible_draws, may_be_tried
from nnlo_opt.core.search.targets import above_best
from nnlo_opt.core.space.parameters import Real
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.trial import TrialState

#: a segment ends if in so many trials the best improved by less than this fraction of the median distance above the
#: best of its design, and half of these trials are as close to the best (else the search still explores)
_N_STALLED, _NEGLIGIBLE = 20, 0.003
#: fewest trials before the first restart
_N_FIRST = 100
#: one in so many suggestions comes from the whole search, as some functions need that patience
_N_TURNS = 3


class Segment(Frozen):
    """A segment: its first row, and its rows in the history."""

    #: 0 for the first segment
    number: int
    #: its first row
    start: int

    def rows(self, n_rows: int) -> np.ndarray:
        """Return the segment's rows among `n_rows`, (n,) int, ascending."""
        rows = np.arange(self.start, n_rows)
        return rows[(rows - self.start) % _N_TURNS < _N_TURNS - 1] if self.number else rows


class Segments:
    """Segments of one search.

    Args:
        space: search space.
        n_points: size of the design of each segment.
        seed: at least 0.
    """

    def __init__(self, space: Space, n_points: int, seed: int) -> None:
        self._space, self._n_points, self._seed = space, n_points, seed
        #: names of the parameters in which two trials never agree by chance
        self._telling = {p.name for p in space.parameters if isinstance(p, Real) and p.n_values is None}
        #: segment number from 1 -> feasible points of its design
        self._design = cache(self._made)

    def of(self, history: History) -> Segment | None:
        """Return the segment of the next suggestion; None for the whole search."""
        if not self._telling or not history.has_fixed_values or any(m.share < 1.0 for m in history.measured):
            return None
        n_rows, last = len(history.points), self._last(history)
        if last.number and (n_rows - last.start) % _N_TURNS == _N_TURNS - 1:
            return None
        if self._has_stalled(history, last):
            following = Segment(number=last.number + 1, start=n_rows)
            return following if self.point(following, history) is not None else None
        return last if last.number else None

    def point(self, segment: Segment, history: History) -> Point | None:
        """Return the next point of a segment's design, except the first segment's; None if all were tried."""
        return next((dict(point) for point in self._design(segment.number) if may_be_tried(point, history)), None)

    def _last(self, history: History) -> Segment:
        last = Segment(number=0, start=0)
        while (row := self._first_row(history, last)) is not None:
            last = Segment(number=last.number + 1, start=row)
        return last

    def _first_row(self, history: History, before: Segment) -> int | None:
        """Return the row at which the segment after `before` begins; None if it has not begun."""
        tried = [point for point in self._design(before.number + 1) if history.contains(point)]
        first = max(before.start, history.n_adopted)
        return next((row for row in range(first, len(history.points)) if history.points[row] in tried), None)

    def _has_stalled(self, history: History, segment: Segment) -> bool:
        own = segment.rows(len(history.points))
        values = history.values[own[np.isin(own, history.rows(TrialState.COMPLETE))]]
        if len(values) < max(self._n_points + _N_STALLED, 0 if segment.number else _N_FIRST):
            return False
        values = above_best(values)
        farthest = max(values[:-_N_STALLED].min(), np.median(values[-_N_STALLED:]))
        return bool(farthest < _NEGLIGIBLE * np.median(values[: self._n_points]))

    def _made(self, number: int) -> Sequence[Point]:
        units = latin_hypercube(self._n_points, len(self._space.parameters), self._seed, number).tolist()
        points = [point for point in map(self._space.from_unit, units) if self._space.is_feasible(point)]
        if missing := self._n_points - len(points):
            drawn = feasible_draws(self._space, missing, np.random.default_rng((self._seed, number)))
            points += [self._space.from_unit(row) for row in drawn.tolist()]
        return [point for point in points if self._telling & point.keys()]
