"""Loss scale, the factor that keeps gradients in float16 from vanishing.

P. Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.2. A batch whose gradient overflows is
computed again with half the factor, while other implementations drop the batch. A gradient is therefore always the
gradient of its batch.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nnlo_opt.models.layout import FloatVector


@dataclass(slots=True)
class LossScale:
    """Power of two that falls when a gradient overflows and rises after many gradients without overflow."""

    #: gradients in a row after which the factor doubles
    PATIENCE: ClassVar[int] = 2000

    exponent: int = 15
    #: gradients since the factor last changed
    n_fitting: int = 0

    @property
    def factor(self) -> float:
        """The factor of the loss, at least 1."""
        return float(2**self.exponent)

    def fits(self, gradient: FloatVector) -> bool:
        """Return True if `gradient` is to be used: it is finite, or a smaller factor would not help."""
        if np.isfinite(gradient).all():
            self.n_fitting += 1
            return True
        if self.exponent == 0:
            return True
        self.exponent, self.n_fitting = self.exponent - 1, 0
        return False

    def rise(self) -> None:
        """Double the factor after many gradients without overflow; must be called after `factor` was divided out."""
        if self.n_fitting >= self.PATIENCE:
            self.exponent, self.n_fitting = self.exponent + 1, 0

    def to_list(self) -> list[int]:
        """Return plain data."""
        return [self.exponent, self.n_fitting]

    @classmethod
    def from_list(cls, values: list[int]) -> "LossScale":
        """Return the loss scale that `to_list` wrote."""
        return cls(*values)
