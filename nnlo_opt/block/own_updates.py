"""What a worker trains between two updates, and the updates that it makes itself in shared central weights."""

from dataclasses import dataclass, field

from nnlo_opt.algorithms.staleness import StalenessStatistics
from nnlo_opt.block.local import LocalRule
from nnlo_opt.block.shared_weights import Exchanged, SharedWeights
from nnlo_opt.comm import messages as msg
from nnlo_opt.models.adapter import Metrics


@dataclass(slots=True)
class Period:
    """What a worker has trained since its last push."""

    n_samples: int = 0
    n_batches: int = 0
    #: sums over the samples
    sums: dict[str, float] = field(default_factory=dict)
    #: version of the central weights at the first batch
    base_version: int = 0
    end_of_pass: bool = False

    def add(self, metrics: Metrics) -> None:
        self.n_samples += metrics.n_samples
        self.n_batches += 1
        for name, value in metrics.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def absorb(self, other: "Period") -> None:
        """Count what was trained in the period that followed, too."""
        self.n_samples += other.n_samples
        self.n_batches += other.n_batches
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.end_of_pass = other.end_of_pass

    def take_sums(self) -> "Period":
        """Samples and sums so far, which then count no more; the batches of the period still do."""
        taken = Period(n_samples=self.n_samples, sums=self.sums)
        self.n_samples, self.sums = 0, {}
        return taken


class OwnUpdates:
    """A worker's updates of one assignment, and what of them its master has not been told."""

    def __init__(self, shared: SharedWeights) -> None:
        self._shared = shared
        #: what was trained for them, and their staleness, since the master was told last
        self._made = Period()
        self._applied = StalenessStatistics()

    def make(self, rule: LocalRule, period: Period) -> Exchanged:
        """Do what the master would do about the update that ends `period`, and have `rule` adopt what comes of it."""
        shared = self._shared
        done = shared.exchange(rule.finish(), rule.answer, period.n_samples, period.base_version)
        if not done.is_full or shared.answers == "difference":  # else the weights come behind the fence
            rule.adopt(shared.answers, rule.answer)
        self._applied.record(period.base_version, period.base_version + done.staleness)
        if done.is_dropped:
            self._applied.drop()
        self._made.absorb(period)
        return done

    def tell(self, assignment: int) -> msg.PushUpdate:
        """All of them since the last time, for the master."""
        made, applied = self._made, self._applied
        self._made, self._applied = Period(), StalenessStatistics()
        return msg.PushUpdate(
            assignment=assignment,
            base_version=self._shared.version,
            n_samples=made.n_samples,
            n_batches=made.n_batches,
            sums=made.sums,
            end_of_pass=made.end_of_pass,
            applied=applied.to_json(),
        )
