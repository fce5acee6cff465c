"""What a trainer rank makes of the user's model and data, with real frameworks and without ranks."""

import sys
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.workload import hdf5_check
from nnlo_opt.app.run.workload.inspection import Inspection
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.run_data import RunData
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.trees import leaves
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.comm.messages import StartFold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.data.lists import write_sums
from nnlo_opt.engine.models.losses import SPARSE
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused
from tests.helpers.workloads import prepared, workload_of

pytestmark = pytest.mark.usefixtures("dense")

#: of one input and one output, which no framework has to be imported for
DENSE = """
import dense
def get_model(n=6):
    return dense.Net(4, n, 3)
"""
FORKED = """
def get_model(width=4):
    import keras
    from keras import layers
    left, right = keras.Input((6,), name="left"), keras.Input((4, 2), name="right")
    stem = layers.Concatenate()([layers.Dense(width, activation="tanh")(left), layers.Flatten()(right)])
    kind, energy = layers.Dense(3, activation="softmax", name="kind"), layers.Dense(1, name="energy")
    return keras.Model([left, right], [kind(stem), energy(stem)])
"""

#: nothing in its text says torch
HIDDEN = """
import importlib
def get_model():
    nn = importlib.import_module("torch.nn")
    return nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=1))
"""


@pytest.fixture(autouse=True)
def sound_files(monkeypatch):
    """Spare the start of the process that reads files first, as those of most tests are known to be sound."""
    monkeypatch.setattr(hdf5_check, "check_files", lambda *_, **__: None)


