"""Staleness of updates, measured for every update: how many versions old the weights were that it was computed at.

The policy decides the weight of an update at the master, the statistics count the staleness that occurred, and
`explicit_momentum` corrects an optimizer's momentum for staleness.
"""

from collections import Counter
from collections.abc import Mapping

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled

_RULE = "must be none, scale or drop:N with a whole number N of at least 0, such as drop:8"

#: key of `n_dropped` in the JSON of staleness; only if updates were dropped
_DROPPED = "dropped"


class StalenessPolicy(Frozen):
    """Factor by which the master multiplies an update, given its staleness tau.

    none      1
    scale     1 / (1 + tau). Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for Distributed Deep Learning"
              (arXiv:1511.05950), divide the learning rate by tau, and leave it as it is at tau = 0; so 0 and 1 count
              alike in the paper, but not here, with one form for every tau.
    drop:N    0 if tau is more than N, else 1
    """

    #: "none", "scale" or "drop"
    kind: str = "none"
    #: drop: largest staleness that is not dropped
    limit: int = 0

    @classmethod
    def parse(cls, text: str) -> "StalenessPolicy":
        """Parse `none`, `scale` or `drop:N`; ConfigurationError for anything else."""
        kind, colon, limit = str(text).strip().partition(":")
        if kind in ("none", "scale") and not colon:
            return cls(kind=kind)
        if kind == "drop" and limit.isascii() and limit.isdigit():
            return cls(kind=kind, limit=int(limit))
        raise ConfigurationError(
            f"`{spelled('staleness')}` {_RULE}. Received: {text!r}. Leave it out to apply every update as it is."
        )

    def weight(self, staleness: int) -> float:
        """Return the factor, in [0, 1], for an update of this staleness; 0 if it is dropped."""
        match self.kind:
            case "scale":
                return 1 / (1 + staleness)
            case "drop":
                return float(staleness <= self.limit)
        return 1.0


def explicit_momentum(asked: float, staleness: float) -> float:
    """Return the optimizer's momentum that, with this mean `staleness`, acts like the momentum `asked`.

    Mitliagkas, Zhang, Hadjis and Ré, "Asynchrony begets Momentum" (arXiv:1605.09774), show for geometric staleness (a
    queueing model) with mean tau = M - 1 for M workers, that SGD without momentum takes the steps

        E[d(t+1)] = q E[d(t)] - (1 - q) lr E[gradient(w(t))],   q = 1 - 1/M = tau / (1 + tau)         (1)

    where d(t+1) = w(t+1) - w(t): an implicit momentum q. With the momentum mu of an optimizer the factors act one
    after the other, and with B for one step back (1 - mu B) (1 - q B) E[d] = -(1 - q) lr E[gradient], which is

        E[d(t+1)] = (mu + q) E[d(t)] - mu q E[d(t-1)] - (1 - q) lr E[gradient(w(t))]                  (2)

    To leading order, d(t-1) = d(t), the momentum of both is m = mu + q - mu q, so that

        (1 - m) = (1 - mu) (1 - q),   mu = 1 - (1 - m) (1 + tau)                                      (3)

    Hadjis et al., "Omnivore" (arXiv:1606.04487), find empirically that the best explicit momentum falls like this with
    growing asynchrony.

    Returns:
        At least 0, even if staleness alone gives more momentum than `asked`.
    """
    return max(0.0, 1 - (1 - asked) * (1 + staleness))


class StalenessStatistics:
    """Counts of staleness: how many versions the central weights advanced while an update was computed."""

    def __init__(self, histogram: Mapping[int, int] | None = None, n_dropped: int = 0) -> None:
        #: staleness that occurred -> number of updates, dropped ones included
        self._histogram: Counter[int] = Counter(histogram)
        #: number of these updates that were dropped for their staleness
        self.n_dropped = n_dropped

    def record(self, base_version: int, version: int) -> int:
        """Count an update computed at `base_version` and applied at `version`; return its staleness."""
        staleness = version - base_version
        if staleness < 0:
            raise ProtocolError(f"An update from version {base_version} met the central weights at version {version}.")
        self._histogram[staleness] += 1
        return staleness

    def drop(self) -> None:
        """Mark the last recorded update as dropped."""
        if self.n_dropped >= self.n_updates:
            raise ProtocolError(f"An update was dropped, but all {self.n_updates} recorded are dropped already.")
        self.n_dropped += 1

    def merge(self, other: "StalenessStatistics") -> None:
        """Add the counts of `other`."""
        self._histogram.update(other.histogram)
        self.n_dropped += other.n_dropped

    @property
    def histogram(self) -> dict[int, int]:
        """Staleness -> number of updates, smallest staleness first."""
        return dict(sorted(self._histogram.items()))

    @property
    def n_updates(self) -> int:
        """Number of updates, applied or dropped."""
        return self._histogram.total()

    @property
    def total(self) -> int:
        """Sum of the staleness of all updates, in versions."""
        return sum(staleness * count for staleness, count in self._histogram.items())

    @property
    def mean(self) -> float:
        """Mean staleness, in versions; 0.0 before the first update."""
        return self.total / max(1, self.n_updates)

    @property
    def max(self) -> int:
        """The largest staleness; 0 before the first update."""
        return max(self._histogram, default=0)

    def to_json(self) -> dict[str, int]:
        """Return the histogram with text keys, as JSON requires, and `dropped` if updates were dropped."""
        counts = {str(staleness): count for staleness, count in self.histogram.items()}
        return {**counts, _DROPPED: self.n_dropped} if self.n_dropped else counts

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> "StalenessStatistics":
        histogram = {int(staleness): count for staleness, count in data.items() if staleness != _DROPPED}
        return cls(histogram, data.get(_DROPPED, 0))
