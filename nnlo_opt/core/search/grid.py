"""Grid search: all combinations of parameter values in order."""

from collections.abc import Sequence
from decimal import Decimal

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import MAX_INTEGER
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.base import History
from nnlo_opt.core.space.parameters import Constant, Integer, Ordinal, Parameter
from nnlo_opt.core.space.space import Point, Space

#: default number of values of a continuous parameter
DEFAULT_POINTS = 5
#: largest number of points in a grid
MOST_POINTS = 1_000_000


class GridSearch:
    """Suggests all points of a grid; the last parameter varies fastest.

    The grid has all values of a finite parameter, and `grid_points` values of a continuous one, at even quantiles of
    its prior with both bounds included. Parameters whose condition does not hold are absent, so no point occurs twice.

    Args:
        space: search space of all points.
        seed: ignored.
        grid_points: number of values of a continuous parameter, at least 1.
    """

    def __init__(self, space: Space, seed: int = 0, grid_points: int = DEFAULT_POINTS) -> None:
        self._grid = grid_of(space, grid_points)
        #: the history's points at the last suggestion (a list that only grows), and the index of that suggestion in the
        #: grid; all grid points before it were tried or are infeasible
        self._last: tuple[Sequence[Point], int] = ([], 0)

    def suggest(self, history: History) -> Point | None:
        n_points = self._grid.n_points
        assert n_points is not None
        points, first = self._last
        for index in range(first if history.points is points else 0, n_points):
            point = self._grid.point_at(index)
            if not history.contains(point) and history.space.is_feasible(point):
                self._last = history.points, index
                return point
        if not any(map(history.space.is_feasible, history.points)):
            raise history.space.refusal(f"all {n_points:,} points of the grid were refused")
        return None


def grid_size(space: Space, grid_points: int | None) -> int:
    """Return the number of points in the grid of `space`; ConfigurationError if there are too many."""
    n_values = grid_points or DEFAULT_POINTS
    # Integers stand for the values, of which there may be too many to create.
    counted = Space(_counted(parameter, n_values) for parameter in space.parameters)
    n_points = counted.n_points or 0
    if n_points > MOST_POINTS:
        widest = max(counted.parameters, key=lambda parameter: parameter.n_values or 0)
        raise ConfigurationError(
            f"The grid of a search must have at most {MOST_POINTS:,} points. Received: {Decimal(n_points):.3g} points, "
            f"{widest.n_values:,} values of `{widest.name}` among them. Lower `{spelled('grid_points')}`, give that "
            f"parameter a larger `step`, fix some by `{spelled('fix')}`, or choose another `{spelled('hyper_opt')}`."
        )
    return grid_of(space, n_values).n_points or 0


def _counted(parameter: Parameter, n_values: int) -> Parameter:
    if parameter.n_values is not None or n_values == 1:
        return _with_few_values(parameter, n_values)
    return Integer(1, min(n_values, MAX_INTEGER), name=parameter.name, condition=parameter.condition)


def grid_of(space: Space, grid_points: int) -> Space:
    """Return a finite space whose points are the grid of `space`; its constraint is dropped."""
    return Space(_with_few_values(parameter, grid_points) for parameter in space.parameters)


def _with_few_values(parameter: Parameter, n_values: int) -> Parameter:
    if parameter.n_values is not None:
        return parameter
    quantiles = [index / (n_values - 1) for index in range(n_values)] if n_values > 1 else [0.5]
    # A range may contain fewer than `grid_points` different numbers.
    values = list(dict.fromkeys(map(parameter.from_unit, quantiles)))
    if len(values) == 1:
        return Constant(values[0], parameter.name, condition=parameter.condition)
    return Ordinal(values, parameter.name, condition=parameter.condition)
