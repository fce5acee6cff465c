import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.data.folds import Fold, classes_of, make_folds, shard, single_fold
from tests.helpers.refusals import refusal

SEEDS = st.integers(0, 2**32)
CLASSES = st.lists(st.integers(-2, 3), min_size=2, max_size=60)


def check_partition(folds: list[Fold], n_samples: int) -> None:
    """Every sample validates exactly one fold and trains all others; none is empty."""
    everything = np.arange(n_samples)
    assert np.array_equal(np.sort(np.concatenate([fold.validation for fold in folds])), everything)
    for fold in folds:
        assert len(fold.validation) > 0
        assert len(fold.train) > 0
        assert np.array_equal(np.setdiff1d(everything, fold.validation), fold.train)
        assert fold.train.dtype == fold.validation.dtype == np.int64
        assert np.all(np.diff(fold.validation) > 0)


@given(st.integers(2, 60), st.data(), SEEDS)
def test_samples(n_samples: int, data: st.DataObject, seed: int) -> None:
    n_fold = data.draw(st.integers(2, n_samples))
    folds = make_folds(n_fold, n_samples=n_samples, seed=seed)
    check_partition(folds, n_samples)
    sizes = [len(fold.validation) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@given(CLASSES, st.data(), SEEDS)
def test_classes(classes: list[int], data: st.DataObject, seed: int) -> None:
    n_fold = data.draw(st.integers(2, len(classes)))
    labels = np.array(classes)
    folds = make_folds(n_fold, n_samples=len(classes), seed=seed, labels=labels)
    check_partition(folds, len(classes))
    for wanted in (labels == value for value in [*np.unique(labels)]):
        counts = [int(wanted[fold.validation].sum()) for fold in folds]
        assert max(counts) - min(counts) <= 1
    sizes = [len(fold.validation) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@given(CLASSES, st.data(), SEEDS)
def test_groups(groups: list[int], data: st.DataObject, seed: int) -> None:
    sizes_of_groups = np.unique(groups, return_counts=True)[1]
    if len(sizes_of_groups) < 2:
        return
    n_fold = data.draw(st.integers(2, len(sizes_of_groups)))
    folds = make_folds(n_fold, n_samples=len(groups), seed=seed, groups=np.array([f"g{group}" for group in groups]))
    check_partition(folds, len(groups))
    for fold in folds:
        assert not set(np.array(groups)[fold.train]) & set(np.array(groups)[fold.validation])
    sizes = [len(fold.validation) for fold in folds]
    assert max(sizes) - min(sizes) <= max(sizes_of_groups)


def test_the_seed_decides() -> None:
    def validation(seed: int, **by: np.ndarray) -> list[list[int]]:
        return [fold.validation.tolist() for fold in make_folds(3, n_samples=40, seed=seed, **by)]  # type: ignore[arg-type]

    for by in ({}, {"labels": np.arange(40) % 2}, {"groups": np.arange(40) // 2}):
        assert validation(1, **by) == validation(1, **by)
        assert validation(1, **by) != validation(2, **by)


def test_groups_of_equal_size_are_balanced() -> None:
    folds = make_folds(4, n_samples=80, seed=0, groups=np.repeat(np.arange(8), 10))
    assert [len(fold.validation) for fold in folds] == [20] * 4


@given(SEEDS)
def test_the_largest_groups_are_dealt_first(seed: int) -> None:
    groups = np.repeat(np.arange(5), [1, 2, 6, 2, 1])
    assert [len(fold.validation) for fold in make_folds(2, n_samples=12, seed=seed, groups=groups)] == [6, 6]


def test_labels_of_a_regression_are_no_classes() -> None:
    labels = np.linspace(0, 1, 10)
    assert len(make_folds(5, n_samples=10, seed=0, labels=labels)) == 5


def test_too_many_folds() -> None:
    refusal(make_folds, 4, n_samples=3, seed=0, says=["number of samples, 3. Received: 4"])
    refusal(make_folds, 3, n_samples=4, seed=0, groups=[0, 0, 1, 1], says=["number of groups"])
    with pytest.raises(ValueError, match="labels"):
        make_folds(2, n_samples=3, seed=0, labels=np.zeros(4, int))


def test_single_fold() -> None:
    fold = single_fold(3, 2)
    assert (fold.train.tolist(), fold.validation.tolist()) == ([0, 1, 2], [3, 4])


@pytest.mark.parametrize(
    "labels",
    [
        np.eye(3, dtype=np.float32)[[0, 2, 1, 2]],
        np.eye(3, dtype=np.uint8)[[0, 2, 1, 2]],
        np.array([0, 2, 1, 2]),
        np.array([[0], [2], [1], [2]], np.uint8),
    ],
)
def test_classes_are_recognised(labels: np.ndarray) -> None:
    classes = classes_of(labels)
    assert classes is not None
    assert classes.tolist() == [0, 2, 1, 2]
    assert classes.dtype == np.int64


def test_binary_labels_are_classes() -> None:
    for labels in (np.array([0.0, 1.0, 1.0]), np.array([[0.0], [1.0], [1.0]]), np.array([False, True, True])):
        assert np.array_equal(classes_of(labels), [0, 1, 1])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1.0, 2.0]),
        np.array([[0.5], [1.0]]),
        np.array([[1.0, 1.0], [0.0, 1.0]]),
        np.array([[0.3, 0.7]]),
        np.eye(4).reshape(4, 2, 2),
        np.array([0.0, np.nan]),
    ],
)
def test_other_labels_are_no_classes(labels: np.ndarray) -> None:
    assert classes_of(labels) is None


# ---------------------------------------------------------------- shards


@given(st.integers(1, 20), st.integers(0, 100))
def test_shards_are_all_samples_in_nearly_equal_parts(n_workers: int, surplus: int) -> None:
    indices = np.arange(n_workers + surplus) * 3
    shards = [shard(indices, n_workers, worker) for worker in range(n_workers)]
    assert np.array_equal(np.concatenate(shards), indices)
    sizes = [len(part) for part in shards]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_fewer_samples_than_workers() -> None:
    refusal(shard, np.arange(2), 3, 0, says=["2 samples for 3 workers"])


@pytest.mark.parametrize("worker", [-1, 3])
def test_a_worker_that_is_not_there(worker: int) -> None:
    with pytest.raises(ValueError, match="worker"):
        shard(np.arange(9), 3, worker)
