import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.data.ragged import Ragged
from nnlo_opt.core.data.weights import check_sample_weights, class_tables, parse_class_weights
from tests.helpers.refusals import refusal


def test_weights_are_read_as_they_are_written():
    assert parse_class_weights(" balanced ") == "balanced"
    assert parse_class_weights("{0: 1, 1: 5.5, -1: 0}") == {0: 1.0, 1: 5.5, -1: 0.0}


@pytest.mark.parametrize(
    "text", ["", "Balanced", "{}", "[1]", "{'a': 1}", "{True: 1}", "{1.5: 1}", "{0: 1", "(" * 500, "1" * 5000]
)
def test_what_is_no_dictionary_of_classes_is_refused(text):
    assert "must be balanced, or a dictionary" in refusal(parse_class_weights, text)


@pytest.mark.parametrize("weight", ["-1", "'x'", "1e999", "None", "True"])
def test_a_weight_that_is_none_is_refused_with_its_class(weight):
    assert "for class 3" in refusal(parse_class_weights, f"{{2: 1, 3: {weight}}}")


def test_weights_that_are_all_0_are_refused():
    assert "above 0" in refusal(parse_class_weights, "{0: 0}")
    labels = np.array([0, 0, 1])
    assert "training samples" in refusal(class_tables, {0: 0.0}, labels, [np.arange(2)])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 2, 2, 1], np.int8),
        np.array([[0], [2], [2], [1]], np.uint8),
        np.eye(3, dtype=np.float32)[[0, 2, 2, 1]],
        [np.array([0.5, 1, 2, 3]), [np.array([0, 2, 2, 1])]],
        [Ragged(np.arange(4), np.ones(4, np.int64)), np.array([0, 2, 2, 1])],
    ],
)
def test_every_sample_has_the_weight_of_its_class_and_a_class_without_one_counts_1(labels):
    (table,) = class_tables({0: 3.0, 2: 0.5}, labels, [np.arange(4)])
    weights = table.of(labels)
    assert weights.dtype == np.float32
    assert weights.tolist() == [3, 0.5, 0.5, 1]


@given(st.lists(st.integers(-2, 3), min_size=1, max_size=40), st.data())
def test_balanced_classes_count_alike_and_samples_1_on_average(classes, data):
    labels = np.array(classes)
    train = np.array(sorted(data.draw(st.sets(st.integers(0, len(classes) - 1), min_size=1))))
    (table,) = class_tables("balanced", labels, [train])
    weights = table.of(labels)[train]
    assert weights.mean() == pytest.approx(1, rel=1e-5)
    totals = [weights[labels[train] == known].sum() for known in np.unique(labels[train])]
    assert totals == pytest.approx([totals[0]] * len(totals), rel=1e-5)


def test_each_fold_is_balanced_by_its_own_training_samples():
    first, second = class_tables("balanced", np.array([0, 0, 0, 1]), [np.array([0, 1]), np.array([2, 3])])
    assert first.of(np.array([0])).tolist() == [1]
    assert second.of(np.array([0, 1])).tolist() == [1, 1]
    assert first.of(np.array([1, -5, 7])).tolist() == [1, 1, 1]  # a class that the fold does not train


def test_classes_that_are_not_there_and_labels_that_are_no_classes():
    assert "Received: 7" in refusal(class_tables, {0: 1.0, 7: 1.0}, np.array([0, 1]), [np.arange(2)])
    assert "0, 1" in refusal(class_tables, {7: 1.0}, np.array([0, 1]), [np.arange(2)])
    assert "50 from 0 to 49" in refusal(class_tables, {77: 1.0}, np.arange(50), [np.arange(50)])
    assert "labels that are classes" in refusal(class_tables, "balanced", np.array([0.5, 1]), [np.arange(2)])


def test_weights_of_samples_are_finite_and_not_negative():
    assert check_sample_weights("w", np.array([True, False])).tolist() == [1, 0]
    assert check_sample_weights("w", np.zeros(2), some=True).dtype == np.float32
    for wrong in ([1, -1], [1, np.nan], [1, np.inf]):
        assert f"with {float(wrong[1])} for sample 1" in refusal(check_sample_weights, "w", np.array(wrong, float))
    assert "only 0" in refusal(check_sample_weights, "w", np.zeros(2))
    assert "text" in refusal(check_sample_weights, "w", np.array(["a"]))
