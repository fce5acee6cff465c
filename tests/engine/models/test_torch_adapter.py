"""Torch modules in this process; models small enough for milliseconds."""

import itertools
import json
import logging

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.engine.models.torch import framework as torch_module
from nnlo_opt.testing.model_conformance import ModelConformance
from tests.helpers.adapters import N_CLASSES, N_FEATURES, gradient, images, module, samples, state_of, torch, weights_of
from tests.helpers.leaks import growth

pytestmark = pytest.mark.needs("torch")


def mlp(*hidden, n_outputs=N_CLASSES, last=(), seed=0):
    torch_module.set_seed(seed)
    nn = torch.nn
    layers = [nn.Linear(N_FEATURES, 8), nn.Tanh(), *(make() for make in hidden), nn.Linear(8, n_outputs), *last]
    return nn.Sequential(*layers)


def normalisation():
    return torch.nn.BatchNorm1d(8)


def dropout():
    return torch.nn.Dropout(0.5)


def terms(*losses, accuracy="categorical", weight=1.0):
    return [LossTerm(f"output_{i}", loss, weight, accuracy) for i, loss in enumerate(losses)]


def adapter_of(model, *losses, accuracy="categorical", **options):
    return torch_module.adapter(model, terms(*(losses or ("categorical_crossentropy",)), accuracy=accuracy, **options))


def flat_gradient(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).numpy()


# ---------------------------------------------------------------- conformance


class TestMlp(ModelConformance):
    suffix = ".pt"

    def make(self):
        return adapter_of(mlp())

    batch = staticmethod(images)


class TestClassNumbers(TestMlp):
    def make(self):
        return adapter_of(mlp(), "sparse_categorical_crossentropy", accuracy="sparse_categorical")

    batch = staticmethod(samples)


class TestRegression(TestMlp):
    def make(self):
        return adapter_of(mlp(n_outputs=1), "mean_squared_error", accuracy=None)

    def batch(self, n_samples, seed):
        x, _ = images(n_samples, seed)
        return x, x.sum(axis=1)


class TestDropout(TestMlp):
    deterministic = False

    def make(self):
        return adapter_of(mlp(normalisation, dropout))


class TestConvolutions(ModelConformance):
    """Batch normalisation, channels last, an integer buffer."""

    suffix = ".pt"
    deterministic = False

    def make(self):
        torch_module.set_seed(0)
        nn = torch.nn
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3)
        )
        model = module(lambda self, x: self.net(x.permute(0, 3, 1, 2)), net=net)
        torch_module.describe_outputs(model, (8, 8, 1))
        return adapter_of(model)

    def batch(self, n_samples, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n_samples, 8, 8, 1)).astype(np.float32)
        return x, np.eye(3, dtype=np.float32)[rng.integers(3, size=n_samples)]


class TestTwoInputsAndOutputs(ModelConformance):
    suffix = ".pt"

    def make(self):
        torch_module.set_seed(0)
        nn = torch.nn

        def forward(self, words, numbers):
            hidden = torch.tanh(self.embedding(words).mean(1) + self.stem(numbers))
            return {"kind": self.kind(hidden), "size": self.size(hidden)}

        model = module(
            forward, embedding=nn.Embedding(9, 5), stem=nn.Linear(4, 5), kind=nn.Linear(5, 3), size=nn.Linear(5, 1)
        )
        kind = LossTerm("kind", "sparse_categorical_crossentropy", 1.0, "sparse_categorical")
        return torch_module.adapter(model, [kind, LossTerm("size", "huber", 0.5)])

    def batch(self, n_samples, seed):
        rng = np.random.default_rng(seed)
        x = [rng.integers(9, size=(n_samples, 7)), rng.normal(size=(n_samples, 4)).astype(np.float32)]
        return x, [rng.integers(3, size=n_samples), rng.normal(size=n_samples).astype(np.float32)]

    def test_figures_are_named_after_the_outputs(self):
        adapter = self.make()
        means = adapter.evaluate(*self.batch(10, 0)).means()
        assert tuple(means) == adapter.figures == ("loss", "acc", "kind_loss", "size_loss", "kind_acc")
        assert means["loss"] == pytest.approx(means["kind_loss"] + 0.5 * means["size_loss"])
        assert means["acc"] == means["kind_acc"]


