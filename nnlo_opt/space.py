"""Search spaces for model modules and scripts; imports quickly."""

from nnlo_opt.core.space import Categorical, Constant, Integer, Ordinal, Parameter, Point, Real, Space, Value, When

__all__ = ["Categorical", "Constant", "Integer", "Ordinal", "Parameter", "Point", "Real", "Space", "Value", "When"]
