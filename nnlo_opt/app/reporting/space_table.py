"""Text tables of a search space: parameters, size, some points."""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.app.reporting.table import text_table
from nnlo_opt.app.reporting.terminal import WIDE
from nnlo_opt.app.reporting.words import value_text
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME
from nnlo_opt.core.space.parameters import KINDS, Integer, Ordinal, Parameter, Real
from nnlo_opt.core.space.space import Point, Space

#: points drawn to estimate the feasible share of an infinite space
_N_DRAWN = 1000


def space_table(space: Space, title: str, width: int = WIDE) -> str:
    """Return the parameters as a text table, without empty columns."""
    rows = [_row(parameter) for parameter in space.parameters]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    return text_table(title, columns, [[row[name] for name in columns] for row in rows], left=True, width=width)


def size_text(space: Space) -> str:
    """Return the number of points and the feasible share, on one or two lines."""
    n_points = space.n_points
    size = "infinitely many" if n_points is None else f"{n_points:,}"
    if space.constraint is None:
        return f"Points: {size}"
    constraint = f"Constraint: `{CONSTRAINT_NAME}` of {space.constraint.source}"
    if space.can_be_walked:
        return f"{constraint}\nPoints: {size}, of which {sum(1 for _ in space.iter_points()):,} are feasible"
    rng = np.random.default_rng(0)
    n_feasible = sum(space.is_feasible(space.draw(rng)) for _ in range(_N_DRAWN))
    return f"{constraint}\nPoints: {size}; {n_feasible:,} of {_N_DRAWN:,} drawn are feasible"


def points_table(space: Space, points: Sequence[Point], title: str, width: int = WIDE) -> str:
    """Return points as text tables, one column for each point.

    A dash marks a parameter that the point does not have.
    """
    longest = max((len(_value_in(point, name)) for point in points for name in space.names), default=0)
    n_shown = max(1, min(8, (width - max(map(len, space.names))) // (longest + 2)))
    tables = []
    for first in range(0, len(points), n_shown):
        shown = points[first : first + n_shown]
        rows = [[name, *(_value_in(point, name) for point in shown)] for name in space.names]
        numbers = [str(first + i + 1) for i in range(len(shown))]
        tables.append(text_table("" if first else title, ["", *numbers], rows))
    return "\n\n".join(tables)


def _value_in(point: Point, name: str) -> str:
    return value_text(point[name]) if name in point else "-"


def _row(parameter: Parameter) -> dict[str, str]:
    kind = next(kind.__name__ for kind in KINDS if isinstance(parameter, kind))
    row = {"name": parameter.name, "kind": kind, "range": "", "prior": "", "step": "", "likely": ""}
    if isinstance(parameter, Real | Integer):
        row["range"] = f"{value_text(parameter.low)} to {value_text(parameter.high)}"
        row["prior"] = parameter.prior
        row["step"] = "" if parameter.step is None else value_text(parameter.step)
    else:
        row["range"] = ", ".join(value_text(parameter.value_at(index)) for index in range(parameter.n_values or 0))
    if isinstance(parameter, Real | Integer | Ordinal) and parameter.likely is not None:
        row["likely"] = value_text(parameter.likely)
    row["values"] = "" if parameter.n_values is None else f"{parameter.n_values:,}"
    row["only when"] = "" if parameter.condition is None else str(parameter.condition)
    return row
