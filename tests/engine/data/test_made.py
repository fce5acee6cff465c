"""Samples that a model module returns, and the refusal of what has no index."""

import sys
from types import ModuleType

import numpy as np
import pytest

from nnlo_opt.core.base.trees import leaves
from nnlo_opt.engine.data.made import WEIGHTS, made_of
from tests.helpers.refusals import check_refused

FINITE = ("features", "labels")
X, Y = np.arange(12.0).reshape(6, 2), np.arange(6) % 3


def made(value, finite=FINITE):
    return made_of(value, "`get_train` of m.py", finite)


def test_arrays_are_read_as_data_files_are():
    found = made((X, Y))
    x, y = found.source.read(np.array([1, 4]))
    np.testing.assert_array_equal(x, X[[1, 4]].astype(np.float32))
    assert (x.dtype, y.tolist(), y.dtype) == (np.float32, [1, 1], Y.dtype)
    assert (found.kind, found.has_weights) == ("arrays", False)
    assert made((X, Y, np.ones(6))).source.read_column(WEIGHTS).tolist() == [1] * 6


def test_lists_and_dictionaries_are_several_inputs_or_outputs():
    found = made(([X, Y], {"b": Y, "a": X}))
    assert found.source.info.feature_shape == [(2,), ()]
    assert found.source.info.label_shape == [(2,), ()]
    assert (found.source.info.feature_names, found.source.info.label_names) == ((), ("a", "b"))
    assert found.kind == "arrays, labels in the order a, b"


def test_an_array_on_disk_is_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", X)
    found = made((np.load(tmp_path / "x.npy", mmap_mode="r"), Y))
    (leaf,) = leaves(found.source._x)
    assert not leaf.flags.owndata
    assert found.fingerprint == made((X, Y)).fingerprint
    np.testing.assert_array_equal(found.source.read(np.array([5]))[0], X[5:])


def test_the_fingerprint_is_of_values_types_and_shapes():
    known = made((X, Y)).fingerprint
    assert made((X.copy(order="F"), Y.copy())).fingerprint == known
    others = [(X + 1, Y), (X, Y[::-1]), (X.astype(np.float32), Y), (X.reshape(6, 2, 1), Y), (X, Y, np.ones(6))]
    assert len({known, *(made(other).fingerprint for other in others)}) == 6


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "Received: None. Correct the module."),
        (3, "Received: 3. Correct the module."),
        ([], r"Received: []. Correct the module."),
        (["a", 3], "Received: ['a', 3]. Correct the module."),
        (X, "Received: ndarray of shape (6, 2). Return a tuple of features and labels."),
        ({"x": X}, "Received: a dict of ndarray of shape (6, 2). Return a tuple of features and labels."),
        ([X] * 6, "a list of " + "ndarray of shape (6, 2), " * 4 + "…"),
        ((X, Y[1:]), "All arrays must have one row for each sample"),
        ((X[:0], Y[:0]), "and at least one"),
        ((X, [0, 1, 2]), "Make arrays of them, by `numpy.asarray`"),
        ((X, np.array(list("abcdef"))), "Received: values of type <U1. Encode them as numbers."),
        ((X, Y, -np.ones(6)), "must be finite, at least 0, and not all 0"),
        ((X, Y, np.ones((6, 1))), "one array with a number for each sample"),
        ((np.where(X == 5, np.nan, X), Y), "among the features of `get_train` of m.py, first in sample 2."),
    ],
)
def test_values_that_hold_no_samples(value, words):
    check_refused(words, made, value)


def test_labels_may_be_anything_if_the_loss_is_the_users():
    y = np.full(6, np.nan)
    check_refused("among the labels", made, (X, y))
    made((X, y), ("features",))


def fake(package, name):
    module = ModuleType(package)
    return type(name, (), {"__module__": module.__name__})()


@pytest.mark.parametrize(
    ("package", "name", "lines"),
    [
        (
            "pandas.core.frame",
            "DataFrame",
            ['y = frame.pop("label").to_numpy()', 'return frame.to_numpy("float32"), y'],
        ),
        ("tensorflow.python.data", "DatasetV2", ["x, y = zip(*data.unbatch().as_numpy_iterator())"]),
        ("torch.utils.data.dataloader", "DataLoader", ["loader", "return "]),
        ("torch.utils.data.dataset", "IterableDataset", ["x, y = zip(*data)", "return numpy.stack"]),
    ],
)
def test_what_has_no_index_is_refused_with_the_lines_that_make_it_one(package, name, lines):
    for value in (fake(package, name), (fake(package, name), Y)):
        for line in lines:
            assert line in check_refused("Write `", made, value)


def test_a_generator_is_refused_with_the_lines_that_make_it_arrays():
    words = "Received: generator. Write `x, y = zip(*batches)  # if they end` and `return numpy.concatenate(x), "
    check_refused(words, made, (batch for batch in [(X, Y)]))


@pytest.mark.needs("pandas")
def test_the_lines_of_a_data_frame_are_right():
    import pandas

    frame = pandas.DataFrame({"a": X[:, 0], "label": Y})
    sentence = check_refused("Write `", made, frame)
    names = {"frame": frame}
    exec("def get_train(frame):\n " + "\n ".join(sentence.split("`")[-4::2]), names)
    assert made(names["get_train"](frame)).source.info.n_samples == 6
    assert "pandas" in sys.modules
