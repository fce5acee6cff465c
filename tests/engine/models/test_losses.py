import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.losses import (
    Labels,
    LossTerm,
    Output,
    figures_of,
    losses_in_words,
    make_terms,
    split_losses,
)
from tests.helpers.refusals import check_refused

KIND, ENERGY, REAL = Output("kind", (3,), "softmax"), Output("energy", (1,), None), Output("real", (1,), "sigmoid")
OUTPUTS = [KIND, ENERGY, REAL]
LABELS = [Labels((), "int64"), Labels((1,), "float32"), Labels((), "float32", np.array([0.0, 1.0]))]


def terms_of(request, weights=None, outputs=OUTPUTS, labels=LABELS):
    return make_terms(request, weights, outputs, labels, losses)


def own(y_true, y_pred):
    return 0


@pytest.mark.parametrize(
    ("activation", "output", "label", "dtype", "values", "expected"),
    [
        ("softmax", (10,), (10,), "f4", None, "categorical_crossentropy"),
        ("softmax", (10,), (), "i8", None, "sparse_categorical_crossentropy"),
        ("softmax", (10,), (1,), "f4", [[3.0], [9.0]], "sparse_categorical_crossentropy"),
        ("softmax", (7, 10), (7,), "u1", None, "sparse_categorical_crossentropy"),
        ("sigmoid", (1,), (), "f4", [0.0, 1.0], "binary_crossentropy"),
        ("sigmoid", (5,), (5,), "i4", None, "binary_crossentropy"),
        ("sigmoid", (1,), (1,), "f4", [[0.3]], "mean_squared_error"),
        (None, (1,), (), "f4", None, "mean_squared_error"),
        ("relu", (3,), (3,), "f4", [[0, 1, 2]], "mean_squared_error"),
    ],
)
def test_inferred_losses(activation, output, label, dtype, values, expected):
    hint = None if values is None else np.array(values)
    inferred = losses.infer_loss(Output("out", output, activation), Labels(label, dtype, hint))
    assert inferred.name == expected
    assert (activation or "linear") in inferred.why


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, name) for name in losses.LOSSES),
        ("mse", "mean_squared_error"),
        ("MeanSquaredError", "mean_squared_error"),
        ("BCELoss", "binary_crossentropy"),
        ("L1Loss", "mean_absolute_error"),
        ("KLDiv", "kl_divergence"),
    ],
)
def test_known_losses(name, expected):
    assert losses.check_loss(name) == expected


def test_unknown_losses():
    with pytest.raises(ConfigurationError, match=r"'crossentropi'. Choose one of: .*binary_crossentropy"):
        losses.check_loss("crossentropi")
    check_refused("huber", losses.check_loss, "?")


@pytest.mark.parametrize(
    ("loss", "activation", "expected"),
    [
        ("categorical_crossentropy", "softmax", "categorical"),
        ("sparse_categorical_crossentropy", None, "sparse_categorical"),
        ("binary_crossentropy", "sigmoid", "binary"),
        ("binary_crossentropy", "softmax", "categorical"),
        ("mean_squared_error", None, None),
    ],
)
def test_accuracy(loss, activation, expected):
    assert losses.metric_for(loss, activation) == expected


@pytest.mark.parametrize(
    ("loss", "output", "label", "fits"),
    [
        ("categorical_crossentropy", (10,), (10,), True),
        ("categorical_crossentropy", (10,), (), False),
        ("sparse_categorical_crossentropy", (10,), (), True),
        ("sparse_categorical_crossentropy", (10,), (1,), True),
        ("sparse_categorical_crossentropy", (10,), (10,), False),
        ("mean_squared_error", (1,), (), True),
        ("mean_squared_error", (), (1,), True),
        ("mean_squared_error", (3,), (1,), False),
        ("mean_squared_error", (None, 3), (7, 3), True),
        (None, (10,), (), True),
        (None, (10,), (10,), True),
        (None, (10,), (3,), False),
    ],
)
def test_label_shapes(loss, output, label, fits):
    sentence = losses.label_mismatch(loss, output, label)
    assert (sentence is None) == fits
    assert fits or "Received: labels of shape" in sentence


