"""Data for linear models, and what the workers of a team compute on them without any team."""

from typing import NamedTuple

import numpy as np

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import Fold, single_fold
from nnlo_opt.core.data.source import DataSource
from nnlo_opt.core.update_rules.layers import layers_of
from tests.helpers.loopback_team import linear_tasks
from tests.helpers.memory_source import linear_source


class Data(NamedTuple):
    """Samples with their only fold."""

    source: DataSource
    folds: list[Fold]


def data_of(n_train, n_validation, n_features=4):
    return Data(linear_source(n_train + n_validation, n_features), [single_fold(n_train, n_validation)])


N_TRAIN, N_VALIDATION, N_FEATURES, BATCH, EPOCHS, RATE = 26, 7, 4, 4, 3, 0.05
#: arrays of the model
LAYERS = [("kernel", (N_FEATURES,)), ("bias", (1,))]
SMALL = data_of(N_TRAIN, N_VALIDATION, N_FEATURES)
#: samples of the batches of a pass of one worker
SIZES = [4, 4, 4, 4, 4, 4, 2]


def factor_of(options, n_before, n_after, n_train=N_TRAIN):
    """What multiplies the learning rate of an update from the one to the other number of samples."""
    return options.schedule.factor((n_before + n_after) / 2 / n_train, options.epochs)


class Serial:
    """The batches and gradients of one worker."""

    def __init__(self, options, worker=1, n_workers=1, data=SMALL):
        start = msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=worker, n_workers=n_workers)
        task = linear_tasks(*data, options)().open(start)
        self.stream, self.model = task.stream, task.adapter
        self._options, self._n_train = options, task.n_train
        #: samples so far, and what multiplies the learning rate of a step along the last gradient
        self.n_samples, self.factor = 0, 1.0
        self.model.read_weights(initial := np.empty(self.model.n_weights, np.float32))
        self.initial = initial

    def gradient_at(self, weights):
        """Number of samples and gradient of the next batch."""
        batch = self.stream.next()
        n_before, self.n_samples = self.n_samples, self.n_samples + len(batch.y)
        self.factor = factor_of(self._options, n_before, self.n_samples, self._n_train)
        self.model.write_weights(weights)
        self.model.gradient(batch.x, batch.y, out := np.empty_like(weights))
        return len(batch.y), out


def serial_trajectory(options, n_workers=1, data=SMALL):
    """Weights before the first step and after each, along the gradients of the union of the workers' batches.

    A worker at the end of its shard waits for the others; each step has the learning rate of its middle.
    """
    workers = [Serial(options, worker, n_workers, data) for worker in range(1, n_workers + 1)]
    model, weights, n_before = workers[0].model, workers[0].initial.copy(), 0
    optimizer, layers = options.rule.optimizer(options, model.n_weights), layers_of(LAYERS)
    optimizer.take_layers(layers)
    clipping = options.clipping(layers)
    rate, trajectory, gradient = optimizer.learning_rate, [weights.copy()], np.empty_like(weights)
    for _ in range(options.epochs):
        still = workers
        while still:
            batches = [worker.stream.next() for worker in still]
            x, y = (np.concatenate([getattr(batch, part) for batch in batches]) for part in ("x", "y"))
            model.write_weights(weights)
            model.gradient(x, y, gradient)
            optimizer.learning_rate = rate * factor_of(options, n_before, n_before + len(y), len(data.folds[0].train))
            if clipping is not None:
                clipping.clip(gradient)
            optimizer.apply(weights, gradient)
            trajectory.append(weights.copy())
            n_before += len(y)
            still = [worker for worker, batch in zip(still, batches, strict=True) if not batch.end_of_pass]
    return trajectory
