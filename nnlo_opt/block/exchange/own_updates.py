"""What a worker trains between two updates, and the updates that it makes itself in shared central weights."""

from dataclasses import dataclass, field

from nnlo_opt.block.exchange.shared_weights import Exchanged, SharedWeights
from nnlo_opt.block.local import LocalRule
from nnlo_opt.comm import messages as msg
from nnlo_opt.models.adapter import Metrics
from nnlo_opt.update_rules.staleness import StalenessStatistics


@dataclass(slots=True)
class Period:
    """What a worker trains between two updates."""

    n_samples: int = 0
    n_batches: int = 0
    #: version of the central weights at the first batch
    base_version: int = 0
    #: whether it was ended by the end of a pass
    end_of_pass: bool = False

    def restart(self) -> None:
        """Begin the next one."""
        self.n_samples = self.n_batches = 0
        self.end_of_pass = False


@dataclass(slots=True)
class Trained:
    """Figures of some batches."""

    n_samples: int = 0
    n_batches: int = 0
    #: sums over the samples
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Metrics) -> None:
        """Count a batch, too."""
        self.n_samples += metrics.n_samples
        self.n_batches += 1
        sums = self.sums
        for name, value in metrics.sums.items():
            sums[name] = sums.get(name, 0.0) + value

    def take(self) -> "Trained":
        """All that was counted, which then counts no more."""
        taken = Trained(self.n_samples, self.n_batches, self.sums)
        self.n_samples, self.n_batches, self.sums = 0, 0, {}
        return taken


class OwnUpdates:
    """A worker's updates of one assignment, and what of them its master has not been told."""

    def __init__(self, shared: SharedWeights) -> None:
        self._shared = shared
        #: their staleness, since the master was told last
        self._applied = StalenessStatistics()
        self._end_of_pass = False

    @property
    def are_enough(self) -> bool:
        """Whether all workers together have trained what they were to: there is only one to be made."""
        return self._shared.is_trained

    def make(self, rule: LocalRule, period: Period) -> Exchanged:
        """Do what the master would do about the update that ends `period`, and have `rule` adopt what comes of it."""
        shared, base_version = self._shared, period.base_version
        done = shared.exchange(rule.finish(), rule.answer, period.n_samples, base_version)
        if not done.is_full or shared.answers == "difference":  # else the weights come behind the fence
            rule.adopt(shared.answers, rule.answer)
        self._applied.record(base_version, base_version + done.staleness)
        if done.is_dropped:
            self._applied.drop()
        self._end_of_pass = period.end_of_pass
        return done

    def tell(self, assignment: int, trained: Trained) -> msg.PushUpdate:
        """All of them since the last time, for the master; `trained`: all batches behind them."""
        applied, self._applied = self._applied, StalenessStatistics()
        return msg.PushUpdate(
            assignment=assignment,
            base_version=self._shared.version,
            n_samples=trained.n_samples,
            n_batches=trained.n_batches,
            sums=trained.sums,
            end_of_pass=self._end_of_pass,
            applied=applied.to_json(),
        )