def test_losses_are_chosen_for_every_output():
    terms, remarks = terms_of(None)
    assert [(term.output, term.loss, term.weight, term.accuracy) for term in terms] == [
        ("kind", "sparse_categorical_crossentropy", 1.0, "sparse_categorical"),
        ("energy", "mean_squared_error", 1.0, None),
        ("real", "binary_crossentropy", 1.0, "binary"),
    ]
    assert remarks[0].startswith("Loss of output 'kind': sparse_categorical_crossentropy, because the last layer is")
    (_,), (remark,) = terms_of(None, outputs=[ENERGY], labels=[LABELS[1]])
    assert remark.startswith("Loss: mean_squared_error, because")


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ("mse", "mean_squared_error,mean_squared_error"),
        (["mse", "BCE"], "mean_squared_error,binary_crossentropy"),
        (("mse", own), "mean_squared_error,own"),
        ({"real": "mae", "energy": own}, "own,mean_absolute_error"),
        (own, "own,own"),
    ],
)
def test_losses_as_they_may_be_asked_for(request_, names):
    terms, remarks = terms_of(request_, outputs=OUTPUTS[1:], labels=LABELS[1:])
    assert losses_in_words(terms) == names
    assert not remarks


def test_a_function_counts_classes_as_the_loss_that_fits():
    terms, _ = terms_of(own)
    assert [term.accuracy for term in terms] == ["sparse_categorical", None, "binary"]


def test_a_function_may_compare_an_output_with_labels_of_another_shape():
    outputs = [Output("embedding", (8,), "softmax")]
    terms, _ = make_terms(own, None, outputs, [Labels((), "int64")], losses)
    assert (terms[0].loss, terms[0].accuracy) == (own, "sparse_categorical")
    terms, _ = make_terms(own, None, outputs, [Labels((3,), "float32")], losses)
    assert (terms[0].loss, terms[0].accuracy) == (own, None)
    check_refused("Received: labels of shape (3,)", make_terms, "mse", None, outputs, [Labels((3,), "float32")], losses)


@pytest.mark.parametrize(
    ("weights", "expected"), [([1, 0.5, 0], [1, 0.5, 0]), ({"real": 2, "kind": 3, "energy": 4}, [3, 4, 2])]
)
def test_loss_weights(weights, expected):
    assert [term.weight for term in terms_of(None, weights)[0]] == expected


@pytest.mark.parametrize(
    ("request_", "weights", "sentence"),
    [
        (
            ["mse", "mse"],
            None,
            r"There must be as many losses as outputs\. Received: 2; the outputs are kind, energy, real",
        ),
        ({"kind": "mse"}, None, r"losses must be given for every output by its name\. Received: kind;"),
        (None, [1.0], r"There must be as many loss weights as outputs"),
        (None, {"a": 1, "b": 2}, r"loss weights must be given .* Received: a, b"),
        (None, [1.0, float("nan"), 1.0], "finite number. Received: nan for 'energy'"),
        ("mse", None, r"^Output 'kind': Labels must have the shape"),
        (["crossentropi"] * 3, None, "'crossentropi'. Choose one of"),
    ],
)
def test_requests_that_do_not_fit(request_, weights, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        terms_of(request_, weights)


def test_labels_that_do_not_fit():
    check_refused("Received: 1 sets of labels for 3 outputs, kind, energy, real", terms_of, None, labels=LABELS[:1])
    with pytest.raises(ConfigurationError, match=r"^Labels must have the shape of the model's output, \(3,\)"):
        terms_of("mse", outputs=[KIND], labels=[Labels((5,), "float32")])


def test_options_name_one_loss_or_several():
    assert split_losses(" mse ") == "mse"
    assert split_losses("mse, bce") == ["mse", "bce"]


def test_figures():
    plain, classes = LossTerm("a", "mse"), LossTerm("b", "hinge", accuracy="binary")
    assert figures_of([plain]) == ("loss",)
    assert figures_of([classes]) == ("loss", "acc")
    assert figures_of([plain, plain]) == ("loss", "a_loss", "a_loss")
    assert figures_of([plain, classes]) == ("loss", "acc", "a_loss", "b_loss", "b_acc")
