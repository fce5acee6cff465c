"""Both drivers on real digits under real mpirun."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from nnlo_opt import load_run
from tests.helpers import launcher, networks
from tests.helpers.effort import some_of
from tests.helpers.launcher import data_of, events_of, results_of

pytestmark = pytest.mark.mpi

SPACE = """
from skopt.space import Categorical, Integer, Real

parameter_range = [
    Integer(8, 32, name="n_units"),
    Real(1e-3, 1e-1, prior="log-uniform", name="train.learning_rate"),
    Categorical(["adam", "sgd", "rmsprop"], name="train.optimizer"),
    Categorical([True, False], name="train.synchronous"),
    Integer(1, 3, name="train.sync_every"),
]
"""


@pytest.fixture
def folder(tmp_path, network) -> Path:
    (tmp_path / "space.py").write_text(SPACE)
    (tmp_path / "model.py").write_text(network.careful)
    return tmp_path


@pytest.mark.keras
@pytest.mark.parametrize("n_ranks", some_of([3, 5]))
@pytest.mark.parametrize("network", [networks.NETWORKS["keras"]], ids=["keras"])
def test_a_search_trains_real_networks_and_leaves_all_files(folder, digits, n_ranks):
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "3"]
    outcome = launcher.run(n_ranks, [*command, "--epochs", "2", "--checkpoint", "S", *data_of(digits)], folder)
    run = folder / "checkpoints/S"
    assert [row["state"] for row in results_of(run)] == ["complete"] * 3
    assert all(0.0 <= float(row["figure_of_merit"]) < 1.0 for row in results_of(run))
    best = json.loads((run / "summary.json").read_text())["best"]
    assert f"Best: trial {best['trial']}" in outcome.out
    assert zipfile.is_zipfile(run / "best_model.keras")
    assert "categorical_crossentropy" in outcome.out  # inferred, and said
    assert "TensorFlow" not in outcome.err
    for number in range(3):
        fold = run / f"trials/{number:04d}/fold0"
        assert (fold / "weights.npz").exists()
        assert len(json.loads((fold / "history.json").read_text())["epochs"]) == 2
    # What the coordinator has recorded needs no checkpoints; it may not have said so to the last trials.
    assert not list(run.glob("trials/0000/fold0/checkpoint-*"))


COMPILED = """
def get_model():
    import keras
    model = keras.Sequential(
        [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    )
    optimizer = keras.optimizers.SGD(0.0625, momentum=0.5, clipnorm=1.0)
    model.compile(optimizer, "categorical_hinge", metrics=["accuracy", "AUC"], steps_per_execution=2)
    return model
"""


@pytest.mark.keras
@pytest.mark.proof
def test_a_compiled_model_trains_as_its_options_would_and_no_argument_is_dropped_in_silence(tmp_path, digits):
    (tmp_path / "compiled.py").write_text(COMPILED)
    (tmp_path / "plain.py").write_text(COMPILED.replace("model.compile", "''.format"))
    options = [
        "--optimizer",
        "sgd",
        "--lr",
        "0.0625",
        "--optimizer-params",
        "{'momentum': 0.5}",
        "--clip-norm",
        "1.0",
        "--loss",
        "categorical_hinge",
    ]
    outs = []
    for name, given in (("compiled", []), ("plain", options)):
        command = ["TrainingDriver", "--model", f"{name}.py", "--mode", "allreduce", "--trial-name", name, *given]
        outs.append(launcher.run(2, [*command, "--epochs", "1", *data_of(digits)], tmp_path).out)
    assert "allreduce, sgd." in outs[0]
    taken = "sgd (learning_rate=0.0625, momentum=0.5, clip_norm=1.0), loss categorical_hinge, acc"
    assert f"Taken from `compile`: {taken}" in outs[0]
    assert "Not taken from `compile`: steps_per_execution=2 (batches are computed one by one)." in outs[0]
    histories = [load_run(tmp_path / "checkpoints" / name).trials[0].folds[0] for name in ("compiled", "plain")]
    others = {name: histories[0].metrics[name] for name in ("auc", "val_auc")}
    assert all(0.5 < value <= 1 for value in others.values())
    assert histories[1].metrics | others == histories[0].metrics
    again = ["TrainingDriver", "--model", "compiled.py", "--mode", "allreduce", "--trial-name", "compiled"]
    resumed = launcher.run(1, [*again, "--epochs", "2", "--restore", *data_of(digits)], tmp_path).out
    assert "Taken from `compile`: sgd" in resumed
    assert "Trained 2 epochs" in resumed


@pytest.mark.proof
def test_folds_train_on_sub_blocks_at_the_same_time(folder, digits):
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "2"]
    launcher.run(5, [*command, "--block-size", "4", "--n-fold", "2", "--checkpoint", "S", *data_of(digits)], folder)
    run = folder / "checkpoints/S"
    for row in results_of(run):
        assert (row["state"], row["n_folds"], row["n_ranks"]) == ("complete", "2", "4")
    assert {event["team"] for event in events_of(run, "FoldAssigned")} == {0, 1}


@pytest.mark.proof
def test_a_race_of_folds_gives_up_trials_that_their_first_folds_show_to_be_worse(folder, digits, network):
    space = "from nnlo_opt.space import Real\nspace = [Real(1e-7, 1e-1, 'log-uniform', name='train.learning_rate')]\n"
    (folder / "rates.py").write_text(space)
    (folder / "model.py").write_text(network.plain)
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "rates.py", "--num-iterations", "8"]
    command += ["--n-fold", "4", "--fold-racing", "--hyper-opt", "random", "--loss", "categorical_crossentropy"]
    launcher.run(3, [*command, "--block-size", "1", "--checkpoint", "S", *data_of(digits)], folder)
    ended = results_of(folder / "checkpoints/S")
    pruned = [row for row in ended if row["state"] == "pruned"]
    complete = [row for row in ended if row["state"] == "complete"]
    assert len(pruned) + len(complete) == 8
    assert pruned
    for row in pruned:
        assert int(row["n_folds"]) in (2, 3)
        told = re.search(r"its mean (\S+) is worse than the (\S+) of trial \d+ on the same folds \(p", row["reason"])
        assert told
        assert float(told[1]) > float(told[2])
    assert {row["n_folds"] for row in complete} == {"4"}
    # Which of the rates that train are given up for a better one depends on who comes first; never all of them.
    best = min(complete, key=lambda row: float(row["figure_of_merit"]))
    assert float(best["p:train.learning_rate"]) > 1e-3
    assert float(best["figure_of_merit"]) < 0.5


@pytest.mark.proof
def test_a_serial_search_with_a_seed_repeats_itself(folder, digits):
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "4"]
    results = []
    for name in ("A", "B"):
        launcher.run(1, [*command, "--seed", "7", "--checkpoint", name, *data_of(digits)], folder)
        rows = results_of(folder / f"checkpoints/{name}")
        results.append([{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows])
    assert results[0] == results[1]


@pytest.mark.proof
@networks.trained("dense", "keras")
def test_training_on_three_ranks_and_on_one(folder, digits, network):
    command = ["TrainingDriver", "--model", "model.py", "--epochs", "3", "--loss", "categorical_crossentropy"]
    for n_ranks in (1, 3):
        name = f"on{n_ranks}".ljust(224 + 10 * n_ranks, "n")  # names of files in the run would be too long
        launcher.run(n_ranks, [*command, "--trial-name", name, *data_of(digits)], folder)
        (path,) = (folder / "checkpoints" / name).glob("*_history.json")
        history = json.loads(path.read_text())
        assert len(history["history"]["0:-:-"]["val_acc"]) == 3
        assert history["history"]["0:-:-"]["val_acc"][-1] > 0.5
        if n_ranks == 3:
            assert set(history["history"]) == {"0:-:-", "1:1:-", "2:2:-"}
        assert zipfile.is_zipfile(folder / f"checkpoints/{name}/best_model{network.suffix}")


@pytest.mark.proof
@networks.trained("dense")
def test_a_training_says_why_it_ended_and_which_weights_it_has_saved(folder, digits):
    command = ["TrainingDriver", "--model", "model.py", "--epochs", "60", "--early-stopping", "val_loss,<,1"]
    out = launcher.run(3, [*command, "--learning-rate", "0.3", "--checkpoint", "T", *data_of(digits)], folder).out
    epochs = json.loads((folder / "checkpoints/T/trials/0000/fold0/history.json").read_text())["epochs"]
    best, n = len(epochs) - 1, len(epochs)
    assert epochs[best - 1]["val_loss"] <= epochs[n - 1]["val_loss"]
    assert f"Trained {n} of 60 epochs" in out
    assert f"s: val_loss has not improved since epoch {best} (`--early-stopping val_loss,<,1`).\n" in out
    for which, epoch in (("Last", n), ("Best", best)):
        loss = epochs[epoch - 1]["val_loss"]
        assert re.search(rf"^{which} epoch, {epoch}: .* val_loss {loss:.4f} ", out, re.MULTILINE)
    assert f"best_model.npz`, with the weights of epoch {best} (the best of {n}).\n" in out
    assert len(re.findall(r"^epoch \d+/60: loss .* left$", out, re.MULTILINE)) == n
    assert not re.search("trial 0|block 1|done", out.replace("epochs are done", ""))


@pytest.mark.proof
@networks.trained("dense")
def test_the_best_trial_is_saved_trained_on_all_data_and_tested_once(folder, digits):
    lists = {name: (digits / f"{name}_mnist.list").read_text().splitlines() for name in ("train", "test")}
    for name, files in (("val", lists["test"][:1]), ("test", lists["test"][1:])):
        (folder / f"{name}.list").write_text("".join(f"{digits / file}\n" for file in files))
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "2"]
    command += ["--early-stopping", "val_loss,<,1", "--epochs", "9", "--n-fold", "2", "--checkpoint", "S"]
    command += ["--train-data", str(digits / "train_mnist.list"), "--val-data", "val.list", "--test-data", "test.list"]
    run = folder / "checkpoints/S"
    found = launcher.run(1, command, folder).out
    saved = re.search(r"best_model.npz`, (with the weights of fold . \(the best of 2\), epoch .*)\.\n", found)
    assert saved
    summary = json.loads((run / "summary.json").read_text())
    measured = "loss {loss:.4f} acc {acc:.4f}".format(**summary["test"])
    assert f"On the test data, `test.list`: {measured}\n" in found
    model = (run / "best_model.npz").read_bytes()
    (run / "best_model.npz").unlink()  # as if the search had been killed
    assert saved[1] in launcher.run(1, ["nnlo-opt", "best-model", "checkpoints/S"], folder).out
    assert (run / "best_model.npz").read_bytes() == model
    again = launcher.run(3, ["TrainingDriver", "--from-run", "checkpoints/S", "--checkpoint", "R"], folder).out
    assert "Data: 736 training and 0 validation samples." in again
    assert "On the test data, `test.list`: loss " in again
    (suggested,) = events_of(folder / "checkpoints/R", "TrialSuggested")
    assert suggested["point"] == {"n_units": summary["best"]["parameters"]["n_units"]}
    (run / "journal.jsonl").write_text("damaged\nby\nsomething\n")
    refused = launcher.run(1, ["TrainingDriver", "--from-run", "checkpoints/S"], folder, code=2)
    assert "nnlo-opt repair" in refused.err
    assert "Traceback" not in refused.err


@networks.trained("keras")
def test_the_saved_model_has_the_figure_that_was_reported(folder, digits):
    command = ["TrainingDriver", "--model", "model.py", "--epochs", "6", "--early", "val_loss,<,2"]
    launcher.run(2, [*command, "--learning-rate", "0.05", "--trial-name", "T", *data_of(digits)], folder)
    import h5py
    import keras
    import numpy as np

    run = folder / "checkpoints/T"
    reported = json.loads((run / "summary.json").read_text())["best"]["figure_of_merit"]
    correct = total = 0
    model = keras.models.load_model(run / "best_model.keras")
    for path in sorted(digits.glob("mnist_test_*.h5")):
        with h5py.File(path) as file:
            predicted = model.predict(file["features"][:], verbose=0).argmax(axis=1)
            correct += int(np.sum(predicted == file["labels"][:].argmax(axis=1)))
            total += len(predicted)
    assert 1 - correct / total == pytest.approx(reported)
    with h5py.File(path) as file:
        x = file["features"][:]
    again = load_run(run).best_model()
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)


@networks.trained("dense", "keras")
def test_a_training_is_restored(folder, digits, preloaded):
    command = ["TrainingDriver", "--model", "model.py", "--checkpoint", "T", "--synchronous", *data_of(digits)]
    launcher.run(3, [*command, "--epochs", "1"], folder)
    outcome = preloaded.run([*command, "--epochs", "1"], folder, code=2)
    assert "--restore" in outcome.err
    outcome = launcher.run(3, [*command, "--epochs", "3", "--restore"], folder)
    assert "resumes after epoch 1" in outcome.out
    history = json.loads((folder / "checkpoints/T/model_train_history.json").read_text())
    assert len(history["history"]["0:-:-"]["val_acc"]) == 3


@pytest.mark.proof
@pytest.mark.needs("optuna", "tensorboard")
@networks.trained("dense")
def test_a_training_has_mirrors_which_continue_with_it(folder, digits):
    command = ["TrainingDriver", "--model", "model.py", "--checkpoint", "T", "--mirror", "optuna", "tensorboard"]
    for options in (["--epochs", "1"], ["--epochs", "3", "--restore"]):
        assert "mirror" not in launcher.run(1, [*command, *options, *data_of(digits)], folder).err
    run = load_run(folder / "checkpoints/T")
    from nnlo_opt.engine.search.optuna_reading import read_study

    study, _ = read_study(str(run.directory / "optuna.log"), "--warm-start")
    assert [trial.value for trial in study.trials] == [trial.figure_of_merit for trial in run.trials]
    assert [trial.intermediate_values for trial in study.trials] == [trial.curve for trial in run.trials]
    assert len([*run.directory.glob("tensorboard/trial-*/*tfevents*")]) == len(run.trials)


@networks.trained("keras")
def test_a_model_architecture_in_json_is_trained(folder, digits):
    launcher.run(1, ["BuildModel", "mnist"], folder)
    launcher.run(2, ["TrainingDriver", "--model", "mnist_arch.json", "--trial-name", "J", *data_of(digits)], folder)
    assert (folder / "checkpoints/J/mnist_J_history.json").exists()


@pytest.mark.proof
@networks.trained("keras", "torch")
def test_trials_of_folds_become_one_model(folder, digits, network):
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "4"]
    command += ["--n-fold", "2", "--epochs", "2", "--block-size", "1", "--keep-weights", "best:3", "--checkpoint", "S"]
    launcher.run(3, [*command, *data_of(digits)], folder)
    run = folder / "checkpoints/S"
    assert len([*run.glob("trials/*/fold*/weights.npz")]) == 6
    said = launcher.run(1, ["nnlo-opt", "ensemble", "checkpoints/S", "--size", "5"], folder).out
    assert "Ensemble of 3 trials: the mean of " in said
    figures = [[float(word) for word in re.findall(r" (0\.\d+|0)\b", line)] for line in said.splitlines()]
    single, ensemble = (found for found in figures if len(found) == 2)
    assert ensemble[0] <= single[0]
    assert (run / f"ensemble{network.suffix}").exists()
