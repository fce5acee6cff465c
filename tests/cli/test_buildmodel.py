import json

import pytest

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.keras
def test_writes_architecture_and_weights(tmp_path, printed):
    words = ["mnist", "nb_filters=8", "dense=10", "dropout=0.3", "--weights", "--seed", "3"]
    assert printed(*words, program="BuildModel") == "Wrote mnist_arch.json\nWrote mnist.weights.h5\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist.weights.h5", "mnist_arch.json"]
    import keras

    model = keras.models.model_from_json((tmp_path / "mnist_arch.json").read_text())
    assert model.layers[0].filters == 8
    model.load_weights(tmp_path / "mnist.weights.h5")
    printed("mnist_arch.json", "--out", "again.json", program="BuildModel")
    assert json.loads((tmp_path / "again.json").read_text())["class_name"] == "Sequential"


@pytest.mark.keras
def test_a_point_that_cannot_be_built(refused):
    assert "`get_model`" in refused("mnist", "kernel_size=40", program="BuildModel")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["minst"], "Did you mean `mnist`?"),
        (["mnist", "filters=3"], "Received: 'filters'. It accepts: dense, dropout"),
        (["mnist", "dropout"], "name=value. Received: 'dropout'"),
        (["mnist", "dense=3", "dense=4"], "given once"),
        (["mnist", "--out", "no/such/folder.json"], "`--out` must be a file"),
        (["objective.py"], "defines `objective`"),
        (["gan"], "several models that are trained together"),
    ],
)
def test_wrong_requests(tmp_path, arguments, sentence, refused):
    (tmp_path / "objective.py").write_text("def objective(parameters, comm, report): return 0")
    assert sentence in refused(*arguments, program="BuildModel")
