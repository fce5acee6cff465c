"""A manager in one process; what several ranks do stands in test_manager_ranks.py."""

import csv
import json

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.models.builtin import gan
from tests.helpers.circle import Circle, Endless
from tests.helpers.effort import some_of
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.usefixtures("dense")
FILES = ["0", "1", "2", "3"]


class Net(nnlo_opt.ModelBuilder):
    def build_model(self):
        import dense

        return dense.Net(16, 2, 2)


class KerasNet(nnlo_opt.ModelBuilder):
    def build_model(self):
        import keras

        layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(2, "softmax")]
        return keras.Sequential([keras.Input((2,)), *layers])


def manager_of(data=None, algo=None, builder=None, epochs=3, val=("9",), **changes):
    data = data or Circle(20)
    algo = algo or nnlo_opt.Algo("adam", learning_rate=0.02)
    return nnlo_opt.MPIManager(None, data, algo, builder or Net(), epochs, FILES, list(val), **changes)


def validation_samples():
    batches = [*Circle(20).of(["9"]).generate_data()]
    return np.concatenate([x for (x,), _ in batches]), np.concatenate([y for _, (y,) in batches])


def test_a_training_learns_and_tells_its_history(capsys):
    manager = manager_of(epochs=8, verbose=True)
    history = manager.train()
    assert set(history) >= {"train_time", "history", "args"}
    metrics = history["history"]["0:-:-"]
    assert set(metrics) == {"loss", "acc", "val_loss", "val_acc"}
    assert all(len(values) == 8 for values in metrics.values())
    assert metrics["loss"][-1] < metrics["loss"][0]
    assert metrics["val_acc"][-1] > 0.8
    assert manager.figure_of_merit() == pytest.approx(1 - metrics["val_acc"][-1])
    assert "epoch 8/8: loss" in capsys.readouterr().out
    assert manager.train() == history
    manager.close()


def test_the_script_of_the_ancestors(tmp_path):
    manager = manager_of(epochs=2)
    assert manager.is_master
    histories = manager.process.train()
    assert len(histories["0:-:-"]["val_loss"]) == 2
    manager.process.record_details(tmp_path / "net_history.json", meta={"args": {"batch": 20}})
    manager.free_comms()
    written = json.loads((tmp_path / "net_history.json").read_text())
    assert (written["history"], written["args"]) == (histories, {"batch": 20})
    assert (tmp_path / "net_history.keras").is_file()


@pytest.mark.keras
@pytest.mark.proof
def test_the_model_that_is_saved_is_the_one_that_was_validated(tmp_path):
    import keras

    manager = manager_of(builder=KerasNet(), epochs=5)
    accuracy = manager.train()["history"]["0:-:-"]["val_acc"][-1]
    manager.save(tmp_path / "net.keras")
    x, y = validation_samples()
    for model in (keras.models.load_model(tmp_path / "net.keras"), manager.model):
        assert np.mean(np.argmax(model.predict(x, verbose=0), 1) == y) == pytest.approx(accuracy)
    check_refused("saved as", manager.save, tmp_path / "net.txt")
    manager.close()


def test_a_validate_every_of_0_disables_validation():
    history = manager_of(algo=nnlo_opt.Algo("adam", validate_every=0)).train()["history"]["0:-:-"]
    assert set(history) == {"loss", "acc"}


@pytest.mark.parametrize(("every", "n_validations"), [(2, 30), (8, 8), (None, 3), (20.5, 3)])
def test_validation_comes_after_the_updates_that_were_asked_for(every, n_validations):
    history = manager_of(algo=nnlo_opt.Algo("adam", validate_every=every), epochs=3).train()["history"]["0:-:-"]
    assert len(history["val_loss"]) == len(history["loss"]) == n_validations


@pytest.mark.proof
def test_early_stopping_and_target(tmp_path):
    history = manager_of(epochs=50, target_metric="val_acc,>,0.6").train()["history"]["0:-:-"]
    assert len(history["val_acc"]) < 50
    algo = nnlo_opt.Algo("adam", learning_rate=0.2, early_stopping="val_loss,<,2")
    history = manager_of(algo=algo, epochs=60).train()["history"]["0:-:-"]
    assert len(history["val_acc"]) < 60


def test_a_training_continues_from_its_checkpoint(tmp_path):
    algo = nnlo_opt.Algo("adam", synchronous=True)
    whole = manager_of(algo=algo, epochs=4, val=()).train()["history"]["0:-:-"]["loss"]
    manager_of(algo=algo, epochs=2, val=(), checkpoint=tmp_path, checkpoint_interval=1).train()
    rest = manager_of(algo=algo, epochs=4, val=(), checkpoint=tmp_path, checkpoint_interval=1).train()
    assert rest["history"]["0:-:-"]["loss"] == whole


# ---------------------------------------------------------------- data


def test_an_endless_generator_is_an_error_that_says_so():
    check_refused("`generate_data` must return after one epoch", manager_of, data=Endless(20))