@pytest.fixture
def workplace(tmp_path):
    """Makes the workplace of a model module and options, over 40 samples of two features and two labels."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["features/a"] = rng.normal(size=(40, 6)).astype(np.float32)
        file["features/b"] = rng.normal(size=(40, 4, 2)).astype(np.float32)
        file["labels/a"] = rng.integers(3, size=40)
        file["labels/b"] = rng.normal(size=40).astype(np.float32)
    (tmp_path / "data.list").write_text(f"{tmp_path / 'data.h5'}\n")

    def make(source, *arguments):
        (tmp_path / "model.py").write_text(source)
        data = ["--train-data", tmp_path / "data.list", "--val-data", tmp_path / "data.list"]
        return prepared("--model", tmp_path / "model.py", *data, *arguments)

    return make


ONE_OF_EACH = ("--features-name", "features/a", "--labels-name", "labels/a")


@pytest.mark.keras
def test_several_inputs_outputs_and_losses(workplace):
    findings = workplace(FORKED, "--early-stopping", "val_kind_loss,<,2").inspect(None)
    assert findings.figure == "1 - val_acc"
    assert findings.loss == "sparse_categorical_crossentropy,mean_squared_error"
    assert [remark.split(":")[0] for remark in findings.remarks] == ["Loss of output 'kind'", "Loss of output 'energy'"]
    own = "\ndef get_loss(): return {'energy': 'mae', 'kind': 'sparse_categorical_crossentropy'}"
    findings = workplace(FORKED + own).inspect(None)
    assert findings.loss == "sparse_categorical_crossentropy,mean_absolute_error"
    assert not findings.remarks


@pytest.mark.keras
def test_data_that_the_command_line_does_not_name(workplace, here):
    workplace(f"{FORKED}\ndef get_train(): return {str(here / 'data.list')!r}\ndef get_val(): return ['data.h5']\n")
    for named, n_said in ([], 2), (["--val-data", "data.list"], 1):
        remarks = workload_of("--model", "model.py", *named).inspect(None).remarks
        assert (
            list(remarks[:n_said])
            == [
                "Training data: `data.list`, from `get_train` of `model.py`.",
                "Validation data: `.`, from `get_val` of `model.py`.",
            ][:n_said]
        )
        assert "from `get_" not in "".join(remarks[n_said:])


@pytest.mark.keras
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--features-name", "features/a"], "Received: 1 sets of features for 2 inputs, left, right"),
        (["--labels-name", "labels/b"], "Received: 1 sets of labels for 2 outputs, kind, energy"),
        (["--loss", "mse,mse"], "Output 'kind': Labels must have the shape"),
        (["--loss", "mse,mse,mse"], "as many losses as outputs. Received: 3"),
        (["--target-metric", "val_energy_acc,>,1"], r"one of loss, acc, .*Received: 'val_energy_acc'"),
    ],
)
def test_what_does_not_go_together(workplace, arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        workplace(FORKED, *arguments).inspect(None)


def test_a_point_whose_model_does_not_fit_is_the_trials_fault(workplace):
    place = workplace(DENSE, *ONE_OF_EACH)
    place.inspect(None)
    with pytest.raises(TrialError, match=r"takes 5 features"):
        place.build({"n": 5}, TrainingOptions(), seed=0)


@pytest.mark.parametrize(
    ("buildable", "most", "n_tried"),
    [((), 3, 3), ((), 30, 9), ((), 0, None), (range(1, 10), 9, None), ((1, 4), 9, None)],
)
def test_a_model_that_fails_alike_wherever_it_is_built_is_refused(tmp_path, buildable, most, n_tried):
    """In a space of nine points; `n_tried` None: it is not refused."""

    class Built(ModelMaker):
        def new_model(self, parameters, seed):
            if parameters["n"] not in buildable:
                raise TrialError(f"`get_model` failed at {parameters}, line 3, ValueError: {parameters['n']} units.")

    options = driver_options("OptimizationDriver", ["--model", "m.py", "--max-failures", str(most)])
    maker, space = Built(options, ProcessContext()), Space([Integer(1, 9, name="n")])
    place = Inspection(options, maker, RunData(options, maker), searches=True)
    error = TrialError("`get_model` failed at {'n': 5}, line 3, ValueError: 5 units.")
    if n_tried is None:
        place.refuse_if_alike(error, {"n": 5}, space)
        return
    with pytest.raises(ConfigurationError, match=rf"5 units\. So it failed at {n_tried} points\."):
        place.refuse_if_alike(error, {"n": 5}, space)


@pytest.mark.needs("torch")
def test_a_module_whose_text_does_not_say_torch(workplace, tmp_path):
    place = workplace(HIDDEN, *ONE_OF_EACH)
    findings = place.inspect(None)
    assert (findings.figure, findings.loss) == ("1 - val_acc", "sparse_categorical_crossentropy")
    one = place.build({}, TrainingOptions(), seed=3)
    one.read_weights(weights := aligned_empty(one.n_weights))
    other = place.build({}, TrainingOptions(), seed=3)
    other.read_weights(again := aligned_empty(one.n_weights))
    assert np.array_equal(weights, again)
    place.maker.release()


@pytest.mark.keras
def test_batches_of_the_data_train_the_model(workplace):
    place = workplace(FORKED)
    place.inspect(None)
    adapter = place.build({"width": 4}, TrainingOptions(), seed=0)
    x, y = place.data.training.source.read(np.arange(10))
    assert [array.shape for array in leaves(x)] == [(10, 6), (10, 4, 2)]
    metrics = adapter.gradient(x, y, aligned_empty(adapter.n_weights))
    assert tuple(metrics.sums) == adapter.figures == ("loss", "acc", "kind_loss", "energy_loss", "kind_acc")
    place.maker.release()


def test_data_are_compared_with_their_checksums_where_that_is_asked_for(workplace, tmp_path):
    data = [*ONE_OF_EACH, "--verify-data"]
    check_refused("without data.list.sha256", workplace(DENSE, *data).inspect, None)
    write_sums(tmp_path / "data.list", [tmp_path / "data.h5"])
    findings = workplace(DENSE, *data).inspect(None)
    assert findings.remarks[0] == "Data verified: 2 files match their checksums."
    with h5py.File(tmp_path / "data.h5", "a") as file:
        file["features/a"][7, 3] += 1.0
    check_refused("data.h5, whose SHA-256 is not the one in", workplace(DENSE, *data).inspect, None)


def test_samples_that_are_trained_on_are_no_test_data(workplace, tmp_path):
    made = workplace(DENSE, *ONE_OF_EACH, "--test-data", str(tmp_path / "data.list"))
    check_refused("`--test-data` must name samples that are not trained on", made.inspect, None)


def test_data_that_a_module_names_file_by_file_have_no_checksums(workplace, tmp_path):
    source = f"def get_model():\n    pass\n\ndef get_train():\n    return [{str(tmp_path / 'data.h5')!r}]\n"
    workplace(source)
    made = workload_of("--model", tmp_path / "model.py", "--verify-data")
    check_refused("file by file; give `--train-data`", made.inspect, None)


def test_an_objective_that_takes_something_else_is_refused_before_the_first_trial(tmp_path):
    path = tmp_path / "objective.py"
    path.write_text("def objective(x, y): return x")
    made = workload_of("--model", path, program="OptimizationDriver")
    check_refused("must take `parameters`", made.inspect, Space([Real(0, 1, name="x")]))


def test_a_torch_model_without_torch_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    check_refused("`pip install 'nnlo_opt[torch]'`", workload_of("--model", tmp_path / "net.pt").prepare)


def test_files_are_read_by_another_process_first(workplace, tmp_path, monkeypatch):
    monkeypatch.undo()
    place = workplace(DENSE, *ONE_OF_EACH)
    with h5py.File(tmp_path / "data.h5", "a") as file:
        del file["features/a"]
        x = file.create_dataset("features/a", (40, 10**6), "f8", chunks=(40, 10**6), compression="gzip")
        x.id.write_direct_chunk((0, 0), zlib.compress(b"short"))
    check_refused("data.h5; reading it ends the process (Segmentation fault)", place.inspect, None)


def test_a_module_that_changes_the_working_folder_moves_no_path_of_an_option(workplace, here):
    (here / "elsewhere").mkdir()
    (here / "data.list").write_text("data.h5\n")
    (here / "figure.py").write_text("def own(fold): return 0.0\n")
    (here / "model.py").write_text("import os\nos.chdir('elsewhere')\n" + DENSE)
    given = ["--train-data", "data.list", "--cache-data", "cache", "--features-name", "features/a"]
    options = driver_options("TrainingDriver", ["--model", "model.py", *given, "--labels-name", "labels/a"])
    options = replace(options, comparison=Comparison(function="figure.py:own"))
    made = ModuleWorkload(options, ProcessContext(), searches=False)
    assert made.data.training.source.info.n_samples == 40
    made.data.training.source.read(np.arange(3))
    assert made.maker.figure.name == "own"
    assert made.maker.definition.source.resolve() == here / "model.py"
    assert made.maker.definition.sha256
    assert [path.name for path in (here / "cache").iterdir()]


# ---------------------------------------------------------------- compiled models

COMPILED = """
def get_model(rate=0.5):
    import keras
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, clipnorm=1.0, loss_scale_factor=2.0)
    metrics = ["accuracy", keras.metrics.MeanIoU(3, sparse_y_pred=False)]
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), metrics=metrics)
    return model