class TestScript(TestMlp):
    """A module as `torch.jit.load` gives it."""

    def make(self):
        return adapter_of(torch.jit.script(mlp(normalisation)))

    deterministic = False


# ---------------------------------------------------------------- closed forms


def test_the_gradient_is_that_of_plain_torch():
    model, reference = mlp(), mlp()
    x, y = images(20)
    loss = torch.nn.CrossEntropyLoss()(reference(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    slope, metrics = gradient(adapter_of(model), (x, y))
    np.testing.assert_array_equal(slope, flat_gradient(reference))
    assert metrics.means()["loss"] == pytest.approx(loss.item())
    predicted = reference(torch.from_numpy(x)).argmax(1).numpy()
    assert metrics.sums["acc"] == (predicted == y.argmax(axis=1)).sum()


@pytest.mark.parametrize("hidden", [(), (normalisation,)])
def test_training_is_torchs_own(hidden):
    """Ten steps beside torch's own optimizer, batch statistics included; then the evaluation."""
    reference, adapter = mlp(*hidden), adapter_of(mlp(*hidden))
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer, weights = make_optimizer("sgd", adapter.n_weights, 0.1), weights_of(adapter)
    for seed in range(10):
        x, y = images(20, seed)
        theirs.zero_grad()
        torch.nn.functional.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        theirs.step()
        slope, _ = gradient(adapter, (x, y))
        optimizer.apply(weights, slope)
        adapter.write_weights(weights)
    for name, value in adapter.synced_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), reference.state_dict()[name].numpy(), rtol=1e-5, atol=1e-6)
    x, y = images(50, seed=99)
    reference.eval()
    expected = torch.nn.functional.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(y)).item()
    assert adapter.evaluate(x, y).means()["loss"] == pytest.approx(expected, rel=1e-5)


def test_sample_weights_multiply_the_loss_of_each_sample():
    x, y = images(12)
    weights = np.linspace(0, 2, 12, dtype=np.float32)
    reference = mlp()
    values = torch.nn.functional.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(y), reduction="none")
    (values * torch.from_numpy(weights)).mean().backward()
    slope, metrics = gradient(adapter_of(mlp()), (x, y), weights)
    np.testing.assert_allclose(slope, flat_gradient(reference), rtol=1e-5, atol=1e-7)
    assert metrics.sums["loss"] == pytest.approx((values.detach().numpy() * weights).sum(), rel=1e-5)


def test_several_outputs_add_their_weighted_losses():
    def make():
        torch_module.set_seed(0)
        parts = {"stem": torch.nn.Linear(N_FEATURES, 4), "a": torch.nn.Linear(4, 1), "b": torch.nn.Linear(4, 2)}
        return module(lambda self, x: (self.a(h := self.stem(x)), self.b(h)), **parts)

    x, _ = images(15)
    targets = [x[:, :1], x[:, 1:3]]
    reference = make()
    first, second = reference(torch.from_numpy(x))
    functional = torch.nn.functional
    loss = functional.mse_loss(first, torch.from_numpy(targets[0])) * 3
    (loss + 3 * functional.l1_loss(second, torch.from_numpy(targets[1]))).backward()
    adapter = adapter_of(make(), "mean_squared_error", "mean_absolute_error", accuracy=None, weight=3)
    slope, metrics = gradient(adapter, (x, targets))
    np.testing.assert_allclose(slope, flat_gradient(reference), rtol=1e-5, atol=1e-7)
    assert tuple(metrics.sums) == ("loss", "output_0_loss", "output_1_loss")


# ---------------------------------------------------------------- weights, state, discrete state


def test_parameters_are_views_into_one_vector():
    model = mlp()
    adapter = adapter_of(model)
    adapter.write_weights(np.arange(adapter.n_weights, dtype=np.float32))
    joined = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert np.array_equal(joined.numpy(), np.arange(adapter.n_weights))
    assert [spec.name for spec in adapter.layout.specs] == [name for name, _ in model.named_parameters()]


