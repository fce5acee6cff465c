import threading
from unittest.mock import Mock

import numpy as np
import pytest

from nnlo_opt.app.run.workload.fold_tasks import Feeding
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.comm.messages import StartFold
from nnlo_opt.core.data import order
from nnlo_opt.core.data.folds import make_folds, single_fold
from nnlo_opt.core.data.weights import class_tables
from nnlo_opt.core.training.options import TrainingOptions
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.loopback_team import BuiltTasks
from tests.helpers.memory_source import ArraySource, numbered_source
from tests.helpers.refusals import check_refused


class CountingSource:
    """Counts what is read."""

    def __init__(self, source):
        self._source = source
        self.info = source.info
        self.reads = []

    def read(self, indices):
        self.reads.append(list(indices))
        return self._source.read(indices)

    def read_column(self, name, indices=None):
        return self._source.read_column(name, indices)


def start(trial=0, fold=0, worker=1, n_workers=1, **point):
    return StartFold(assignment=0, trial=trial, fold=fold, point=point, worker=worker, n_workers=n_workers)


class Bench:
    def __init__(self, folds, n_samples, seed=0, source=None, feeding=None, **options):
        self.source = CountingSource(source or numbered_source(n_samples))
        self.built = []
        self.n_released = 0
        given = {"folds": folds, "options": TrainingOptions(batch=4, **options), "seed": seed}
        given |= {} if feeding is None else {"feeding": feeding}
        self.factory = BuiltTasks(build=self._build, release=self._release, source=self.source, **given)

    def _build(self, parameters, options, seed):
        self.built.append((parameters, options, seed))
        return LinearAdapter(1, seed)

    def _release(self):
        self.n_released += 1


def batches_of_a_pass(task):
    end = False
    while not end:
        batch = task.stream.next()
        yield batch
        end = batch.end_of_pass


def labels_of_a_pass(task):
    return [int(y) for batch in batches_of_a_pass(task) for y in batch.y]


def validation_labels(task):
    return [int(y) for _, labels in task.validation_batches() for y in labels]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_the_tasks_of_all_workers_are_the_fold(n_workers):
    bench = Bench([single_fold(11, 5)], 16)
    tasks = [bench.factory.open(start(worker=worker, n_workers=n_workers)) for worker in range(1, n_workers + 1)]
    assert sorted(label for task in tasks for label in labels_of_a_pass(task)) == list(range(11))
    assert [label for task in tasks for label in validation_labels(task)] == list(range(11, 16))
    assert {(task.n_train, task.n_validation) for task in tasks} == {(11, 5)}
    assert sum(task.n_shard for task in tasks) == 11
    assert max(task.n_shard for task in tasks) - min(task.n_shard for task in tasks) <= 1


def test_fewer_training_samples_than_workers_are_refused_but_fewer_validation_samples_are_not():
    bench = Bench([single_fold(3, 1)], 4)
    assert [len(validation_labels(bench.factory.open(start(worker=w, n_workers=3)))) for w in (1, 2, 3)] == [0, 0, 1]
    check_refused("3 samples for 4 workers", bench.factory.open, start(worker=1, n_workers=4))


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

    def order_of(seed=0, **of_start):
        return tuple(labels_of_a_pass(Bench(folds, 40, seed).factory.open(start(**of_start))))

    assert order_of() == order_of()
    assert len({order_of(), order_of(seed=1), order_of(trial=1), order_of(fold=1)}) == 4


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
    for batch in batches_of_a_pass(bench.factory.open(start())):
        batch.x[...] = batch.y[...] = -1  # as a model may that works in place
    assert labels_of_a_pass(bench.factory.open(start())) == first
    assert first != [-1] * 8


