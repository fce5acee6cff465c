"""Samples that a model module makes: options that fit them, and sentences about them."""

import numpy as np
import pytest

from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.space import Categorical, Integer, Space
from tests.helpers.refusals import check_refused
from tests.helpers.workloads import workload_of

pytestmark = pytest.mark.usefixtures("dense")

MODEL = """
import numpy as np
from dense import Net

X, Y = np.arange(80.0).reshape(20, 4) / 80, np.arange(20) % 3


def get_model(n=6):
    return Net(n, 4, 3)
"""
TRAIN = "def get_train(): return X, Y\n"
VAL = "def get_val(): return X[:5], Y[:5]\n"
DATA_SETS = """
class Dataset:
    def __len__(self): return 4
    def __getitem__(self, number): return X[number], Y[number]
Dataset.__module__ = "torch.utils.data"
class PyDataset:
    num_batches = 4
    def __getitem__(self, number): return X[5 * number:5 * number + 5], Y[5 * number:5 * number + 5]
PyDataset.__module__ = "keras.src"
"""
ITEMS, BATCHES = "def get_train(): return Dataset()\n", "def get_train(): return PyDataset()\n"


@pytest.fixture
def place(here):
    def make(text, *words, program="TrainingDriver"):
        (here / "model.py").write_text(MODEL + DATA_SETS + text)
        return workload_of("--model", "model.py", *words, program=program)

    return make


def remarks_of(workload, space=None):
    return [remark for remark in workload.inspect(space).remarks if not remark.startswith("Loss")]


def test_what_is_trained_on_is_said_and_that_there_is_no_validation(place):
    known = "Training data: arrays, from `get_train` of `model.py`; each rank holds what it returns."
    none = "Validation data: none, as `get_val` of `model.py` {}."
    assert remarks_of(place(TRAIN)) == [known, none.format("is not defined")]
    assert remarks_of(place(TRAIN + "def get_val(): return None\n")) == [known, none.format("returns None")]
    assert remarks_of(place(TRAIN + VAL)) == [known, known.replace("Training", "Validation").replace("_train", "_val")]
    weighted = "def get_val(): return X[:5], Y[:5], Y[:5] + 1\n"
    assert remarks_of(place(TRAIN + weighted))[-1].startswith("Weights from `get_val` of `model.py` count in training")


def test_functions_are_called_once(place):
    workload = place("N = []\ndef get_train():\n    N.append(0)\n    assert len(N) == 1\n    return X, Y\n" + VAL)
    workload.check(None)
    workload.inspect(None)
    workload.build({}, TrainingOptions(), seed=0)


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        (TRAIN, ["--features-name", "x"], "`--features-name` is for data files. Received: it with arrays"),
        (TRAIN, ["--sample-weights-name", "w"], "`--sample-weights-name` is for data files"),
        (TRAIN + "def get_labels(): return 'y'\n", [], "`get_labels` is for data files"),
        (TRAIN, ["--verify-data"], "data that `model.py` makes; give `--train-data`"),
        (TRAIN + "def get_val(): return ['val.h5']\n", [], "must be both files, or both samples"),
        (TRAIN + "def get_val(): return Dataset()\n", [], "of one kind. Received: arrays and torch Dataset `Dataset`"),
        (TRAIN + "def get_val(): return X[:, :2], Y\n", [], "Received: feature shape (4,) of `get_train` of model.py"),
        (ITEMS + "def get_val(): return PyDataset()\n", [], "torch Dataset `Dataset` and Keras PyDataset"),
        (BATCHES, ["--batch", "5"], "`--batch` is for samples of which each has a number"),
        (BATCHES, ["--class-weights", "balanced"], "Let each batch be `(x, y, sample_weight)`"),
        ("def get_train(): return None\n", [], "Received: None. Correct the module."),
        ("def get_train(): return {'a': X}, Y\n", [], "Return a list in the order"),
    ],
)
def test_options_and_functions_that_do_not_go_together(place, text, words, sentence, monkeypatch):
    import dense

    monkeypatch.setattr(dense, "input_names", lambda model: ["b"], raising=False)
    check_refused(sentence, place(text, *words).inspect, None)


def test_folds_need_the_weights_of_all_samples_and_no_files(place):
    folds = ["--n-fold", "2"]
    space = Space([Integer(4, 8, name="n")])
    weighted = "def get_train(): return X, Y, Y + 1\n"
    search = place(weighted + VAL, *folds, program="OptimizationDriver")
    check_refused("must all have a weight, or none", search.inspect, space)
    search = place(TRAIN, *folds, "--fold-by", "files", program="OptimizationDriver")
    check_refused("`--fold-by` is for data files", search.inspect, space)
    found = place(BATCHES, *folds, program="OptimizationDriver")
    assert found.inspect(space).n_train_smallest == 2
    assert [len(fold.train) for fold in found.data.training.folds] == [2, 2]


def test_a_point_has_its_own_samples(place):
    space = Space([Categorical([8, 12], name="rows"), Integer(4, 8, name="n")])
    found = place("def get_train(rows): return X[:rows], Y[:rows]\n" + VAL, program="OptimizationDriver")
    found.inspect(space)
    for rows in (8, 12, 8):
        found.build({"rows": rows, "n": 5}, TrainingOptions(), seed=0)
        assert found.data.training.n_train == rows
    assert found.data.varies


def test_class_weights_count_for_items(place):
    found = place(ITEMS, "--class-weights", "{0: 3.0}")
    found.inspect(None)
    (table,) = found.data.training.class_tables
    np.testing.assert_array_equal(table.of(np.array([0, 1])), [3, 1])