@pytest.mark.proof
def test_one_that_counts_itself_is_found_out_while_it_trains():
    class Counted(Endless):
        def count_data(self):
            return 100 * len(self.file_names)

    with pytest.raises(TrialError, match="`generate_data` must return after one epoch"):
        manager_of(data=Counted(20), algo=nnlo_opt.Algo("adam", synchronous=True)).train()


def test_arrays_of_files_are_cut_into_batches_and_none_is_left_out():
    class Arrays(nnlo_opt.Data):
        def load_data(self, in_file):
            x = np.full((7, 2), float(in_file), np.float32)
            return x, (x[:, 0] > 1).astype(int)

    data = Arrays(4)
    data.set_file_names(FILES)
    assert [len(x) for x, _ in data.generate_data()] == [4] * 7
    assert data.count_data() == 28
    data.set_file_names(FILES[:1])
    assert [len(x) for x, _ in data.generate_data()] == [4, 3]
    assert len(manager_of(data=data, val=()).train()["history"]["0:-:-"]["loss"]) == 3


def test_sample_weights_are_the_third_of_a_batch():
    class Weighted(Circle):
        def generate_data(self):
            for x, y in super().generate_data():
                yield x, y, np.zeros(len(y[0]))

    losses = manager_of(data=Weighted(20), val=()).train()["history"]["0:-:-"]["loss"]
    assert losses == [0.0] * 3


def test_a_path_in_place_of_a_list_is_that_of_a_list_file():
    with pytest.raises(ConfigurationError, match=r"A list file must exist\. Received: a\.list, which"):
        nnlo_opt.MPIManager(None, Circle(20), nnlo_opt.Algo("adam"), Net(), 3, "a.list")


@pytest.mark.parametrize("cached", some_of([False, True]))
def test_hdf5_files(tmp_path, digits, cached):
    files = sorted(map(str, digits.glob("mnist_train*.h5")))
    data = nnlo_opt.H5Data(50, cache=str(tmp_path / "cache") if cached else None)

    class Digits(nnlo_opt.ModelBuilder):
        def build_model(self):
            import dense

            return dense.Net(16)

    algo = nnlo_opt.Algo("adam", learning_rate=0.01)
    manager = nnlo_opt.MPIManager(None, data, algo, Digits(), 4, files[:2], files[2:])
    assert manager.train()["history"]["0:-:-"]["val_acc"][-1] > 0.6
    manager.close()
    data.set_file_names(files)
    assert data.count_data() == 672
    if cached:
        assert all(str(tmp_path) in name for name in data.file_names)
        data.finalize()
    kfold = nnlo_opt.MPIKFoldManager(3, None, data, algo, Digits(), 2, digits / "train_mnist.list")
    assert kfold.train_list == tuple(files)
    assert len(kfold.train()) == 3
    assert 0 < kfold.figure_of_merit() < 1
    assert kfold.figure_of_merit_std() > 0
    kfold.close()


# ---------------------------------------------------------------- models


@pytest.mark.keras
@pytest.mark.proof
def test_a_model_from_json(tmp_path):
    import keras

    net = KerasNet().build_model()
    (tmp_path / "net.json").write_text(net.to_json())
    net.save_weights(tmp_path / "net.weights.h5")
    for arguments in ({"filename": tmp_path / "net.json"}, {"json_str": net.to_json()}):
        builder = nnlo_opt.ModelFromJson(None, weights=tmp_path / "net.weights.h5", **arguments)
        assert np.array_equal(builder.build_model().get_weights()[0], net.get_weights()[0])
    assert manager_of(builder=builder).train()["train_time"] > 0

    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    own = keras.Sequential([keras.Input((2,)), Doubled(), keras.layers.Dense(2, "softmax")])
    builder = nnlo_opt.ModelFromJson(None, json_str=own.to_json(), custom_objects={"Doubled": Doubled})
    manager_of(builder=builder).train()
    check_refused("not both", nnlo_opt.ModelFromJson, None)
    check_refused("none.json", nnlo_opt.ModelFromJson, None, filename="none.json")


@pytest.mark.needs("torch")
def test_a_torch_module():
    import torch

    class Torch(nnlo_opt.ModelBuilder):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

        def get_backend_name(self):
            return "pytorch"

    manager = manager_of(builder=Torch(), algo=nnlo_opt.Algo("adam", loss="CrossEntropy", learning_rate=0.02), epochs=6)
    losses = manager.train()["history"]["0:-:-"]["val_loss"]
    assert losses[-1] < losses[0]
    assert isinstance(manager.model, torch.nn.Module)

    class DoesNotTell(Torch):
        def get_backend_name(self):
            return None

    assert isinstance(DoesNotTell().build_model(), torch.nn.Module)
    history = manager_of(builder=DoesNotTell(), algo=nnlo_opt.Algo("adam", loss="CrossEntropy"), epochs=1).train()
    assert len(history["history"]["0:-:-"]["val_loss"]) == 1