# ---------------------------------------------------------------- more samples than memory


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 8 samples in 4 blocks of 2, of samples of 8 bytes."""
    monkeypatch.setattr(order, "WINDOW_BYTES", 64)
    monkeypatch.setattr(order, "BLOCK_BYTES", 16)


def bench_with(feeding, n_samples=40, n_train=30, **options):
    return Bench([single_fold(n_train, n_samples - n_train)], n_samples, feeding=feeding, **options)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("n_ahead", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_does_not_fit_comes_in_the_same_order_as_if_it_did(n_ahead, shuffle):
    streamed = bench_with(Feeding(memory_bytes=0, n_ahead=n_ahead), shuffle=shuffle)
    held = bench_with(Feeding(memory_bytes=1 << 20), shuffle=shuffle)
    for trial in range(2):
        task, same = streamed.factory.open(start(trial=trial)), held.factory.open(start(trial=trial))
        for number in range(3):
            labels = labels_of_a_pass(task)
            assert labels == labels_of_a_pass(same)
            assert sorted(labels) == list(range(30))
            assert validation_labels(task) == validation_labels(same) == list(range(30, 40))
            assert task.stream.position == same.stream.position == (number + 1, 0)
    streamed.factory.close()
    assert len(held.source.reads) == 2
    assert len(streamed.source.reads) > 12
    assert max(map(len, streamed.source.reads)) <= 128


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_samples_gathered_ahead_are_the_same_in_the_same_order(memory_bytes):
    before = threading.active_count()
    gathered = bench_with(Feeding(memory_bytes=memory_bytes, n_ahead=0, gathers_ahead=True))
    plain = bench_with(Feeding(memory_bytes=memory_bytes, n_ahead=0))
    task, same = gathered.factory.open(start()), plain.factory.open(start())
    for _ in range(3):
        assert labels_of_a_pass(task) == labels_of_a_pass(same)
        assert task.stream.position == same.stream.position
    assert threading.active_count() == before + 1
    gathered.factory.close()
    assert threading.active_count() == before


def test_samples_in_their_own_order_are_not_gathered():
    before = threading.active_count()
    bench = bench_with(Feeding(gathers_ahead=True), shuffle=False)
    assert labels_of_a_pass(bench.factory.open(start())) == list(range(30))
    assert threading.active_count() == before


@pytest.mark.usefixtures("small_windows")
def test_the_thread_that_reads_ahead_ends_with_the_task():
    bench = bench_with(Feeding(memory_bytes=0))
    before = threading.active_count()
    task = bench.factory.open(start())
    task.stream.next()
    assert threading.active_count() == before + 1
    bench.factory.close()
    assert threading.active_count() == before
    bench.factory.open(start()).stream.next()
    bench.factory.open(start(trial=1)).stream.next()
    assert threading.active_count() == before + 1
    bench.factory.close()
    assert threading.active_count() == before


@pytest.mark.usefixtures("small_windows")
def test_what_cannot_be_read_fails_the_batch_that_needs_it():
    bench = bench_with(Feeding(memory_bytes=0))
    task = bench.factory.open(start())
    task.stream.next()
    bench.source.read = Mock(side_effect=TrialError("the disk is gone"))
    with pytest.raises(TrialError, match="the disk is gone"):
        labels_of_a_pass(task)
    bench.factory.close()


@pytest.mark.usefixtures("small_windows")
def test_a_shard_that_fits_and_a_shard_of_one_window_are_read_once():
    bench = bench_with(Feeding(memory_bytes=0), n_samples=8, n_train=8)
    labels_of_a_pass(bench.factory.open(start()))
    assert len(bench.source.reads) == 2
    bench = bench_with(Feeding(memory_bytes=30 * 8 + 10 * 8))
    labels_of_a_pass(bench.factory.open(start()))
    assert len(bench.source.reads) == 2


# ---------------------------------------------------------------- weights


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_weights_of_classes_and_of_samples_multiply(memory_bytes):
    own = np.arange(40) / 8
    source = ArraySource(np.zeros((40, 1)), np.arange(40) % 2, {"w": own, "x": np.arange(40)})
    (table,) = class_tables({1: 3.0}, source.read_labels(), [np.arange(30)])
    for tables, name in (([table], None), (None, "w"), ([table], "w")):
        bench = bench_with(
            Feeding(memory_bytes=memory_bytes, class_tables=tables, sample_weights_name=name), source=source
        )
        task = bench.factory.open(start())
        total = 0.0
        for batch in batches_of_a_pass(task):
            assert batch.weights.dtype == np.float32
            total += batch.weights.sum()
        bench.factory.close()
        expected = (np.where(np.arange(30) % 2, 3, 1) if tables else 1) * (own[:30] if name else np.ones(30))
        assert total == pytest.approx(expected.sum())


def test_without_weights_there_are_none():
    assert bench_with(Feeding()).factory.open(start()).stream.next().weights is None
