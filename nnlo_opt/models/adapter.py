"""What a trainer asks of a model, whatever the framework behind it.

A model is two flat float32 vectors and some counters: the *weights*, which follow the update rule; the *state*
(running means of a batch normalisation and the like), which workers average and nobody optimises; and the *discrete
state* (seed counters of dropout layers), which each worker keeps for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from numpy.typing import NDArray

from nnlo_opt.models.layout import FloatVector, Layout
from nnlo_opt.trees import Arrays


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of some samples, kept as sums so that parts measured apart add up exactly.

    `sums` maps a figure to its sum over `n_samples` samples: "loss", "acc" where classes are predicted, and for a model
    of several outputs "<output>_loss" and "<output>_acc" too.
    """

    n_samples: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)

    def merge(self, other: "Metrics") -> "Metrics":
        """The metrics of both sets of samples together; `Metrics()` is the neutral element."""
        if not self.n_samples:
            return other
        if not other.n_samples:
            return self
        if self.sums.keys() != other.sums.keys():
            raise ValueError(f"Metrics of the same figures are expected. Received: {[*self.sums]} and {[*other.sums]}.")
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return Metrics(self.n_samples + other.n_samples, sums)

    def means(self) -> dict[str, float]:
        """The mean of every figure; empty without samples."""
        return {name: value / self.n_samples for name, value in self.sums.items()} if self.n_samples else {}


class ModelAdapter(Protocol):
    """One model on one rank. Vectors are float32, one-dimensional, C-contiguous and owned by the caller.

    `testing.model_conformance` holds what every adapter must do.
    """

    @property
    def layout(self) -> Layout:
        """Names and shapes of the arrays in the weight vector."""
        ...

    @property
    def n_weights(self) -> int:
        """Length of the weight vector."""
        ...

    @property
    def n_state(self) -> int:
        """Length of the state vector; often 0."""
        ...

    def read_weights(self, out: FloatVector) -> None:
        """Copy the weights into `out` (n_weights,)."""
        ...

    def write_weights(self, vector: FloatVector) -> None:
        """Take over the weights in `vector` (n_weights,), which may be reused at once."""
        ...

    def borrow_weights(self, vector: FloatVector) -> None:
        """As `write_weights`, but `vector` may be read where it is.

        It is to stay as it is until it is lent again, or others are written.
        """
        ...

    def read_state(self, out: FloatVector) -> None:
        """Copy the state into `out` (n_state,)."""
        ...

    def write_state(self, vector: FloatVector) -> None:
        """Take over the state in `vector` (n_state,)."""
        ...

    def discrete_state(self) -> list[list[int]]:
        """The integer state, each variable flattened: plain data for a checkpoint, never averaged."""
        ...

    def load_discrete_state(self, values: list[list[int]]) -> None:
        """Take over what `discrete_state` returned."""
        ...

    def gradient(self, x: Arrays, y: Arrays, out: FloatVector, sample_weight: NDArray | None = None) -> Metrics:
        """Write the gradient of the mean loss over the batch, penalties of the weights included, into `out`.

        `x` and `y` are arrays (n, ...), or lists of them for several inputs or outputs (`nnlo_opt.trees`).
        `sample_weight` (n,), where given, multiplies the loss of each sample before the mean over n, as in Keras.
        The weights stay as they are; the state moves on as in training. Raises `TrialError` if the framework fails.
        """
        ...

    def evaluate(self, x: Arrays, y: Arrays, sample_weight: NDArray | None = None) -> Metrics:
        """Measure one batch as in inference; changes nothing. Raises `TrialError` if the framework fails."""
        ...

    def save(self, path: Path) -> None:
        """Write the model with its current weights and state to `path`, whole or not at all."""
        ...
