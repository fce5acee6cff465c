import json
import shlex
from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, assigned, completed, finished, suggested, write_journal

COMMAND = "--model mnist --epochs 20 --early val_loss,<,3 --train-data a.list --val-data b.list --seed 5 --checkpoint S"
SUGGESTED = suggested(0, {"n_units": 8})
POINT = {"n_units": 8, "train.batch": 50, "train.learning_rate": 0.5}


@pytest.fixture
def run(tmp_path):
    """Writes the journal of a search of one trial of two folds, which has a history of neither; returns the run."""

    def write(program="OptimizationDriver", command=COMMAND, n_events=8, **settings):
        settings["command_line"] = [program, *shlex.split(command)]
        identity = {"direction": "min", "search_space": {"parameters": [{"name": "n_units"}]}}
        identity["model"] = {"name": "net", "source": str(tmp_path / "net.py"), "sha256": "0"}
        events = [
            START.replaced(identity=identity, settings=settings),
            suggested(0, POINT),
            *(assigned(fold, fold=fold) for fold in (0, 1)),
            *(finished(n, 0.25, n_epochs=6 + 3 * n) for n in (0, 1)),
            completed(0, 0.25),
        ]
        write_journal(tmp_path, events[:n_events])
        for fold in (0, 1):
            place = tmp_path / f"trials/0000/fold{fold}"
            place.mkdir(parents=True)
            history = {"epochs": [], "workers": {}, "staleness": {}, "train_s": 1.0, "kept_epoch": 3 + 4 * fold}
            (place / "history.json").write_text(json.dumps(history))
        return tmp_path

    return write


def again(run, *words):
    """The options of a training that takes them over from a run."""
    return driver_options("TrainingDriver", ["--from-run", str(run), *words])


def test_a_trial_is_trained_again_on_all_data_for_as_many_epochs_as_its_best_weights_had(run):
    options = again(run())
    assert (options.model, options.seed, options.point) == ("mnist", 5, {"n_units": 8})
    training = options.training
    assert (training.batch, training.learning_rate, training.epochs, training.early_stopping) == (50, 0.5, 5, None)
    assert [str(path) for path in (options.data.train_data, options.data.val_data)] == ["a.list", "b.list"]
    assert options.data.pooled
    assert options.run.name is None, "the new run is not the one that is read"
    assert "trial 0 of" in options.remarks[-1]


def test_options_that_are_given_count_and_given_data_are_validated_on(run):
    path = run()
    own = ["--batch", "9", "--val-data", "c.list", "--epochs", "7", "--checkpoint", "R"]
    options = again(f"{path}:0", *own)
    training = options.training
    assert (training.batch, training.learning_rate, training.epochs) == (9, 0.5, 7)
    assert training.early_stopping == "val_loss,<,3"
    assert [str(path) for path in (options.data.train_data, options.data.val_data)] == ["a.list", "c.list"]
    assert not options.data.pooled
    assert options.run.name == "R"


def test_a_trial_that_was_interrupted_can_be_named(run):
    assert again(f"{run(n_events=4)}:0").training.epochs == 20


def test_a_trial_that_was_trained_again_has_the_options_of_its_search(run, tmp_path):
    search = run()
    settings = {"command_line": ["TrainingDriver", "--from-run", str(search), "--batch", "7"]}
    (tmp_path / "again").mkdir()
    write_journal(tmp_path / "again", [START.replaced(identity={"search_space": None}, settings=settings), SUGGESTED])
    options = again(tmp_path / "again")
    assert (options.model, options.point, options.training.batch, options.seed) == ("mnist", {"n_units": 8}, 7, 5)


def test_no_command_of_a_run_is_taken_over(run):
    path = run(command=f"{COMMAND} --cache-data cache --copy-command 'touch {{}} {{}}'")
    options = again(path)
    assert (options.data.cache, options.data.copy_command) == (Path("cache"), None)


def test_runs_that_lead_back_to_themselves_are_refused(run, tmp_path):
    path = run(program="TrainingDriver", command=f"--from-run {tmp_path / 'other'}/../other:0")
    (tmp_path / "other").mkdir()
    events = [START.replaced(settings={"command_line": ["TrainingDriver", "--from-run", str(path)]}), SUGGESTED]
    write_journal(tmp_path / "other", events)
    check_refused("which leads back to itself", again, path)


@pytest.mark.parametrize(
    ("written", "number", "words"),
    [
        ({"n_events": 4}, "", "none of them complete"),
        ({}, ":3", "without trial 3"),
        ({"program": "nnlo_opt.optimize"}, "", "of nnlo_opt.optimize, whose model only its script knows"),
    ],
)
def test_a_run_without_the_trial_asked_for_is_refused(run, written, number, words):
    check_refused(words, again, f"{run(**written)}{number}")


def test_a_search_of_an_objective_is_refused(tmp_path):
    write_journal(tmp_path, [START.replaced(identity={"data": None}), suggested(0, {})])
    check_refused("must name a run that has trained models", again, f"{tmp_path}:0")


def test_a_folder_without_a_run_is_refused(tmp_path):
    check_refused("`--from-run` must name a run directory", again, tmp_path)


def test_a_model_that_has_changed_has_no_best_model(run, tmp_path, refused):
    (tmp_path / "net.py").write_text("def get_model(n_units): ...")
    path = run(command=f"--model {tmp_path / 'net.py'}")
    assert "which has changed since" in refused("best-model", path)


def test_files_that_a_run_has_named_are_found_from_another_folder(run, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("def get_model(n_units): ...")
    for name in ("a.list", "b.list"):
        (tmp_path / name).touch()
    path = run(command="--model net.py --train-data a.list --val-data b.list", folder=str(tmp_path))
    monkeypatch.chdir("/")
    options = again(path)
    assert (options.model, options.data.val_data) == (str(tmp_path / "net.py"), tmp_path / "b.list")
    monkeypatch.chdir(tmp_path)
    assert again(path).model == "net.py"
