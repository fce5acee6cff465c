"""Names of losses, which ones fit, and what they compute beside Keras's own and PyTorch's own."""

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.losses import Labels, LossTerm, Output, make_terms
from nnlo_opt.engine.models.torch import framework as torch_module
from nnlo_opt.engine.models.torch import losses as torch_losses
from tests.helpers.adapters import Late, torch
from tests.helpers.refusals import check_refused

needs_torch = pytest.mark.needs("torch")
comparisons = Late("nnlo_opt.engine.models.torch.comparison", torch_module)


# ---------------------------------------------------------------- names


#: name of a loss -> names that it may be given by
NAMES = {name: [name] for name in ("categorical_crossentropy", "binary_crossentropy", "kl_divergence", "KLDivLoss")} | {
    "mean_squared_error": ["MSELoss", "mse"],
    "mean_absolute_error": ["L1"],
    "huber": ["SmoothL1Loss", "HuberLoss"],
    "CrossEntropyLoss": ["CrossEntropyLoss", "CrossEntropy", "cross_entropy"],
    "NLLLoss": ["nll"],
    "BCEWithLogitsLoss": ["BCEWithLogits"],
}


@pytest.mark.parametrize(("given", "name"), [(given, name) for name, ways in NAMES.items() for given in ways])
def test_names_of_both_frameworks(given, name):
    assert torch_losses.check_loss(given) == name


def test_an_unknown_name_is_never_a_cross_entropy():
    with pytest.raises(ConfigurationError, match=r"Received: 'CrosEntropyLoss'. Choose one of: CrossEntropyLoss"):
        torch_losses.check_loss("CrosEntropyLoss")
    with pytest.raises(ConfigurationError, match=r"binary_crossentropy, .*NLLLoss"):
        torch_losses.check_loss("zzz")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("TripletMarginLoss", "an anchor, a positive and a negative"),
        ("CosineEmbedding", "two inputs and a label"),
        ("margin_ranking", "two inputs and a label"),
        ("CTCLoss", "the lengths"),
        ("GaussianNLL", "a variance"),
    ],
)
def test_losses_of_more_than_outputs_and_labels_are_refused(name, what):
    with pytest.raises(ConfigurationError, match=rf"Received: {name!r}, which takes {what}.* Give a function"):
        torch_losses.check_loss(name)


@needs_torch
def test_every_loss_of_torch_is_known():
    for name in dir(torch.nn):
        if name.endswith("Loss") and name not in ("AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"):
            try:
                torch_losses.check_loss(name)
            except ConfigurationError as error:
                assert "which takes" in str(error)  # noqa: PT017


# ---------------------------------------------------------------- rules

one_hot = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]


@pytest.mark.parametrize(
    ("activation", "output", "label", "dtype", "hint", "expected"),
    [
        ("log_softmax", (3,), (3,), "float32", one_hot, "categorical_crossentropy"),
        ("log_softmax", (3,), (), "int64", None, "sparse_categorical_crossentropy"),
        ("softmax", (3,), (3,), "float32", None, "categorical_crossentropy"),
        ("sigmoid", (1,), (), "float32", np.array([0, 1]), "binary_crossentropy"),
        (None, (3,), (3,), "float32", one_hot, "categorical_crossentropy"),
        (None, (3,), (3,), "float32", one_hot + 0.5, "mean_squared_error"),
        (None, (3,), (3,), "float32", 1 - one_hot, "binary_crossentropy"),
        (None, (3,), (3,), "float32", None, "mean_squared_error"),
        (None, (3,), (), "int64", None, "sparse_categorical_crossentropy"),
        (None, (7, 3), (7,), "int64", None, "sparse_categorical_crossentropy"),
        (None, (3,), (1,), "uint8", None, "sparse_categorical_crossentropy"),
        (None, (1,), (), "float32", np.array([0.0, 1]), "binary_crossentropy"),
        (None, (1,), (), "float32", np.array([0.0, 1, 2]), "mean_squared_error"),
        (None, (1,), (), "int64", np.array([3, 5]), "mean_squared_error"),
    ],
)
def test_the_loss_that_fits(activation, output, label, dtype, hint, expected):
    inferred = torch_losses.infer_loss(Output("out", output, activation), Labels(label, dtype, hint))
    assert inferred.name == expected
    assert losses.label_mismatch(expected, output, label) is None


