import zipfile

import h5py
import numpy as np
import pytest

import nnlo_opt
from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.earlier_runs import BEST_MODEL_OPTIONS, best_model, model_of_run
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory, save_weights
from nnlo_opt.engine.models.builders import open_model
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, assigned, completed, finished, suggested, write_journal
from tests.helpers.workloads import workload_of

MODULE = """
def get_model(width=2):
    from torch import nn

    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
"""
#: 8 of the first layer, 4 of the normalisation, 3 of the last layer; running means and variances
WEIGHTS = np.arange(15, dtype=np.float32) / 10
STATE = np.array([0.5, 0.25, 1.0, 4.0], np.float32)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def run(tmp_path):
    """Writes a run of one trial, whose folds have weights of different signs; returns its directory."""

    def write(words=(), **model):
        with h5py.File(tmp_path / "data.h5", "w") as file:
            file["features"], file["labels"] = np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)
        (tmp_path / "net.py").write_text(MODULE)
        place = tmp_path / "checkpoints/CP"
        place.mkdir(parents=True)
        source = tmp_path / "net.py"
        model = {"name": "net", "source": str(source), "sha256": open_model(str(source)).sha256} | model
        identity = {"search_space": {"parameters": [{"name": "width"}]}, "model": model, "direction": "min"}
        identity |= {"data": {"files": [[str(tmp_path / "data.h5"), 4]]}, "training": {"loss": "MSELoss"}}
        settings = {"command_line": ["OptimizationDriver", "--model", str(source), *words]}
        events = [START.replaced(identity=identity, settings=settings), suggested(0, {"width": 2})]
        for number, figure in enumerate([0.5, 0.25]):
            events += [assigned(number, fold=number), finished(number, figure)]
            save_weights(fold_directory(place, 0, number), WEIGHTS * (-1) ** number, STATE)
        events.append(completed(0, 0.375, std=0.125))
        return write_journal(place, [*events, ev.RunCompleted(time_s=3.0, reason="all trials are done")])

    return write


def again(run):
    return workload_of("--from-run", f"{run}:0")


def predicted(sign):
    """The output of the trained network for X, in NumPy."""
    w = WEIGHTS * sign
    hidden = X @ w[:6].reshape(2, 3).T + w[6:8]
    hidden = (hidden - STATE[:2]) / np.sqrt(STATE[2:] + 1e-5) * w[8:10] + w[10:12]
    return hidden @ w[12:14].reshape(2, 1) + w[14]


@pytest.mark.needs("torch")
@pytest.mark.proof
def test_a_model_predicts_with_the_weights_of_its_fold_wherever_the_process_stands(run, tmp_path, monkeypatch):
    import torch

    loaded = nnlo_opt.load_run(run())
    monkeypatch.chdir("/")
    for model, sign in ((loaded.best_model(), -1), (loaded.model(0, fold=0), 1)):
        assert isinstance(model, torch.nn.Module)
        with torch.no_grad():
            np.testing.assert_allclose(model(torch.from_numpy(X)).numpy(), predicted(sign), rtol=1e-5)


def lead_to_another_file(data):
    data.rename(data.with_name("elsewhere.h5"))
    with h5py.File(data, "w") as file:
        for name in ("features", "labels"):
            file[name] = h5py.ExternalLink(str(data.with_name("elsewhere.h5")), name)


@pytest.mark.needs("torch")
def test_data_that_lead_to_other_files_are_read_if_the_command_has_read_them(run, tmp_path):
    place = run(words=["--ext"])
    lead_to_another_file(tmp_path / "data.h5")
    assert nnlo_opt.load_run(place).best_model() is not None


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("reports_here")
def test_data_that_lead_to_other_files_are_read_if_a_search_from_python_has_read_them(run, tmp_path):
    run()
    lead_to_another_file(tmp_path / "data.h5")
    (tmp_path / "list").write_text(str(tmp_path / "data.h5"))
    data = {"train_data": tmp_path / "list", "val_data": tmp_path / "list", "external_data": True, "loss": "MSELoss"}
    about = {"num_iterations": 1, "hyper_opt": "random", "batch": 2, "checkpoint": tmp_path / "searched"}
    result = nnlo_opt.optimize(tmp_path / "net.py", {"width": nnlo_opt.Integer(2, 4)}, **data, **about)
    assert nnlo_opt.load_run(result.directory).best_model() is not None


@pytest.mark.needs("torch")
@pytest.mark.proof
def test_the_best_model_is_saved_from_any_folder_without_the_command_of_the_run(run, monkeypatch, printed):
    place = run()
    monkeypatch.chdir("/")
    assert "with the weights of fold 1" in printed("best-model", place)
    assert zipfile.is_zipfile(place / "best_model.pt")


@pytest.mark.needs("torch")
@pytest.mark.proof
def test_the_best_model_is_the_saved_one_if_it_cannot_be_made_again(run, tmp_path):
    import torch

    place = run(function="get_model", sha256="of a script")
    check_refused("trials call `get_model` of the script", nnlo_opt.load_run(place).best_model)
    torch.jit.script(torch.nn.Linear(3, 1)).save(place / "best_model.pt")
    loaded = nnlo_opt.load_run(place)
    assert loaded.best_model()(torch.from_numpy(X)).shape == (2, 1)
    check_refused("trials call `get_model` of the script", loaded.model, 0, fold=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run, folder: (folder / "net.py").write_text(MODULE + "# changed\n"), "which has changed since"),
        (lambda run, folder: (folder / "net.py").unlink(), "which is no file"),
    ],
)
def test_a_model_that_is_not_what_it_was_is_refused(run, tmp_path, change, words):
    place = run()
    change(place, tmp_path)
    check_refused(words, nnlo_opt.load_run(place).best_model)


@pytest.mark.parametrize(
    "read",
    [
        lambda run: nnlo_opt.load_run(run).best_model(),
        lambda run: nnlo_opt.load_run(run).model(0),
        lambda run: best_model(Parser(BEST_MODEL_OPTIONS), [str(run)]),
        lambda run: model_of_run(run, None),
        lambda run: again(run).check(None),
    ],
    ids=["best_model()", "model()", "best-model", "ensemble", "--from-run"],
)
def test_no_reader_of_a_journal_executes_a_file_that_other_users_can_write(run, tmp_path, read):
    place, net = run(), tmp_path / "net.py"
    net.write_text(f"open({str(tmp_path / 'ran')!r}, 'x')\n{MODULE}")
    net.chmod(0o666)
    check_refused(f"`{net}` is -rw-rw-rw- of user", read, place)
    net.chmod(0o644)
    check_refused("which has changed since", read, place)
    (place / "best_model.py").write_text(net.read_text())
    (place / "best_model.py").chmod(0o666)
    net.unlink()
    with pytest.raises(ConfigurationError):
        read(place)
    assert not (tmp_path / "ran").exists()


def test_an_objective_has_no_model(run, tmp_path):
    (tmp_path / "objective.py").write_text("def objective(x): return x")
    objective = tmp_path / "objective.py"
    place = run(source=str(objective), sha256=open_model(str(objective)).sha256)
    check_refused("whose objective returns none", nnlo_opt.load_run(place).best_model)


@pytest.mark.needs("torch")
@pytest.mark.proof
@pytest.mark.parametrize(
    ("lost", "words"), [("trials/0000/fold1/weights.npz", "trial 0, complete (`"), ("../../data.h5", "data.h5")]
)
def test_a_model_whose_files_are_gone_is_refused(run, lost, words):
    place = run()
    (place / lost).unlink()
    check_refused(words, nnlo_opt.load_run(place).best_model)