def test_shared_parameters_are_held_once():
    torch_module.set_seed(0)
    tied = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))

    model = module(forward, one=tied, two=tied)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    adapter = adapter_of(model, "mean_squared_error", accuracy=None)
    assert adapter.n_weights == 20
    slope, _ = gradient(adapter, (x, x))
    reference = torch.nn.Linear(4, 4)
    reference.load_state_dict(tied.state_dict())
    output = reference(torch.tanh(reference(torch.from_numpy(x))))
    torch.nn.functional.mse_loss(output, torch.from_numpy(x)).backward()
    np.testing.assert_allclose(slope, flat_gradient(reference), rtol=1e-5, atol=1e-7)
    adapter.write_weights(np.ones(20, np.float32))
    assert torch.equal(model.two.weight, torch.ones(4, 4))


def test_running_means_are_state_and_their_counters_are_not():
    """The master of the reference validated with the statistics of a fresh module."""
    adapter = adapter_of(mlp(normalisation))
    assert adapter.n_state == 16
    one, other = adapter_of(mlp(normalisation)), adapter_of(mlp(normalisation))
    gradient(one, images(20, 1))
    gradient(other, images(20, 2))
    averaged = (state_of(one) + state_of(other)) / 2
    adapter.write_state(averaged)
    model = adapter.synced_model()
    np.testing.assert_array_equal(torch.cat([model[2].running_mean, model[2].running_var]).numpy(), averaged)
    assert one.discrete_state()[1:] == [[1]]
    assert adapter.discrete_state()[1:] == [[0]]
    assert one.evaluate(*images(9)) != adapter.evaluate(*images(9))


def test_frozen_parameters_are_state():
    model = mlp()
    model[0].requires_grad_(False)
    adapter = adapter_of(model)
    assert adapter.n_state == (N_FEATURES + 1) * 8
    assert adapter.n_weights == 9 * N_CLASSES
    state = np.linspace(-1, 1, adapter.n_state, dtype=np.float32)
    adapter.write_state(state)
    assert np.array_equal(model[0].weight.numpy().ravel(), state[: N_FEATURES * 8])
    gradient(adapter, images(5))
    assert np.array_equal(state_of(adapter), state)


def test_buffers_that_are_replaced_or_not_kept():
    def forward(self, x):
        self.mean = x.mean(0)
        return self.head(x - self.mean + self.zeros)

    model = module(forward, head=torch.nn.Linear(N_FEATURES, N_CLASSES))
    model.register_buffer("mean", torch.zeros(N_FEATURES))
    model.register_buffer("zeros", torch.zeros(N_FEATURES), persistent=False)
    adapter = adapter_of(model)
    assert adapter.n_state == N_FEATURES
    x, y = images(10)
    gradient(adapter, (x, y))
    np.testing.assert_allclose(state_of(adapter), x.mean(axis=0), rtol=1e-5)


def test_weights_of_no_use_have_no_slope():
    half = module(lambda self, x: self.b(x), a=torch.nn.Linear(2, 2), b=torch.nn.Linear(N_FEATURES, 3))
    slope, _ = gradient(adapter_of(half), images(9))
    assert not slope[:6].any()
    assert slope[6:].any()
    constant = module(lambda self, x: x[:, :N_CLASSES], a=torch.nn.Linear(2, 2))
    assert not gradient(adapter_of(constant), images(9))[0].any()


# ---------------------------------------------------------------- random numbers


def test_dropout_differs_from_batch_to_batch_and_rests_in_evaluation():
    adapter = adapter_of(mlp(dropout))
    batch = images(40)
    first, second = gradient(adapter, batch)[0], gradient(adapter, batch)[0]
    assert not np.array_equal(first, second)
    assert adapter.evaluate(*batch) == adapter.evaluate(*batch)


