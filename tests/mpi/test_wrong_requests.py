"""Wrong requests of every kind: one clear sentence, exit code 2, before any rank trains, and nothing is left behind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.engine.models.framework import PACKAGES
from tests.helpers import effort, launcher, networks

pytestmark = pytest.mark.mpi

Run = Callable[..., launcher.Outcome]
#: what takes seconds to import
HEAVY = {"keras", "tensorflow", "torch", "jax", "skopt", "scipy", "h5py", "pandas"}

MODEL = """
import keras
from nnlo_opt.space import Integer


def get_model(n_units=8, n_in=28, n_out=10):
    return keras.Sequential([
        keras.Input((n_in, 28, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(n_units),
        keras.layers.Dense(n_out, activation="softmax"),
    ])


get_model.parameter_range = [Integer(8, 16, name="n_units")]
"""
#: as Keras 2 said it
ARCHITECTURE = """{"class_name": "Sequential", "config": [
    {"class_name": "Flatten", "config": {"name": "f", "batch_input_shape": [null, 28, 28, 1]}},
    {"class_name": "Dense", "config": {"name": "d", "units": 10, "activation": "softmax"}}]}"""


def files(folder: Path, digits: Path) -> None:
    """Everything the requests below name."""
    skopt = "from skopt.space import Categorical, Integer, Real\nspace = [{}]\n"
    for name, dimensions in {
        "duplicate": "Integer(8, 16, name='n_units'), Integer(2, 6, name='n_units')",
        "backwards": "Integer(16, 8, name='n_units')",
        "unnamed": "Integer(8, 16)",
        "one_value": "Categorical(['a'], name='n_units')",
    }.items():
        (folder / f"{name}.py").write_text(skopt.format(dimensions))
    own = "from nnlo_opt.space import *\nparent = Categorical(['sgd', 'adam'], name='train.optimizer')\nspace = [{}]\n"
    for name, dimensions in {
        "good": "Integer(8, 16, name='n_units')",
        "empty": "",
        "unknown_name": "Integer(8, 16, name='n_unit')",
        "unknown_option": "Integer(8, 16, name='train.bach')",
        "bad_choice": "Categorical(['adam', 'adamm'], name='train.optimizer')",
        "exits": "Integer(8, 16, name='n_units')]\nimport os\nos._exit(7)\n[",
        "rates": "Real(0.01, 0.1, name='train.learning_rate')",
        "bad_bound": "Integer(0, 5, name='train.batch')",
        "nothing_left": "Integer(8, 16, name='n_units')]\ndef feasible(p): return False\nmore = [",
        "no_parent": "Integer(8, 16, name='n_units', condition=When('train.optimiser', 'sgd'))",
        "no_such_value": "parent, Integer(8, 16, name='n_units', condition=When('train.optimizer', 'sdg'))",
        "circle": "Integer(8, 9, name='a', condition=When('b', 8)), Integer(8, 9, name='b', condition=When('a', 8))",
        "bad_step": "Integer(8, 16, name='n_units', step=3)",
        "not_likely": "Integer(8, 16, name='n_units', likely=20)",
        "never_together": "Categorical(['gem', 'downpour'], name='train.mode'), "
        "Categorical([True, False], name='train.synchronous')",
    }.items():
        (folder / f"{name}.py").write_text(own.format(dimensions))
    (folder / "model.py").write_text(MODEL)
    (folder / "wrong_input.py").write_text(MODEL.replace("n_in=28", "n_in=20"))
    (folder / "wrong_output.py").write_text(MODEL.replace("n_out=10", "n_out=7"))
    (folder / "never_built.py").write_text(MODEL.replace("keras.Seq", "kreas.Seq"))
    (folder / "broken.py").write_text("def get_model(:\n")
    (folder / "neither.py").write_text("x = 1\n")
    (folder / "package.py").write_text(MODEL.replace("import keras", "import keras\nimport no_such_package"))
    (folder / "backwards_in_model.py").write_text(MODEL.replace("(8, 16", "(16, 8"))
    (folder / "twice.py").write_text(MODEL + "get_model.parameter_range = 2 * get_model.parameter_range\n")
    (folder / "spaceless.py").write_text(MODEL.partition("get_model.parameter_range")[0])
    (folder / "signature.py").write_text(MODEL.replace("n_units=8", "units=8"))
    for name, n_labels, value in (("unequal", 9, 0.0), ("nan", 10, np.nan)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["features"], file["labels"] = np.zeros((10, 28, 28, 1), "f4"), np.zeros((n_labels, 10), "f4")
            file["features"][3, 5, 5] = value
    whole = next(digits.glob("mnist_train_0.h5")).read_bytes()
    half = whole[: len(whole) // 2]
    for name, data in {"zero": b"", "torn": half, "old": half, "text": b"not HDF5\n"}.items():
        (folder / f"{name}.h5").write_bytes(data)
    for name in ("unequal", "nan", "zero", "torn", "text", "gone"):
        (folder / f"{name}.list").write_text(f"{name}.h5\n")
    (folder / "empty.list").write_text("\n")
    (folder / "old.json").write_text(ARCHITECTURE)
    (folder / "saved.pt").write_bytes(b"PK\x03\x04 and no more")
    (folder / "a_file").write_text("")


SPACE = ["--search-space", "good.py"]
#: no option; for `refused`, which gives validation data otherwise
UNVALIDATED = ["without validation data"]

#: option list -> what the sentence must name
EARLY = {
    "no such model": (["--model", "mnits"], "mnist"),
    "model is gone": (["--model", "gone.py"], "gone.py"),
    "list is gone": (["--model", "model.py", "--train-data", "gone2.list"], "gone2.list"),
    "list is empty": (["--model", "model.py", "--train-data", "empty.list"], "empty.list"),
    "listed file is gone": (["--model", "model.py", "--train-data", "gone.list"], "gone.h5"),
    "block size 0": (["--model", "model.py", "--block-size", "0"], "--block-size"),
    "unknown option": (["--model", "model.py", "--epoch-number", "3"], "--epoch"),
    "unknown optimizer": (["--model", "model.py", "--optimizer", "adamm"], "adamm"),
    "unknown search": (["--model", "model.py", "--hyper-opt", "annealing"], "annealing"),
    "unknown loss": (["--model", "model.py", "--loss", "categorical_crosentropy"], "categorical_crossentropy"),
    "no number": (["--model", "model.py", "--epochs", "many"], "many"),
    "later option": (["--model", "model.py", "--ga-populations", "2"], "--ga-populations"),
    "more masters than ranks": (["--model", "model.py", "--n-masters", "2"], "--n-masters"),
    "no such mode": (["--model", "model.py", "--mode", "gum"], "gum"),
    "no such schedule": (["--model", "model.py", "--lr-schedule", "cosinus"], "cosinus"),
    "long warm-up": (["--model", "model.py", "--warmup-epochs", "3"], "`--epochs`, which is 1"),
    "space is gone": (["--model", "model.py", "--search-space", "gone.py"], "gone.py"),
    "empty space": (["--model", "model.py", "--search-space", "empty.py"], "at least one parameter"),
    "duplicate name": (["--model", "model.py", "--search-space", "duplicate.py"], "more than once"),
    "bounds backwards": (["--model", "model.py", "--search-space", "backwards.py"], "backwards.py"),
    "unnamed": (["--model", "model.py", "--search-space", "unnamed.py"], "name"),
    "one category": (["--model", "model.py", "--search-space", "one_value.py"], "at least 2 categories"),
    "space ends its process": (["--model", "model.py", "--search-space", "exits.py"], "exits.py"),
    "nothing is feasible": (["--model", "model.py", "--search-space", "nothing_left.py"], "all 9 points were refused"),
    "no such parent": (["--model", "model.py", "--search-space", "no_parent.py"], "train.optimiser"),
    "parent without the value": (["--model", "model.py", "--search-space", "no_such_value.py"], "'sdg'"),
    "conditions in a circle": (["--model", "model.py", "--search-space", "circle.py"], "circle"),
    "step that does not fit": (["--model", "model.py", "--search-space", "bad_step.py"], "`step` 3"),
    "likely value outside": (["--model", "model.py", "--search-space", "not_likely.py"], "`likely`"),
    "fixed to no value": (["--model", "model.py", *SPACE, "--fix", "n_units=99"], "--fix n_units="),
    "fixed without a value": (["--model", "model.py", *SPACE, "--fix", "n_units"], "NAME=VALUE"),
    "fixed, but no parameter": (["--model", "model.py", *SPACE, "--fix", "n_unit=9"], "n_units"),
    "bad run name": (["--model", "model.py", *SPACE, "--trial-name", "a b"], "a b"),
    "warm start of no run": (["--model", "model.py", *SPACE, "--warm-start", "nowhere"], "`--warm-start` must name"),
    "no place to write": (["--model", "model.py", *SPACE, "--checkpoint", "a_file/run"], "a_file"),
}
#: what a rank sees before it imports a framework: the module (without executing it, if a framework is at its top), data
BEFORE_A_FRAMEWORK = {
    "unknown parameter": (["--model", "model.py", "--search-space", "unknown_name.py"], "n_unit"),
    "unknown train option": (["--model", "model.py", "--search-space", "unknown_option.py"], "train.bach"),
    "value no option takes": (["--model", "model.py", "--search-space", "bad_choice.py"], "adamm"),
    "bound no option takes": (["--model", "model.py", "--search-space", "bad_bound.py"], "train.batch"),
    "fixed to no value of the model's": (["--model", "model.py", "--fix", "n_units=99"], "--fix n_units="),
    "values at odds": (["--model", "model.py", "--search-space", "never_together.py"], "train.synchronous"),
    "module does not parse": (["--model", "broken.py"], "broken.py"),
    "module defines nothing": (["--model", "neither.py"], "get_model"),
    "file is torn": (["--model", "model.py", "--train-data", "torn.list"], "torn.h5"),
    "file is no HDF5": (["--model", "model.py", "--train-data", "text.list"], "text.h5"),
    "no such data set": (["--model", "model.py", "--features-name", "images"], "images"),
    "no epoch to give up a trial after": (["--model", "model.py", "--pruner", "asha", "--epochs", "2"], "3 epochs"),
    "package is missing": (["--model", "package.py"], "line 3, ModuleNotFoundError: No module named 'no_such_package'"),
    "bounds backwards in the module": (["--model", "backwards_in_model.py"], "must be less than"),
    "twice in the module": (["--model", "twice.py"], "more than once"),
    "no space": (["--model", "spaceless.py"], "`get_model.parameter_range`"),
    "other signature": (["--model", "signature.py"], "'n_units'"),
    "data file is empty": (["--model", "model.py", "--train-data", "zero.list"], "zero.h5"),
    "files are unequal": (["--model", "model.py", "--train-data", "unequal.list"], "9 rows of 'labels'"),
    "data are not finite": (["--model", "model.py", "--train-data", "nan.list"], "nan.h5, first in sample 3"),
}
LATE = {
    "weights beside are torn": (["--model", "old.json", "--search-space", "rates.py"], "old.h5"),
    "saved model is torn": (["--model", "saved.pt", "--search-space", "rates.py"], "saved.pt"),
    "model is built at no point": (["--model", "never_built.py"], "line 7, NameError"),
    "features do not fit": (["--model", "wrong_input.py"], "(20, 28, 1)"),
    "labels do not fit": (["--model", "wrong_output.py"], "(7,)"),
    "nothing to prune by": (["--model", "model.py", "--pruner", "median", "--epochs", "9", *UNVALIDATED], "--val-data"),
    "no such metric": (["--model", "model.py", "--target-metric", "val_auc,>,0.9"], "val_auc"),
}


@pytest.fixture(scope="module")
def with_keras():
    processes = launcher.Preloaded("keras")
    yield processes
    processes.close()


def refused(run: Run, options: list[str], folder: Path, digits: Path) -> tuple[str, launcher.Outcome]:
    """The sentence with which a request is refused, in the way that all are."""
    files(folder, digits)
    before = {path.name for path in folder.iterdir()}
    command = ["OptimizationDriver", *(option for option in options if option not in UNVALIDATED)]
    if "--train-data" not in options:
        command += ["--train-data", str(digits / "train_mnist.list")]
    if not set(UNVALIDATED) & set(options):
        command += ["--val-data", str(digits / "test_mnist.list")]
    outcome = run(command, folder, code=2)
    said = outcome.err.split("\n---")[0].strip()
    assert "Traceback" not in outcome.err
    assert len(said.splitlines()) == 1, said
    after = {path.name for path in folder.iterdir() if not path.name.startswith((".out", ".err", ".modules"))}
    assert after - before <= {"__pycache__", "checkpoints"}
    assert not list(folder.glob("checkpoints/*"))
    return said, outcome


@pytest.mark.parametrize("name", effort.some_of([*(BEFORE_A_FRAMEWORK | EARLY)]))
def test_refused_before_anything_or_a_framework_is_imported(tmp_path, digits, preloaded, name):
    options, word = (EARLY | BEFORE_A_FRAMEWORK)[name]
    said, outcome = refused(preloaded.run, options, tmp_path, digits)
    assert word in said
    assert not outcome.modules & (HEAVY if name in EARLY else PACKAGES)


@pytest.mark.proof
@pytest.mark.keras
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs("torch")) if ".pt" in LATE[name][1] else name for name in LATE]
)
def test_refused_by_a_trainer_rank(tmp_path, digits, with_keras, name):
    options, word = LATE[name]
    said, _ = refused(with_keras.run, options, tmp_path, digits)
    assert word in said


@pytest.mark.keras
@pytest.mark.parametrize("name", effort.some_of(["twice in the module", "block size 0", "features do not fit"]))
def test_all_ranks_leave_with_the_same_code(tmp_path, digits, name):
    options, word = (EARLY | BEFORE_A_FRAMEWORK | LATE)[name]
    said, _ = refused(partial(launcher.run, 3), options, tmp_path, digits)
    assert word in said


@pytest.mark.proof
@networks.trained("dense", "keras")
def test_fewer_samples_than_workers(tmp_path, digits, network):
    with h5py.File(next(digits.glob("mnist_train_0.h5"))) as source, h5py.File(tmp_path / "one.h5", "w") as file:
        for name in ("features", "labels"):
            file[name] = source[name][:1]
    (tmp_path / "one.list").write_text("one.h5\n")
    (tmp_path / "net.py").write_text(network.plain)
    options = ["--model", "net.py", "--train-data", "one.list", "--block-size", "3", *SPACE]
    said, _ = refused(partial(launcher.run, 4), options, tmp_path, digits)
    assert "1 sample for 2 workers" in said


@pytest.mark.keras
@pytest.mark.proof
def test_what_only_a_trial_can_show_is_contained(tmp_path, digits):
    """A model that raises, one whose loss is not a number, one that is no model: failed trials with their reason."""
    reasons = {"raises": "no such layer", "exits": "systemexit", "cancelled": "characters left out", "no model": "int"}
    reasons |= {"infinite": "nan", "memory": "memory", "shape": "(3,)"}
    (tmp_path / "model.py").write_text(
        MODEL.replace("n_units=8,", "kind='good', n_units=8,")
        .replace(
            "    return keras",
            "    if kind == 'raises':\n        raise RuntimeError('no such layer')\n"
            "    if kind == 'exits':\n        raise SystemExit(3)\n"
            "    if kind == 'cancelled':\n        raise __import__('asyncio').CancelledError('x' * 5000)\n"
            "    if kind == 'no model':\n        return 7\n"
            "    if kind == 'memory':\n        raise MemoryError('too large')\n"
            "    if kind == 'shape':\n        n_out = 3\n"
            "    scale = float('nan') if kind == 'infinite' else 1.0\n    return keras",
        )
        .replace("keras.layers.Flatten(),", "keras.layers.Flatten(), keras.layers.Rescaling(scale),")
        .replace('Integer(8, 16, name="n_units")', 'Categorical(KINDS, name="kind")')
        .replace("import Integer", f"import Categorical\nKINDS = {['good', *reasons]}")
    )
    command = ["OptimizationDriver", "--model", "model.py", "--num-iterations", "10", "--checkpoint", "S"]
    launcher.run(3, [*command, *launcher.data_of(digits)], tmp_path)
    rows = {row["p:kind"]: row for row in launcher.results_of(tmp_path / "checkpoints/S")}
    assert {kind: row["state"] for kind, row in rows.items()} == dict.fromkeys(rows, "failed") | {"good": "complete"}
    assert len(rows) == 8
    for kind, word in reasons.items():
        assert word in rows[kind]["reason"].lower(), rows[kind]["reason"]
