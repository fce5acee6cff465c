import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.training.history import FoldHistory, Metrics


def test_means_are_over_samples_and_not_over_workers_or_updates():
    history = FoldHistory()
    history.add_training(1, 30, {"loss": 60.0, "acc": 15.0})
    history.add_training(2, 10, {"loss": 100.0, "acc": 10.0})
    history.add_training(1, 10, {"loss": 40.0, "acc": 0.0})
    history.add_validation(1, 2, {"loss": 1.0})
    history.add_validation(2, 3, {"loss": 9.0})
    assert history.end_epoch() == {"loss": 4.0, "acc": 0.5, "val_loss": 2.0}
    assert history.workers == {1: {"loss": [2.5], "acc": [0.375]}, 2: {"loss": [10.0], "acc": [1.0]}}


def test_the_load_of_a_worker_is_kept_beside_its_means_one_value_an_epoch():
    history = FoldHistory()
    for used in (90.0, 110.0):
        history.add_training(1, 1, {"loss": 2.0})
        history.add_load(1, {"cpu_percent": used})
        history.end_epoch()
    assert history.workers == {1: {"loss": [2.0, 2.0], "cpu_percent": [90.0, 110.0]}}
    assert history.epochs == [{"loss": 2.0}, {"loss": 2.0}]


def test_an_epoch_begins_with_nothing_of_the_last():
    history = FoldHistory()
    history.add_training(1, 1, {"loss": 100.0})
    history.add_validation(1, 1, {"loss": 100.0})
    history.add_load(2, {"cpu_percent": 90.0})
    history.end_epoch()
    history.add_training(1, 2, {"loss": 2.0})
    assert history.end_epoch() == {"loss": 1.0}
    assert history.workers == {1: {"loss": [100.0, 1.0]}, 2: {"cpu_percent": [90.0]}}
    assert history.n_epochs == 2
    assert history.values("loss") == [100.0, 1.0]
    assert history.epochs[0] == {"loss": 100.0, "val_loss": 100.0}


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_worker_without_validation_samples_changes_no_mean(position):
    history = FoldHistory()
    history.add_training(1, 1, {"loss": 0.0})
    parts = [(2, {"loss": 6.0}), (1, {"loss": 3.0})]
    parts.insert(position, (0, {}))
    for worker, (n_samples, sums) in enumerate(parts, 1):
        history.add_validation(worker, n_samples, sums)
    assert history.end_epoch()["val_loss"] == 3.0


def test_states_are_added_in_float64_and_in_the_order_of_workers():
    values = [1e16, 1.0, -1e16]
    for order in ([1, 2, 3], [3, 1, 2]):
        history = FoldHistory()
        for worker in order:
            history.add_validation(worker, 1, {"loss": 0.0}, {"auc": [values[worker - 1], 2.0]})
        assert history.validation_states() == {"auc": [sum(values), 6.0]}
    one = Metrics(1, {}, {"auc": [1.0]})
    with pytest.raises(ValueError, match="the same figures"):
        one.merge(Metrics(1, {}, {"acu": [1.0]}))


def test_states_of_training_samples_are_merged_and_survive_within_an_epoch():
    history = FoldHistory()
    for worker, value in ((2, 1.0), (1, 1e16), (2, -1e16)):
        history.add_training(worker, 1, {"loss": 0.0})
        history.add_training_states(worker, {"auc": [value, 2.0]})
    assert FoldHistory().training_states() == {}
    again = FoldHistory()
    again.resume_epoch(json.loads(json.dumps(history.epoch_under_way())))
    assert again.training_states() == history.training_states() == {"auc": [1e16 + (1.0 - 1e16), 6.0]}
    assert again.end_epoch({}, {"auc": 0.5}) == {"loss": 0.0, "auc": 0.5}
    assert again.training_states() == {}
    again.resume_epoch({"1": [3, {"loss": 6.0}]})  # of a version without states
    assert again.end_epoch() == {"loss": 2.0}


def test_without_validated_samples_there_is_no_validation_metric():
    history = FoldHistory()
    history.add_training(1, 1, {"loss": 0.0})
    history.add_validation(1, 0, {})
    assert history.end_epoch() == {"loss": 0.0}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.floats(-1e6, 1e6)), min_size=1), st.randoms())
def test_the_order_in_which_workers_answer_does_not_change_a_bit(parts, random):
    # The parts of one worker keep their order, as a transport keeps it.
    queues = {worker: [part for part in parts if part[0] == worker] for worker, _, _ in parts}
    straight, mixed = FoldHistory(), FoldHistory()
    for worker in sorted(queues):
        for _, n_samples, loss in queues[worker]:
            straight.add_training(worker, n_samples, {"loss": loss})
            straight.add_validation(worker, n_samples, {"loss": loss})
    while queues:
        worker = random.choice(sorted(queues))
        _, n_samples, loss = queues[worker].pop(0)
        mixed.add_training(worker, n_samples, {"loss": loss})
        mixed.add_validation(worker, n_samples, {"loss": loss})
        if not queues[worker]:
            del queues[worker]
    assert straight.end_epoch() == mixed.end_epoch()
    assert straight.to_json() == mixed.to_json()


def test_a_history_comes_back_from_json():
    history = FoldHistory()
    for epoch in range(3):
        history.add_training(2, 3, {"loss": 0.1 + epoch})
        history.add_validation(1, 7, {"loss": 0.3})
        history.end_epoch()
    again = FoldHistory.from_json(json.loads(json.dumps(history.to_json())))
    assert (again.epochs, again.workers, again.n_epochs) == (history.epochs, history.workers, 3)
    again.add_training(2, 1, {"loss": 5.0})
    assert again.end_epoch() == {"loss": 5.0}
    assert again.workers[2]["loss"][-1] == 5.0
