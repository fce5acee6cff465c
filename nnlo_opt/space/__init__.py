"""Search spaces: what may vary. Light to import, so that a model module may say `from nnlo_opt.space import Real`."""

from nnlo_opt.space.parameters import Categorical, Integer, Parameter, Real, Value
from nnlo_opt.space.space import Point, Space

__all__ = ["Categorical", "Integer", "Parameter", "Point", "Real", "Space", "Value"]