def test_a_restored_run_continues_as_the_uninterrupted_one():
    whole = adapter_of(mlp(dropout, normalisation))
    expected = []
    for step in range(6):
        if step == 3:
            # What a checkpoint holds is plain data.
            kept = weights_of(whole), state_of(whole), json.loads(json.dumps(whole.discrete_state()))
        expected.append(gradient(whole, images(20, step))[0])
    torch.manual_seed(1)
    restored = adapter_of(mlp(dropout, normalisation, seed=7))
    restored.write_weights(kept[0])
    restored.write_state(kept[1])
    restored.load_discrete_state(kept[2])
    for step in range(3, 6):
        # Whoever else draws numbers, or evaluates, changes nothing.
        torch.rand(step)
        restored.evaluate(*images(8))
        np.testing.assert_array_equal(gradient(restored, images(20, step))[0], expected[step])


def test_masks_of_batches_that_follow_each_other_are_independent():
    model = module(lambda self, x: torch.nn.functional.dropout(x * self.one, 0.5), one=torch.nn.Linear(1, 1).weight)
    x = np.ones((1, 4000), np.float32)
    adapter = adapter_of(model, lambda y_true, y_pred: masks.append(y_pred.detach() != 0) or y_pred, accuracy=None)
    masks = []
    for _ in range(8):
        gradient(adapter, (x, x))
    masks = np.array([mask.numpy().ravel() for mask in masks[1:]], float)
    correlations = np.corrcoef(masks)[np.triu_indices(len(masks), 1)]
    assert abs(correlations).max() < 0.08


def test_the_seed_decides_weights_and_masks():
    def first(seed):
        adapter = adapter_of(mlp(dropout, seed=seed))
        return np.concatenate([weights_of(adapter), gradient(adapter, images(20))[0]])

    assert np.array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))


def test_counters_of_another_model_are_refused():
    with pytest.raises(ValueError, match="Counters of"):
        adapter_of(mlp()).load_discrete_state([[1, 2], [3]])


# ---------------------------------------------------------------- what data and modules do


def test_parts_put_into_evaluation_mode_stay_there():
    model = mlp(normalisation)
    model[2].eval()
    adapter = adapter_of(model)
    before = state_of(adapter)
    for _ in range(2):
        gradient(adapter, images(20))
        adapter.evaluate(*images(20))
    assert np.array_equal(state_of(adapter), before)
    whole = adapter_of(mlp(normalisation).eval())
    gradient(whole, images(20))
    assert not np.array_equal(state_of(whole), before)


def test_a_single_sample_is_normalised():
    """torch refuses it; the last batch of an epoch may be one."""
    adapter = adapter_of(mlp(normalisation))
    x, y = images(1)
    slope, metrics = gradient(adapter, (x, y), np.full(1, 2, np.float32))
    assert np.isfinite(slope).all()
    assert metrics.n_samples == 1
    assert metrics.sums["acc"] in (0, 1)
    plain = gradient(adapter_of(mlp(normalisation)), (x, y))[1]
    assert metrics.sums["loss"] == pytest.approx(2 * plain.sums["loss"])


def test_outputs_without_a_last_dimension():
    x, _ = images(10)
    y = x.sum(axis=1)
    column = adapter_of(mlp(n_outputs=1), "mean_squared_error", accuracy=None)
    for squeeze in (lambda out: out.squeeze(), lambda out: out.squeeze(-1)):
        model = module(lambda self, x, f=squeeze: f(self.net(x)), net=mlp(n_outputs=1))
        adapter = adapter_of(model, "mean_squared_error", accuracy=None)
        for n, labels in itertools.product((10, 1), (y, y[:, None])):
            np.testing.assert_array_equal(
                gradient(adapter, (x[:n], labels[:n]))[0], gradient(column, (x[:n], y[:n]))[0]
            )


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, np.int32, np.uint16, np.bool_])
def test_features_of_any_type_are_floats_for_layers_of_floats(dtype):
    x, y = images(10)
    x = (4 * np.abs(x)).astype(dtype)
    expected = gradient(adapter_of(mlp()), (x.astype(np.float32), y))[0]
    np.testing.assert_array_equal(gradient(adapter_of(mlp()), (x, y))[0], expected)
    assert adapter_of(mlp()).evaluate(x, y).n_samples == 10


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_features_that_are_numbers_of_words_stay_whole(dtype):
    torch_module.set_seed(0)
    model = module(
        lambda self, x: self.head(self.words(x).mean(1)), words=torch.nn.Embedding(5, 4), head=torch.nn.Linear(4, 3)
    )
    x = np.arange(20).reshape(10, 2).astype(dtype) % 5
    assert gradient(adapter_of(model), (x, images(10)[1]))[1].n_samples == 10


