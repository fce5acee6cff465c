import numpy as np
import pytest

from nnlo_opt.comm.messages import StartFold
from nnlo_opt.config import TrainingOptions
from nnlo_opt.data.folds import make_folds, single_fold
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.testing.linear_model import LinearAdapter
from nnlo_opt.testing.memory_source import numbered_source
from nnlo_opt.training.task import FoldTaskFactory


class CountingSource:
    """Counts what is read."""

    def __init__(self, source):
        self._source = source
        self.info = source.info
        self.reads = []

    def read(self, indices):
        self.reads.append(list(indices))
        return self._source.read(indices)


def start(trial=0, fold=0, worker=1, n_workers=1, **point):
    return StartFold(assignment=0, trial=trial, fold=fold, point=point, worker=worker, n_workers=n_workers)


class Bench:
    def __init__(self, folds, n_samples, seed=0, **options):
        self.source = CountingSource(numbered_source(n_samples))
        self.built = []
        self.n_released = 0
        self.factory = FoldTaskFactory(
            self._build, self._release, self.source, folds, TrainingOptions(batch=4, **options), seed
        )

    def _build(self, parameters, options, seed):
        self.built.append((parameters, options, seed))
        return LinearAdapter(1, seed)

    def _release(self):
        self.n_released += 1


def labels_of_a_pass(task):
    labels, end = [], False
    while not end:
        batch = task.stream.next()
        labels.extend(int(y) for y in batch.y)
        end = batch.end_of_pass
    return labels


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_the_tasks_of_all_workers_are_the_fold(n_workers):
    bench = Bench([single_fold(11, 5)], 16)
    tasks = [bench.factory.open(start(worker=worker, n_workers=n_workers)) for worker in range(1, n_workers + 1)]
    assert sorted(label for task in tasks for label in labels_of_a_pass(task)) == list(range(11))
    assert [int(y) for task in tasks for y in task.y_validation] == list(range(11, 16))
    assert {(task.n_train, task.n_validation) for task in tasks} == {(11, 5)}
    assert sum(task.n_shard for task in tasks) == 11
    assert max(task.n_shard for task in tasks) - min(task.n_shard for task in tasks) <= 1


def test_fewer_training_samples_than_workers_are_refused_but_fewer_validation_samples_are_not():
    bench = Bench([single_fold(3, 1)], 4)
    assert [len(bench.factory.open(start(worker=w, n_workers=3)).x_validation) for w in (1, 2, 3)] == [0, 0, 1]
    with pytest.raises(ConfigurationError, match="3 samples for 4 workers"):
        bench.factory.open(start(worker=1, n_workers=4))


def test_validation_batches_are_all_samples_in_order_in_batches_no_smaller_than_need_be():
    bench = Bench([single_fold(1, 300)], 301)
    batches = list(bench.factory.open(start()).validation_batches())
    assert [len(x) for x, _ in batches] == [128, 128, 44]
    assert [int(label) for _, y in batches for label in y] == list(range(1, 301))


def test_the_point_is_divided_between_the_model_and_the_options():
    bench = Bench([single_fold(8, 0)], 8)
    task = bench.factory.open(start(units=3, **{"train.batch": 5}))
    ((parameters, options, _),) = bench.built
    assert parameters == {"units": 3}
    assert options.batch == task.options.batch == 5
    assert len(task.stream.next().x) == 5


def test_initial_weights_depend_on_seed_trial_and_fold_and_on_nothing_else():
    folds = make_folds(2, n_samples=12, seed=0)

    def model_seed(seed=0, **of_start):
        bench = Bench(folds, 12, seed)
        bench.factory.open(start(**of_start))
        return bench.built[0][2]

    base = model_seed()
    assert base == model_seed(worker=3, n_workers=4) == model_seed(units=9)
    assert len({base, model_seed(seed=1), model_seed(trial=1), model_seed(fold=1)}) == 4
    assert 0 <= base < 2**31


def test_the_order_of_samples_differs_between_trials_folds_and_seeds_and_repeats_for_the_same():
    folds = [single_fold(40, 0)] * 2

    def order(seed=0, **of_start):
        return tuple(labels_of_a_pass(Bench(folds, 40, seed).factory.open(start(**of_start))))

    assert order() == order()
    assert len({order(), order(seed=1), order(trial=1), order(fold=1)}) == 4


def test_without_shuffling_samples_come_as_they_are_stored():
    bench = Bench([single_fold(9, 0)], 9, shuffle=False)
    assert labels_of_a_pass(bench.factory.open(start())) == list(range(9))


def test_samples_are_read_once_for_trials_on_the_same_shard_and_only_one_fold_is_kept():
    bench = Bench(make_folds(2, n_samples=12, seed=0), 12)
    for trial in range(3):
        bench.factory.open(start(trial=trial, fold=0, worker=1, n_workers=2))
    assert len(bench.source.reads) == 2
    bench.factory.open(start(fold=1, worker=1, n_workers=2))
    assert len(bench.source.reads) == 4
    bench.factory.open(start(fold=0, worker=1, n_workers=2))
    assert len(bench.source.reads) == 6
    bench.factory.open(start(fold=0, worker=1, n_workers=3))
    assert len(bench.source.reads) == 8


def test_closing_releases_the_model():
    bench = Bench([single_fold(4, 0)], 4)
    bench.factory.open(start())
    bench.factory.close()
    assert bench.n_released == 1


def test_training_does_not_write_into_the_samples_that_are_kept():
    bench = Bench([single_fold(8, 0)], 8)
    first = labels_of_a_pass(bench.factory.open(start()))
    assert np.array_equal(first, labels_of_a_pass(bench.factory.open(start())))
