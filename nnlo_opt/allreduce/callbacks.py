"""Horovod's callbacks for `model.fit`, under Horovod's names."""

import sys

import nnlo_opt.allreduce as hvd
from nnlo_opt.models.averaging_callbacks import Broadcast, MetricAverage, WarmUp


class BroadcastGlobalVariablesCallback(Broadcast):
    """Callback that gives all ranks the weights of rank `root_rank` before the first batch.

    It also lets `hvd.DistributedOptimizer` know the samples of every batch.

    Args:
        root_rank: rank whose weights, moving statistics and optimizer are taken.
        device: without effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__(lambda array: hvd.broadcast(array, root_rank))


class MetricAverageCallback(MetricAverage):
    """Callback that averages the metrics of an epoch over all ranks; it must stand before callbacks that use them."""

    def __init__(self, device: str = "") -> None:
        super().__init__(hvd.allreduce)


class LearningRateWarmupCallback(WarmUp):
    """Callback that raises the learning rate during the first epochs from `initial_lr / hvd.size()` to `initial_lr`.

    Args:
        initial_lr: learning rate after the warm-up.
        warmup_epochs: epochs of the warm-up.
        momentum_correction: True if velocities of SGD change with the learning rate.
        steps_per_epoch: batches of an epoch, if Keras does not know.
        verbose: 1 to say when the warm-up is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            hvd.size(),
            n_epochs=warmup_epochs,
            steps_per_epoch=steps_per_epoch,
            corrects_momentum=momentum_correction,
            say=sys.stdout.write if verbose and hvd.rank() == 0 else None,
        )