"""
WORST = """
import keras
class Worst(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="worst")
        self.error = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(keras.ops.maximum(self.error, keras.ops.max(y_pred)))

    def result(self):
        return self.error.value
"""
SGD = {"optimizer": "sgd", "learning_rate": 0.5, "optimizer_params": {"momentum": 0.9}, "clip_norm": 1.0}


def test_a_compiled_model_brings_loss_and_optimizer_and_the_rest_is_said(workplace):
    findings = workplace(COMPILED, *ONE_OF_EACH).inspect(None)
    assert findings.compiled
    assert (findings.loss, findings.steps, findings.replaced) == ("sparse_categorical_crossentropy", SGD, "")
    assert findings.remarks == (
        "Taken from `compile`: sgd (learning_rate=0.5, momentum=0.9, clip_norm=1.0), loss "
        "sparse_categorical_crossentropy, accuracy, metrics mean_io_u.",
        "Not taken from `compile`: loss_scale_factor=2.0 of SGD.",
    )
    assert findings.metrics == findings.merging == ("mean_io_u",)
    assert findings.from_json(findings.to_json()) == findings
    given = workplace(COMPILED, *ONE_OF_EACH, "--optimizer", "adam", "--loss", SPARSE).inspect(None)
    assert (
        "`--optimizer adam` for SGD(learning_rate=0.5, clipnorm=1.0, loss_scale_factor=2.0, momentum=0.9)"
        in given.replaced
    )
    assert f"`--loss {SPARSE}` for the loss {SPARSE}" in given.replaced
    assert "clip" not in "".join(given.remarks)


def test_a_run_that_began_without_compile_goes_on_without(workplace):
    place = workplace(f"{COMPILED}\ndef get_optimizer(): return []", *ONE_OF_EACH)
    with pytest.raises(ConfigurationError, match="`get_optimizer` of"):
        place.inspect(None)
    place.follow(compile=False, metrics=False)
    findings = place.inspect(None)
    assert not findings.takes_metrics
    assert not findings.compiled
    assert (findings.steps, findings.replaced, findings.taken) == ({}, "", "")
    assert any("Nothing is taken from `compile`" in remark for remark in findings.remarks)
    assert any(remark.startswith("Loss: sparse_categorical_crossentropy, because") for remark in findings.remarks)


# ---------------------------------------------------------------- optimizers of a framework

FTRL = COMPILED.replace("SGD(rate, momentum=0.9, clipnorm=1.0, loss_scale_factor=2.0)", "Ftrl(rate)")
OF_TORCH = """
import torch
def get_model(n=6):
    return torch.nn.Sequential(torch.nn.Linear(6, n), torch.nn.Linear(n, 3))

