"""Rounds of workers that wait for each other: whose updates are to come together."""

from collections.abc import Iterable


class SynchronousRounds:
    """The rounds of one epoch, in which every worker passes over its shard once."""

    def __init__(self, workers: Iterable[int]) -> None:
        #: workers that still train in this epoch
        self.training = set(workers)
        #: of these, whose update of the round under way has come
        self._here: set[int] = set()
        #: of these again, whose update was their last of the epoch
        self._through: set[int] = set()

    def take(self, worker: int, *, is_last: bool) -> tuple[int, ...]:
        """The update of `worker` has come; -> whose updates make the round, ascending: empty until it is complete."""
        self._here.add(worker)
        if is_last:
            self._through.add(worker)
        if self._here != self.training:
            return ()
        complete = tuple(sorted(self._here))
        self.training -= self._through
        self._here.clear()
        self._through.clear()
        return complete