def test_how_classes_are_counted():
    assert torch_losses.metric_for("CrossEntropyLoss") == "categorical"
    assert torch_losses.metric_for("BCEWithLogitsLoss") == "binary"
    assert torch_losses.metric_for("PoissonNLLLoss") is None
    assert torch_losses.metric_for("mean_squared_error") is None
    assert torch_losses.metric_for("sparse_categorical_crossentropy") == "sparse_categorical"
    assert torch_losses.metric_for("binary_crossentropy", "log_softmax") == "categorical"


@pytest.mark.parametrize(
    ("loss", "output", "label", "fits"),
    [
        ("CrossEntropyLoss", (3,), (3,), True),
        ("CrossEntropyLoss", (3,), (), True),
        ("CrossEntropyLoss", (3,), (1,), True),
        ("NLLLoss", (3, 8, 8), (8, 8), True),
        ("CrossEntropyLoss", (8, 3), (8,), False),
        ("CrossEntropyLoss", (3,), (4,), False),
        ("categorical_crossentropy", (3,), (), False),
        ("BCELoss", (3,), (), False),
        ("KLDivLoss", (3,), (3,), True),
    ],
)
def test_labels_that_fit(loss, output, label, fits):
    terms = ([Output("out", output, None)], [Labels(label, "int64")], torch_losses)
    if fits:
        assert make_terms(loss, None, *terms)[0][0].loss == loss
    else:
        check_refused("Received: labels of shape", make_terms, loss, None, *terms)


# ---------------------------------------------------------------- where outputs come from


@needs_torch
@pytest.mark.parametrize(
    ("finish", "told"),
    [
        (lambda f, x: x, None),
        (lambda f, x: f.softmax(x, -1), "softmax"),
        (lambda f, x: f.log_softmax(x, -1), "log_softmax"),
        (lambda f, x: f.log_softmax(x, -1).exp(), "softmax"),
        (lambda f, x: f.softmax(x, -1).clamp(1e-6, 1), "softmax"),
        (lambda f, x: f.softmax(x, -1)[:, 0], "softmax"),
        (lambda f, x: f.softmax(x, -1).log(), "log_softmax"),
        (lambda f, x: x.exp() / x.exp().sum(-1, keepdim=True), "softmax"),
        (lambda f, x: x.sigmoid().view(-1, 1, 4).squeeze(1), "sigmoid"),
        (lambda f, x: x[:, :1].sigmoid(), "sigmoid"),
        (lambda f, x: x.sigmoid() * 2, None),
        (lambda f, x: x[:, :1].relu(), None),
    ],
)
def test_what_outputs_come_from(finish, told):
    torch.manual_seed(0)
    output = finish(torch.nn.functional, torch.nn.Linear(5, 4)(torch.randn(6, 5)))
    assert comparisons.activation_of(output) == told


# ---------------------------------------------------------------- computations


def value_of(name, output, labels, told=None):
    comparison = comparisons.Comparison(LossTerm("out", name), told)
    return comparison.mean(torch.tensor(output), torch.tensor(labels)).item()


rng = np.random.default_rng(0)
LOGITS = rng.normal(size=(8, 5)).astype(np.float32)
SOFTMAX = (np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)).astype(np.float32)
SIGMOID = (1 / (1 + np.exp(-LOGITS))).astype(np.float32)
CLASSES = rng.integers(5, size=8)
ONE_HOT = np.eye(5, dtype=np.float32)[CLASSES]
MULTI_HOT = rng.integers(2, size=(8, 5)).astype(np.float32)
REAL = rng.random((8, 5)).astype(np.float32)

OF_CLASSES = {"categorical_crossentropy", "categorical_focal_crossentropy", "sparse_categorical_crossentropy"}
OF_YES_OR_NO = {"binary_crossentropy", "binary_focal_crossentropy"}


