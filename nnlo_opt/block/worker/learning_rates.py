"""The learning rates of the steps that a worker makes itself."""

from nnlo_opt.training.schedules import LearningRateSchedule


class LearningRates:
    """What those of an assignment are multiplied by, as schedule and callbacks have it."""

    def __init__(self, schedule: LearningRateSchedule, n_train: int, epochs: int) -> None:
        """`n_train`: training samples of all workers, which are an epoch; `epochs`: of the whole training."""
        self._schedule = schedule
        self._n_train, self._epochs = n_train, epochs
        #: what the callbacks of worker 1 want; 1 as long as they have not been heard
        self._of_callbacks = 1.0
        #: whether the factor may be another than 1; never false again
        self.vary = schedule.changes

    def take_wish(self, factor: float) -> None:
        """Take what the callbacks want."""
        self._of_callbacks, self.vary = factor, True

    def factor(self, before: int, after: int) -> float:
        """In an update that takes the samples trained by all workers from one number to the other."""
        return self._schedule.factor_of_update(before, after, self._n_train, self._epochs) * self._of_callbacks