def get_optimizer(module, decay=0.1):
    return torch.optim.AdamW(module.parameters(), lr=0.5, weight_decay=decay)

def get_scheduler(optimizer, factor=0.5):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, factor)
"""


def task_of(place, n_workers=1, **point):
    return place.open_task(StartFold(assignment=1, trial=0, fold=0, point=point, worker=1, n_workers=n_workers))


@pytest.mark.keras
def test_an_optimizer_that_keras_runs_is_tried_before_a_run_and_refused_where_the_master_steps(workplace):
    place = workplace(FTRL, *ONE_OF_EACH)
    findings = place.inspect(None)
    assert (findings.steps, findings.takes_optimizer) == ({"own": "Ftrl(learning_rate=0.5)"}, True)
    assert findings.remarks[0].startswith("Taken from `compile`: Ftrl(learning_rate=0.5), loss ")
    assert task_of(place, rate=0.25).options.own.first_learning_rate == 0.25
    place.close()
    place.n_workers = 3
    check_refused("`--mode downpour` with one worker. Received: `--mode downpour` and 3 workers", place.inspect, None)
    check_refused("of the model needs workers that take whole steps", task_of, place, 3)
    place.follow(compile=True, optimizer=False, n_workers=3)
    findings = place.inspect(None)
    assert (findings.steps, findings.takes_optimizer) == ({}, False)
    assert "Ftrl(learning_rate=0.5) (adam trains in its place" in findings.unused
    assert task_of(place, 3).options.own is None
    given = workplace(FTRL, *ONE_OF_EACH, "--learning-rate", "0.125", "--weight-decay", "0.25")
    assert "`--learning-rate 0.125` for the learning rate of Ftrl(" in given.inspect(None).replaced
    task = task_of(given)
    optimizer = task.adapter.synced_model().optimizer
    assert (task.options.own.first_learning_rate, optimizer.weight_decay) == (0.125, 0.25)


@pytest.mark.keras
def test_an_optimizer_that_cannot_step_is_refused_before_a_run(workplace):
    broken = FTRL.replace("keras.optimizers.Ftrl", "type('Mine', (keras.optimizers.Optimizer,), {})")
    check_refused("Mine(learning_rate=0.5) must take a step", workplace(broken, *ONE_OF_EACH).inspect, None)
    asked = "def get_optimizer(module): return None"
    check_refused("`get_optimizer` of", workplace(f"{FTRL}\n{asked}\n", *ONE_OF_EACH).inspect, None)


@pytest.mark.needs("torch")
def test_a_torch_module_brings_optimizer_and_scheduler_with_parameters_of_their_own(workplace):
    place = workplace(OF_TORCH, *ONE_OF_EACH, "--loss", SPARSE)
    findings = place.inspect(None)
    words = "AdamW(lr=0.5, weight_decay=0.1)"
    assert (findings.steps, findings.calls_back, findings.compiled) == ({"own": words}, True, True)
    assert f"Taken from `get_optimizer`: {words}." in findings.remarks
    assert "Schedule of every training, from `get_scheduler`: StepLR." in findings.remarks
    assert place.maker.definition.accepted_parameters == {"n", "decay", "factor"}
    task = task_of(place, decay=0.25, factor=0.125)
    assert "weight_decay=0.25" in task.options.own_optimizer
    scheduler = place.callbacks(task)
    rates = [scheduler.call(task.adapter, e, m, 0.5, is_last=False).learning_rate for e, m in ((0, None), (1, {}))]
    assert rates == [0.5, 0.0625]
    place.close()
    given = workplace(OF_TORCH, *ONE_OF_EACH, "--loss", SPARSE, "--optimizer", "sgd", "--learning-rate", "2.0")
    assert "`--optimizer sgd` for AdamW(" in given.inspect(None).replaced
    half = OF_TORCH.replace("module.parameters()", "module[1].parameters()")
    for more, says in ([], True), (["--optimizer", "sgd"], False):
        said = " ".join(workplace(half, *ONE_OF_EACH, "--loss", SPARSE, *more).inspect(None).remarks)
        assert ("leaves out 2 of 4 trainable parameters, which stay as they are: 0.weight, 0.bias." in said) == says
    assert place.options.training.own is None
    begun = workplace(OF_TORCH, *ONE_OF_EACH, "--loss", SPARSE)
    begun.follow(compile=False, metrics=False, callbacks=False, optimizer=False)
    assert (begun.inspect(None).steps, begun.callbacks(task_of(begun))) == ({}, None)
    begun.searches = True
    searched = begun.check(Space([Real(0.1, 0.2, name="decay"), Integer(4, 8, name="n")]))
    assert searched.space.names == ("decay", "n")
    by_step = OF_TORCH.replace("StepLR(optimizer, 1, factor)", "OneCycleLR(optimizer, factor, total_steps=30)")
    counting = workplace(by_step, *ONE_OF_EACH, "--loss", SPARSE, "--batch", "10")
    findings = counting.inspect(None)
    n_epoch = findings.steps_an_epoch(10, 1)
    assert f"OneCycleLR lasts 30 steps of the optimizer, of which an epoch has {n_epoch}." in findings.remarks
    task = task_of(counting, factor=0.25)
    assert (counting.callbacks(task), task.options.own.first_learning_rate) == (None, pytest.approx(0.01))
    counting.close()
    both = workplace(OF_TORCH, *ONE_OF_EACH, "--loss", SPARSE, "--lr-schedule", "cosine")
    check_refused("or `get_scheduler` of", both.inspect, None)


# ---------------------------------------------------------------- callbacks

CALLING = """
def get_callbacks():
    import keras
    return [keras.callbacks.ReduceLROnPlateau(), keras.callbacks.TerminateOnNaN()]