def test_what_goes_wrong_is_told_in_a_sentence():
    class Broken(nnlo_opt.ModelBuilder):
        def build_model(self):
            raise ZeroDivisionError

    for builder, reason in ((nnlo_opt.ModelBuilder(), "must override"), (Broken(), "ZeroDivisionError")):
        with pytest.raises(TrialError, match=reason):
            manager_of(builder=builder).train()
    for name, value, received in (("num_masters", 2, "2"), ("num_processes", 2, "2"), ("epochs", 0, "0")):
        check_refused(received, manager_of, **{name: value})
    check_refused("object", manager_of, data=object())
    check_refused("at least one batch", nnlo_opt.MPIManager, None, Circle(20), nnlo_opt.Algo("adam"), Net(), 1, [], [])
    check_refused("`NFolds`", nnlo_opt.MPIKFoldManager, 0, None, Circle(20), nnlo_opt.Algo("adam"), Net(), 1, FILES)


# ---------------------------------------------------------------- callbacks


@pytest.mark.keras
@pytest.mark.proof
def test_keras_callbacks_see_every_epoch(tmp_path):
    import keras

    seen = []
    callbacks = [
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_accuracy", save_best_only=True),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}-{val_loss:.2f}.weights.h5"), save_weights_only=True),
        keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: seen.append("begin"),
            on_epoch_begin=lambda epoch, logs: seen.append(epoch),
            on_train_end=lambda logs: seen.append("end"),
        ),
    ]
    manager = manager_of(builder=KerasNet(), callbacks=callbacks, epochs=4)
    history = manager.train()["history"]["0:-:-"]
    assert seen == ["begin", 0, 1, 2, 3, "end"]
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["val_accuracy"]) for row in rows] == pytest.approx(history["val_acc"])
    assert len(list(tmp_path.glob("*.weights.h5"))) == 4
    x, y = validation_samples()
    model = keras.models.load_model(tmp_path / "best.keras")
    assert np.mean(np.argmax(model.predict(x, verbose=0), 1) == y) == pytest.approx(max(history["val_acc"]))
    manager.close()


@pytest.mark.keras
@pytest.mark.proof
def test_keras_callbacks_set_the_learning_rate(tmp_path):
    import keras

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 if epoch < 2 else 1e-9)
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    history = manager_of(builder=KerasNet(), callbacks=[schedule, log], epochs=5).train()["history"]["0:-:-"]
    losses = history["val_loss"]
    assert abs(losses[1] - losses[0]) > 1e-4
    assert np.ptp(losses[1:]) < 1e-5
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([0.02, 0.02, 1e-9, 1e-9, 1e-9])
    rates = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(logs["learning_rate"]))
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=100.0)
    manager_of(builder=KerasNet(), callbacks=[plateau, note], epochs=4).train()
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.0002])


@pytest.mark.keras
@pytest.mark.proof
def test_keras_callbacks_resume_with_their_state_if_it_is_plain(tmp_path):
    import keras

    rates = []
    for epochs in (2, 4):
        note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(logs["learning_rate"]))
        plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=100.0)
        log = keras.callbacks.CSVLogger(str(tmp_path / f"{epochs}.csv"))  # a file is none
        kept = {"checkpoint": str(tmp_path / "kept"), "epochs": epochs}
        manager = manager_of(builder=KerasNet(), callbacks=[plateau, log, note], **kept)
        manager.train()
        manager.close()
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.0002])
    assert len((tmp_path / "4.csv").read_text().splitlines()) == 3


@pytest.mark.keras
@pytest.mark.proof
def test_keras_early_stopping_gives_back_the_best_weights(tmp_path):
    import keras

    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
    algo = nnlo_opt.Algo("adam", learning_rate=0.3)
    manager = manager_of(builder=KerasNet(), algo=algo, callbacks=[stopping], epochs=60)
    losses = manager.train()["history"]["0:-:-"]["val_loss"]
    assert len(losses) < 60
    best = int(np.argmin(losses))
    assert best == len(losses) - 3
    x, y = validation_samples()
    loss = keras.losses.sparse_categorical_crossentropy(y, manager.model.predict(x, verbose=0))
    assert float(np.mean(loss)) == pytest.approx(losses[best], rel=1e-4)
    manager.close()


@pytest.mark.keras
@pytest.mark.proof
def test_models_that_train_together_take_batches_of_a_generator():
    class Gan(nnlo_opt.ModelBuilder):
        trains_itself = True

        def build_model(self):
            return gan.get_model(latent_size=4)

        def get_backend_name(self):
            return "keras"

    class Showers(nnlo_opt.Data):
        def generate_data(self):
            rng = np.random.default_rng(0)
            for _ in range(2):
                x = rng.random((4, 9, 9, 9, 1), np.float32)
                yield x, [np.ones(4, np.float32), np.full(4, 2.0, np.float32), x.sum((1, 2, 3, 4))]

    names = {"data": Showers(4), "algo": nnlo_opt.Algo("rmsprop"), "model_builder": Gan()}
    manager = nnlo_opt.MPIManager(None, **names, num_epochs=1, train_list=["a"], val_list=["b"])
    assert np.isfinite(manager.train()["history"]["0:-:-"]["val_combined_model_energy_loss"]).all()
