"""How old the weights behind an update are: measured for every update, never guessed."""

from collections.abc import Mapping

from nnlo_opt.errors import ProtocolError


class StalenessStatistics:
    """Counts of staleness, the number of versions the central weights moved on while an update was computed."""

    def __init__(self, histogram: Mapping[int, int] | None = None) -> None:
        #: staleness -> number of updates; only staleness that occurred
        self._histogram: dict[int, int] = dict(histogram or {})

    def record(self, base_version: int, version: int) -> int:
        """Count an update computed at `base_version` that meets the central weights at `version`; its staleness."""
        staleness = version - base_version
        if staleness < 0:
            raise ProtocolError(f"An update from version {base_version} met the central weights at version {version}.")
        self._histogram[staleness] = self._histogram.get(staleness, 0) + 1
        return staleness

    @property
    def histogram(self) -> dict[int, int]:
        """Staleness -> number of updates, smallest staleness first."""
        return dict(sorted(self._histogram.items()))

    @property
    def n_updates(self) -> int:
        return sum(self._histogram.values())

    @property
    def mean(self) -> float:
        """Mean staleness, in versions; 0.0 before the first update."""
        total = sum(staleness * count for staleness, count in self._histogram.items())
        return total / max(1, self.n_updates)

    @property
    def max(self) -> int:
        """The largest staleness; 0 before the first update."""
        return max(self._histogram, default=0)

    def to_json(self) -> dict[str, int]:
        """The histogram with text keys, as JSON wants them."""
        return {str(staleness): count for staleness, count in self.histogram.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> "StalenessStatistics":
        return cls({int(staleness): count for staleness, count in data.items()})
