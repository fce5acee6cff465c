"""Samples that a model module returns, and the refusal of what has no index."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.trees import leaves
from nnlo_opt.core.data.batches import BatchStream, Samples, WindowsInMemory
from nnlo_opt.core.data.order import Order
from nnlo_opt.engine.data.indexed import ItemStream
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
        ((X, np.array(list("abcdef"))), "Received: values of type <U1. Encode text as numbers, "),
        ((X, Y, -np.ones(6)), "must be finite, at least 0, and not all 0"),
        ((X, Y, np.ones((6, 1))), "one array with a number for each sample"),
        ((np.where(X == 5, np.nan, X), Y), "among the features of `get_train` of m.py, first in sample 2."),
    ],
)
def test_values_that_hold_no_samples(value, words):
    check_refused(words, made, value)


def test_whole_numbers_that_are_rounded_are_said():
    identifiers = np.array([3, -(2**24) - 1, 5])
    assert "rounds whole numbers above 16,777,216" in made((identifiers, identifiers)).remarks[0]
    assert made((np.array([1, 2**24], np.uint32), np.array([0, 2**25]))).remarks == ()
    assert made(({"a": np.zeros((4, 0), int), "b": np.zeros(4)}, np.zeros(4))).remarks == ()


@pytest.mark.keras
def test_the_lines_of_a_tensorflow_data_set_are_right():
    import tensorflow

    given = ({"a": X, "b": X[:, :1]}, Y, np.ones(6, np.float32))
    data = tensorflow.data.Dataset.from_tensor_slices(given).batch(4)
    sentence = check_refused("Write `", made, data)
    names = {"data": data}
    exec("def get_train():\n " + "\n ".join(re.findall(r"`(whole = .*?)` and `(return .*?)`", sentence)[0]), names)
    for ours, theirs in zip(tensorflow.nest.flatten(names["get_train"]()), tensorflow.nest.flatten(given), strict=True):
        assert np.array_equal(ours, theirs)


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
        ("tensorflow.python.data", "DatasetV2", ["return next(whole.as_numpy_iterator())"]),
        ("scipy.sparse._base", "_spbase", ["x = x.toarray()"]),
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


# ---------------------------------------------------------------- data sets with an index


class Dataset:
    """In place of that of torch; `items` are its items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


Dataset.__module__ = "torch.utils.data.dataset"


class PyDataset:
    """In place of that of Keras."""

    def __init__(self, batches):
        self.batches, self.num_batches = batches, len(batches)

    def __getitem__(self, number):
        return self.batches[number]

    def on_epoch_end(self):
        """Do nothing."""


PyDataset.__module__ = "keras.src.trainers"


def test_items_are_stacked_and_have_weights_if_each_has_one():
    items = [((x, float(y)), {"b": y, "a": x}, 0.5 + y) for x, y in zip(X, Y, strict=True)]
    found = made(Dataset(items))
    assert found.brings_weights
    samples = found.source.samples(np.array([4, 1]))
    np.testing.assert_array_equal(samples.x[0], X[[4, 1]])
    assert [part.dtype for part in samples.x] == [np.float32] * 2
    assert samples.y[1].tolist() == [1, 1]
    assert samples.weights.tolist() == [1.5, 1.5]


def test_what_brings_weights_is_told():
    assert made((X, Y, np.ones(6))).brings_weights
    assert not made((X, Y)).brings_weights
    assert not made(Dataset([*zip(X, Y, strict=True)])).brings_weights


def test_a_module_may_make_batches_of_items_itself():
    items = [(np.ones(number % 3 + 1), number) for number in range(7)]

    def collate(found):
        longest = max(len(x) for x, _ in found)
        return np.stack([np.pad(x, (0, longest - len(x))) for x, _ in found]), np.array([y for _, y in found])

    source = made_of(Dataset(items), "`get_train` of m.py", FINITE, collate).source
    assert source.info.feature_shape == (None,)
    assert source.samples(np.array([3, 1])).x.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([X[0]] * 3, "An item of Dataset must be a tuple of features and labels"),
        ([{"x": X[0], "y": 0}] * 3, "for example from a function `collate_fn(items)` of the module"),
        ([(np.full(2, np.nan), 0)], "NaN or infinity among the features of Dataset of `get_train` of m.py"),
        ([], "Received: Dataset, whose length is unknown or 0. Define its `__len__`"),
        ([(X[0], "a")], "Item 0 of Dataset of `get_train` of m.py must be readable"),
    ],
)
def test_items_that_are_no_samples(items, words):
    check_refused(words, made, Dataset(items))


def test_a_collate_function_that_leaves_out_items_fails_the_trial():
    source = made_of(Dataset([*zip(X, Y, strict=True)]), "`get_train`", (), lambda items: (X[:1], Y[:1])).source
    with pytest.raises(TrialError, match="1 rows in place of 2 from Dataset"):
        source.samples(np.array([0, 1]))


def test_batches_are_items_of_several_samples():
    batches = [(X[:4], Y[:4], np.ones(4)), (X[4:], Y[4:], np.ones(2))]
    found = made(PyDataset(batches))
    assert found.kind == "Keras PyDataset `PyDataset`, 2 batches of 4"
    assert found.source.sizes.tolist() == [4, 2]
    both = found.source.followed_by(made(PyDataset(batches[1:])).source)
    assert (both.info.n_samples, both.count(np.arange(3))) == (3, 8)
    np.testing.assert_array_equal(both.samples(np.array([1])).x, X[4:])
    uneven = made(PyDataset([batches[0], batches[1], batches[0]])).source
    with pytest.raises(TrialError, match="must have as many samples as the first"):
        uneven.samples(np.array([1]))


def test_methods_of_a_py_dataset_that_nothing_calls_are_named():
    class Mine(PyDataset):
        workers = 4

        def on_epoch_end(self):
            """Shuffle."""

    assert made(Mine([(X, Y)])).remarks == (
        "`on_epoch_end` of `Mine` are not called: the seed shuffles the batches.",
        "`workers` of `Mine` have no effect: one thread makes batches ahead.",
    )
    assert made(PyDataset([(X, Y)])).remarks == ()


@pytest.mark.parametrize("n_ahead", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_of_items_has_the_batches_of_the_same_samples_in_memory(n_ahead, shuffle):
    order = Order(6, (1, 2), shuffle=shuffle)
    source = made(Dataset([*zip(X, Y, strict=True)])).source
    stream = ItemStream(source.samples, order, 4, n_ahead)
    memory = BatchStream(WindowsInMemory(Samples(X.astype(np.float32), Y), order), 4)
    seen = []
    for _ in range(5):
        assert stream.position == memory.position
        seen.append((stream.position, stream.next().x))
        batch = memory.next()
        np.testing.assert_array_equal(seen[-1][1], batch.x)
    for position, x in reversed(seen):
        stream.seek(*position)
        np.testing.assert_array_equal(stream.next().x, x)
    stream.close()
    with pytest.raises(ValueError, match="begin of a batch"):
        stream.seek(0, 1)
