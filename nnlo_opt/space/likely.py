"""Prior of a parameter with a likely value: a normal distribution around it, truncated to the parameter's range.

A *position* is the place of a value on its scale, 0 at the lower bound and 1 at the upper one; the scale of a
"log-uniform" range is logarithmic. Without a likely value positions are uniform. With a likely value at position c they
have the density of N(c, 0.25) between 0 and 1: two draws of three lie within a quarter of the range around a likely
value in the middle, and every value keeps a chance.
"""

import math
from statistics import NormalDist

#: standard deviation around the likely value, as a share of the range
LIKELY_WIDTH = 0.25

_NORMAL = NormalDist()


def position_of(quantile: float, center: float) -> float:
    """Return the position at a quantile (both 0 to 1) of the prior around `center`; the inverse of `quantile_of`."""
    low, high = _tails(center)
    share = low + quantile * (high - low)
    if not 0.0 < share < 1.0:
        return float(quantile >= 0.5)
    return min(max(center + LIKELY_WIDTH * _NORMAL.inv_cdf(share), 0.0), 1.0)


def quantile_of(position: float, center: float) -> float:
    """Return the quantile of a position (both 0 to 1) under the prior around `center`."""
    low, high = _tails(center)
    quantile = (_cumulated((position - center) / LIKELY_WIDTH) - low) / (high - low)
    return min(max(quantile, 0.0), 1.0)


def _tails(center: float) -> tuple[float, float]:
    return _cumulated(-center / LIKELY_WIDTH), _cumulated((1.0 - center) / LIKELY_WIDTH)


def _cumulated(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