@needs_torch
@pytest.mark.keras
@pytest.mark.parametrize("name", losses.LOSSES)
def test_kerass_losses_are_kerass(name):
    """On what Keras expects, and on logits and log-probabilities where the loss knows of any."""
    keras_model.import_framework(1)
    import keras

    theirs = getattr(keras.losses, name)
    if name in {*OF_CLASSES, *OF_YES_OR_NO, "kl_divergence"}:
        labels = {"sparse_categorical_crossentropy": CLASSES, "kl_divergence": SOFTMAX[::-1].copy()}.get(name)
        if labels is None:
            labels = ONE_HOT if name in OF_CLASSES else MULTI_HOT
        shares, told = (SIGMOID, "sigmoid") if name in OF_YES_OR_NO else (SOFTMAX, "softmax")
        outputs = [(shares, told), (np.log(shares), "log_softmax"), (LOGITS, None)]
        cases = [(labels, output, told, shares) for output, told in outputs]
        cases += [(labels, SIGMOID, "sigmoid", SIGMOID)] if name in OF_CLASSES else []
    else:
        output = SOFTMAX if name in ("dice", "tversky", "poisson") else LOGITS
        cases = [(labels, output, None, output) for labels in (MULTI_HOT, REAL, 2 * MULTI_HOT - 1)]
    for labels, output, told, of_keras in cases:
        expected = float(np.mean(theirs(labels, of_keras)))
        assert value_of(name, output, labels, told) == pytest.approx(expected, rel=1e-4)


@needs_torch
def test_classes_on_the_last_axis_of_sequences():
    logits, classes = rng.normal(size=(4, 7, 5)).astype(np.float32), rng.integers(5, size=(4, 7))
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits).flatten(0, 1), torch.tensor(classes).flatten())
    one_hot = np.eye(5, dtype=np.float32)[classes]
    assert value_of("sparse_categorical_crossentropy", logits, classes) == pytest.approx(expected.item())
    assert value_of("sparse_categorical_crossentropy", logits, classes[..., None]) == pytest.approx(expected.item())
    assert value_of("categorical_crossentropy", logits, one_hot) == pytest.approx(expected.item())
    # PyTorch's own has them first.
    assert value_of("CrossEntropyLoss", logits.swapaxes(1, 2), classes) == pytest.approx(expected.item())


INDICES = np.array([[0, 2, -1, -1, -1], [4, -1, -1, -1, -1], [1, 2, 3, -1, -1]])
FROM_INDICES = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 1, 1, 1, 0]], np.float32)


@needs_torch
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(
    ("name", "output", "labels", "target"),
    [
        ("BCELoss", SIGMOID, MULTI_HOT, MULTI_HOT),
        ("BCEWithLogitsLoss", LOGITS, MULTI_HOT.astype(int), MULTI_HOT),
        ("CrossEntropyLoss", LOGITS, CLASSES, CLASSES),
        ("CrossEntropyLoss", LOGITS, CLASSES.astype(np.float32)[:, None], CLASSES),
        ("CrossEntropyLoss", LOGITS, ONE_HOT, CLASSES),
        ("CrossEntropyLoss", LOGITS, SOFTMAX, SOFTMAX),
        ("HingeEmbeddingLoss", REAL, 2 * MULTI_HOT - 1, 2 * MULTI_HOT - 1),
        ("HingeEmbeddingLoss", REAL, MULTI_HOT, 2 * MULTI_HOT - 1),
        ("KLDivLoss", np.log(SOFTMAX), SOFTMAX[::-1].copy(), SOFTMAX[::-1].copy()),
        ("MultiLabelMarginLoss", LOGITS[:3], INDICES, INDICES),
        ("MultiLabelMarginLoss", LOGITS[:3], FROM_INDICES, INDICES),
        ("MultiLabelSoftMarginLoss", LOGITS, MULTI_HOT, MULTI_HOT),
        ("MultiMarginLoss", LOGITS, ONE_HOT, CLASSES),
        ("MultiMarginLoss", LOGITS, CLASSES, CLASSES),
        ("NLLLoss", np.log(SOFTMAX), ONE_HOT, CLASSES),
        ("NLLLoss", np.log(SOFTMAX), CLASSES, CLASSES),
        ("PoissonNLLLoss", LOGITS, REAL, REAL),
        ("SoftMarginLoss", LOGITS, 2 * MULTI_HOT - 1, 2 * MULTI_HOT - 1),
        ("SoftMarginLoss", LOGITS, MULTI_HOT, 2 * MULTI_HOT - 1),
    ],
)
def test_pytorchs_losses_are_pytorchs(name, output, labels, target):
    own = getattr(torch.nn, name)
    expected = own()(torch.tensor(output), torch.tensor(target)).item()
    functional = {"BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits"}
    snake = {"CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss", **functional}.get(name)
    for loss in (name, own(), own(reduction="none"), *([getattr(torch.nn.functional, snake)] if snake else [])):
        comparison = comparisons.Comparison(LossTerm("out", loss), None)
        assert comparison.mean(torch.tensor(output), torch.tensor(labels)).item() == pytest.approx(expected, rel=1e-5)