def test_features_are_never_written_to():
    def forward(self, x):
        x -= 1
        return self.net(torch.nn.functional.relu_(x))

    adapter = adapter_of(module(forward, net=mlp()))
    x, y = images(10)
    kept = x.copy()
    for _ in range(2):
        gradient(adapter, (x, y))
        adapter.evaluate(x, y)
    assert np.array_equal(x, kept)


def test_features_that_may_only_be_read_or_lie_backwards(recwarn):
    x, y = images(10)
    expected = gradient(adapter_of(mlp()), (x, y))[0]
    x.flags.writeable = y.flags.writeable = False
    np.testing.assert_array_equal(gradient(adapter_of(mlp()), (x, y))[0], expected)
    np.testing.assert_array_equal(gradient(adapter_of(mlp()), (x[::-1].copy()[::-1], y))[0], expected)
    assert not recwarn.list


def test_outputs_in_half_precision_are_compared_in_float32():
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)

    slope, metrics = gradient(adapter_of(module(forward, net=mlp())), images(20))
    assert metrics.means()["loss"] == pytest.approx(adapter_of(mlp()).evaluate(*images(20)).means()["loss"], rel=0.02)
    np.testing.assert_allclose(slope, gradient(adapter_of(mlp()), images(20))[0], atol=0.02)


# ---------------------------------------------------------------- files


def test_saved_weights_compute_the_same(tmp_path):
    adapter = adapter_of(mlp(normalisation))
    for step in range(3):
        slope, _ = gradient(adapter, images(20, step))
        adapter.write_weights(weights_of(adapter) - slope)
    adapter.save(tmp_path / "model.pt")
    loaded = torch_module.load_model(tmp_path / "model.pt", lambda: mlp(normalisation, seed=5))
    assert adapter_of(loaded).evaluate(*images(20)) == adapter.evaluate(*images(20))
    for value in torch.load(tmp_path / "model.pt", weights_only=True).values():
        assert value.untyped_storage().nbytes() == value.nbytes
    assert (tmp_path / "model.pt").stat().st_size < 4 * adapter.n_weights + 8000


def test_a_script_is_trained_and_saved_whole(tmp_path):
    torch.jit.script(mlp(normalisation)).save(tmp_path / "script.pt")
    adapter = adapter_of(torch_module.load_model(tmp_path / "script.pt"))
    reference = adapter_of(mlp(normalisation))
    np.testing.assert_allclose(
        gradient(adapter, images(20))[0], gradient(reference, images(20))[0], rtol=1e-5, atol=1e-7
    )
    adapter.write_weights(weights_of(adapter) + 1)
    adapter.save(tmp_path / "trained.pt")
    again = adapter_of(torch_module.load_model(tmp_path / "trained.pt"))
    assert np.array_equal(weights_of(again), weights_of(adapter))
    assert np.array_equal(state_of(again), state_of(adapter))
    assert again.evaluate(*images(9)) == adapter.evaluate(*images(9))


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("method", ["gradient", "evaluate"])
def test_a_failing_batch_is_the_trials_fault(method):
    adapter = adapter_of(mlp())
    x, y = images(5)
    arguments = (x[:, :-1], y, *([aligned_empty(adapter.n_weights)] if method == "gradient" else []))
    with pytest.raises(TrialError, match="of the model failed: RuntimeError: mat1 and mat2"):
        getattr(adapter, method)(*arguments)
    assert adapter.evaluate(x, y).n_samples == 5