"""


@pytest.mark.keras
def test_callbacks_are_named_and_made_anew_for_every_training(workplace):
    place = workplace(COMPILED + CALLING, *ONE_OF_EACH)
    findings = place.inspect(None)
    assert findings.calls_back
    said = "Callbacks of every training, from `get_callbacks`: ReduceLROnPlateau, TerminateOnNaN."
    assert said in findings.remarks
    tasks = [place.open_task(StartFold(assignment=n, trial=n, fold=0, point={}, worker=1, n_workers=1)) for n in (1, 2)]
    made = [place.callbacks(task) for task in tasks]
    assert made[0]._callbacks[0] is not made[1]._callbacks[0]


@pytest.mark.keras
@pytest.mark.parametrize(
    ("returned", "arguments", "sentence"),
    [
        ("keras.callbacks.EarlyStopping()", [], "`get_callbacks` of"),
        ("[keras.callbacks.ModelCheckpoint('a.keras')]", [], "`--checkpoint-interval` saves trainings"),
        ("[keras.callbacks.EarlyStopping('val_auc')]", [], "'val_auc' of EarlyStopping"),
        ("[keras.callbacks.ReduceLROnPlateau()]", ["--warmup-epochs", "1", "--epochs", "2"], "Leave one of them out"),
    ],
)
def test_callbacks_that_would_not_act_are_refused_before_a_run(workplace, returned, arguments, sentence):
    source = f"{COMPILED}\ndef get_callbacks():\n    import keras\n    return {returned}\n"
    check_refused(sentence, workplace(source, *ONE_OF_EACH, *arguments).inspect, None)


@pytest.mark.keras
def test_either_a_callback_or_a_searched_schedule_sets_the_rate(workplace):
    place = workplace(COMPILED + CALLING, *ONE_OF_EACH)
    place.searches = True
    space = Space([Categorical(["constant", "linear"], name="train.lr_schedule")])
    check_refused("Leave one of them out", place.inspect, space)


@pytest.mark.needs("torch")
def test_callbacks_are_of_keras(workplace):
    check_refused("`--early-stopping`", workplace(f"{HIDDEN}{CALLING}", *ONE_OF_EACH, "--loss", SPARSE).inspect, None)


@pytest.mark.keras
def test_a_run_that_began_without_callbacks_goes_on_without(workplace):
    place = workplace(COMPILED + CALLING, *ONE_OF_EACH)
    place.follow(compile=True, callbacks=False)
    findings = place.inspect(None)
    assert not findings.calls_back
    assert any("`get_callbacks` is not called" in remark for remark in findings.remarks)
    start = StartFold(assignment=1, trial=0, fold=0, point={}, worker=1, n_workers=1)
    assert place.callbacks(place.open_task(start)) is None


def test_get_metrics_replaces_the_metrics_of_compile_and_what_they_lack_is_said(workplace):
    own = "def get_metrics():\n    return [keras.metrics.SparseTopKCategoricalAccuracy(2, name='own'), Worst()]"
    source = f"{COMPILED}\n{own}\n{WORST}"
    findings = workplace(source, *ONE_OF_EACH, "--early-stopping", "val_own,<,2").inspect(None)
    assert "`get_metrics` for its metrics" in findings.replaced
    assert (findings.takes_metrics, findings.metrics, findings.merging) == (True, ("own", "worst"), ("own",))
    assert findings.remarks[-1].endswith("as its parts do not add up: worst.")
    with pytest.raises(ConfigurationError, match="one of loss, acc, own, val_loss, val_acc, val_own, val_worst"):
        workplace(source, *ONE_OF_EACH, "--early-stopping", "val_auc,<,2").inspect(None)
    plain = source.replace("model.compile", "''.format")
    findings = workplace(plain, *ONE_OF_EACH).inspect(None)
    assert (findings.compiled, findings.takes_metrics, findings.metrics) == (False, True, ("own", "worst"))
    old = workplace(source, *ONE_OF_EACH)
    old.follow(compile=True, metrics=False)
    findings = old.inspect(None)
    assert (findings.compiled, findings.takes_metrics, findings.metrics) == (True, False, ())
    wrong = source.replace("SparseTopKCategoricalAccuracy(2, name='own')", "F1Score()")
    with pytest.raises(ConfigurationError, match=r"Received: f1_score, with labels of shape \(\)"):
        workplace(wrong, *ONE_OF_EACH).inspect(None)
    with pytest.raises(ConfigurationError, match="must return a list of metrics"):
        workplace(f"{COMPILED}\ndef get_metrics(): return 'AUC'", *ONE_OF_EACH).inspect(None)


def test_each_trial_has_the_optimizer_of_its_own_model(workplace):
    place = workplace(COMPILED, *ONE_OF_EACH)
    place.options = replace(place.options, point={"rate": 0.25})
    for point, expected in (({"rate": 0.25}, 0.25), ({}, 0.5), ({"train.learning_rate": 0.125}, 0.125)):
        start = StartFold(assignment=1, trial=0, fold=0, point=point, worker=1, n_workers=1)
        task = place.open_task(start)
        assert (task.options.optimizer, task.options.learning_rate) == ("sgd", expected)
        assert task.ready(1).steps == {**SGD, "learning_rate": 0.25 if "rate" in point else 0.5}
        master = place.options.training.with_point(point).with_steps(task.ready(1).steps)
        assert master == task.options
        place.close()


def test_an_optimizer_that_contradicts_options_is_refused_before_the_first_batch(workplace):
    with pytest.raises(ConfigurationError, match="Received: 'beta_1'"):
        workplace(COMPILED, *ONE_OF_EACH, "--optimizer-params", "{'beta_1': 0.5}").inspect(None)


def test_a_model_that_trains_by_itself_is_refused_by_the_name_of_its_method(workplace):
    source = COMPILED.replace("keras.Sequential(", "type('Mine', (keras.Sequential,), {'train_step': print})(")
    with pytest.raises(ConfigurationError, match="Mine with its own `train_step`"):
        workplace(source, *ONE_OF_EACH).inspect(None)


@pytest.mark.needs("torch")
def test_a_torch_module_that_trains_by_itself_is_refused_by_the_name_of_its_method(workplace):
    source = "import torch\nclass Net(torch.nn.Linear):\n    def configure_optimizers(self): pass\n"
    with pytest.raises(ConfigurationError, match="Net with `configure_optimizers`"):
        workplace(f"{source}\ndef get_model(): return Net(6, 3)\n", *ONE_OF_EACH).inspect(None)