@needs_torch
def test_pytorchs_losses_that_keras_computes_too():
    for loss in (torch.nn.MSELoss(), torch.nn.functional.mse_loss, "mean_squared_error"):
        assert value_of(loss, LOGITS[:, 0], CLASSES) == pytest.approx(((LOGITS[:, 0] - CLASSES) ** 2).mean())


@needs_torch
def test_losses_of_ones_own():
    class Own(torch.nn.Module):
        def forward(self, output, target):
            return (output - 2 * target).abs()

    expected = np.abs(LOGITS - 2 * REAL).mean()
    assert value_of(Own(), LOGITS, REAL) == pytest.approx(expected)
    assert value_of(lambda y_true, y_pred: (y_pred - 2 * y_true).abs(), LOGITS, REAL) == pytest.approx(expected)
    assert value_of(lambda y_true, y_pred: (y_pred - 2 * y_true).abs().mean(), LOGITS, REAL) == pytest.approx(expected)
    # A column is never paired with a row.
    assert value_of(Own(), LOGITS[:, :1], REAL[:, 0]) == pytest.approx(np.abs(LOGITS - 2 * REAL)[:, 0].mean())


@needs_torch
def test_labels_are_never_stretched():
    with pytest.raises(TrialError, match=r"shape of the model's output, \(8, 5\). Received: \(8, 1\)"):
        value_of("mean_squared_error", LOGITS, REAL[:, :1])
    with pytest.raises(TrialError, match=r"class numbers of shape \(8,\)"):
        value_of("NLLLoss", LOGITS, REAL[:, :3])


# ---------------------------------------------------------------- counting


def right(loss, accuracy, output, labels, told=None):
    comparison = comparisons.Comparison(LossTerm("out", loss, 1.0, accuracy), told)
    return comparison.n_correct(torch.tensor(output), torch.tensor(labels))


@needs_torch
def test_classes_that_are_right():
    expected = (LOGITS.argmax(-1) == CLASSES).sum()
    for loss, kind in (("categorical_crossentropy", "categorical"), ("CrossEntropyLoss", "categorical")):
        assert right(loss, kind, LOGITS, ONE_HOT) == expected
    for labels in (CLASSES, CLASSES[:, None]):
        assert right("sparse_categorical_crossentropy", "sparse_categorical", LOGITS, labels) == expected
        assert right("NLLLoss", "categorical", LOGITS, labels) == expected
    yes = (LOGITS > 0) == (MULTI_HOT > 0)
    for loss, told, output in (
        ("binary_crossentropy", None, LOGITS),
        ("binary_crossentropy", "sigmoid", SIGMOID),
        ("binary_crossentropy", "log_softmax", np.log(SIGMOID)),
        ("BCELoss", "sigmoid", SIGMOID),
        ("BCELoss", None, SIGMOID),
        ("BCEWithLogitsLoss", None, LOGITS),
    ):
        assert right(loss, "binary", output, MULTI_HOT, told) == pytest.approx(yes.mean(-1).sum(), rel=1e-6)
        assert right(loss, "binary", output[:, 0], MULTI_HOT[:, 0], told) == yes[:, 0].sum()
    # Of a sequence, the part that is right.
    tokens = LOGITS.reshape(4, 2, 5)
    assert right("sparse_categorical_crossentropy", "sparse_categorical", tokens, CLASSES.reshape(4, 2)) == expected / 2
