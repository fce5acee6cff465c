"""Search spaces for model modules and scripts; imports quickly."""

from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Categorical, Constant, Integer, Ordinal, Parameter, Real
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.space.values import Value

__all__ = ["Categorical", "Constant", "Integer", "Ordinal", "Parameter", "Point", "Real", "Space", "Value", "When"]
