"""What goes wrong on virtual blocks."""

from dataclasses import dataclass

import numpy as np

from nnlo_opt.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Faults:
    """Each attempt at a fold fails with `probability`, anywhere in its training."""

    probability: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ConfigurationError(
                f"The probability that a trial fails must be from 0 to 1. Received: {self.probability:g}."
            )

    def fails_after(self, rng: np.random.Generator) -> float | None:
        """The share of the training after which the fold fails, 0 to 1; None: it does not."""
        if self.probability == 0.0 or rng.random() >= self.probability:
            return None
        return float(rng.random())


NO_FAULTS = Faults()
