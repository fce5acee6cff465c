"""Search spaces; light to import, so that a model module may write `from nnlo_opt.space import Real`."""

from nnlo_opt.space.parameters import Categorical, Constant, Integer, Ordinal, Parameter, Real, Value, When
from nnlo_opt.space.space import Point, Space

__all__ = ["Categorical", "Constant", "Integer", "Ordinal", "Parameter", "Point", "Real", "Space", "Value", "When"]