def test_vectors_of_another_length_are_refused():
    adapter = adapter_of(mlp())
    wrong = aligned_empty(3)
    for method in (adapter.read_weights, adapter.write_weights, adapter.read_state, adapter.write_state):
        with pytest.raises(ValueError, match="A vector of shape"):
            method(wrong)
    with pytest.raises(ValueError, match="A vector of shape"):
        adapter.gradient(*images(3), wrong)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda nn: nn.Flatten(), "trainable weights before training. Received: Flatten with none"),
        (lambda nn: nn.Linear(2, 2).requires_grad_(False), "trainable weights before training"),
        (lambda nn: nn.LazyLinear(2), "Received: LazyLinear with 'weight' still lazy"),
        (lambda nn: nn.Linear(2, 2).double(), r"must be float32\. Received: Linear with 'weight' of torch.float64"),
        (
            lambda nn: (m := nn.Linear(2, 2), m.register_buffer("phase", torch.ones(2, dtype=torch.complex64)))[0],
            "floats or integers. Received: Linear with 'phase'",
        ),
    ],
)
def test_modules_that_cannot_be_trained(make, sentence):
    with pytest.raises(TrialError, match=sentence):
        adapter_of(make(torch.nn))


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (lambda self, x: self.net(x).view(-1, 1), r"one row for each sample, \d+ for this batch"),
        (lambda self, x: self.net(x).sum(), "one row for each sample"),
        (lambda self, x: (self.net(x), None), "Received: NoneType as output_1"),
        (lambda self, x: [self.net(x), self.net(x)], "one output for each loss, 1. Received: 2"),
        (lambda self, x: self.net(x)[:, :2], r"shape of the model's output, \(5, 2\). Received: \(5, 3\)"),
    ],
)
def test_outputs_that_cannot_be_compared(forward, sentence):
    adapter = adapter_of(module(forward, net=mlp()))
    for compute in (lambda: gradient(adapter, images(5)), lambda: adapter.evaluate(*images(5))):
        with pytest.raises(TrialError, match=sentence):
            compute()


def test_labels_that_cannot_be_compared():
    x, y = images(5)
    with pytest.raises(TrialError, match="2 sets of labels for 1 outputs"):
        gradient(adapter_of(mlp()), (x, [y, y]))
    sparse = adapter_of(mlp(), "sparse_categorical_crossentropy", accuracy="sparse_categorical")
    with pytest.raises(TrialError, match=r"class numbers of shape \(5,\). Received: \(5, 3\)"):
        gradient(sparse, (x, y))
    with pytest.raises(TrialError, match="Target 7 is out of bounds"):
        gradient(sparse, (x, np.full(5, 7)))


def test_a_loss_of_the_whole_batch_cannot_be_weighted():
    adapter = adapter_of(mlp(), "dice")
    assert gradient(adapter, images(5))[1].n_samples == 5
    with pytest.raises(TrialError, match="one value for each sample"):
        gradient(adapter, images(5), np.ones(5, np.float32))


def test_a_loss_that_makes_no_sense_is_warned_of(caplog):
    cases = [("CrossEntropyLoss", [torch.nn.Softmax(-1)]), ("NLLLoss", []), ("CrossEntropyLoss", [])]
    for loss, last in cases:
        with caplog.at_level(logging.WARNING):
            adapter_of(mlp(last=last), loss).evaluate(*images(5))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "CrossEntropyLoss takes logits",
        "NLLLoss takes the output of a log_softmax; categorical_crossentropy takes logits too.",
    ]


# ---------------------------------------------------------------- memory


def test_a_thousand_batches_leave_nothing_behind():
    adapter = adapter_of(mlp(normalisation, dropout))
    batch, out = images(100), aligned_empty(adapter.n_weights)

    def step():
        adapter.gradient(*batch, out)
        adapter.write_weights(weights_of(adapter))

    n_objects, n_kb = growth(step, 100, 1000)
    assert n_objects < 100
    assert n_kb < 4_000


def test_a_trial_leaves_nothing_behind():
    def trial():
        adapter = adapter_of(mlp(normalisation))
        gradient(adapter, images(20))
        adapter.evaluate(*images(20))
        adapter.release()

    assert growth(trial, 3, 20)[0] < 100
