"""torch as a framework: modules described, saved models read, and the example."""

import itertools
import os
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.builders import open_model
from nnlo_opt.engine.models.framework import framework_named
from nnlo_opt.engine.models.losses import Labels, Output, make_terms
from nnlo_opt.engine.models.torch import framework as torch_module
from tests.helpers.adapters import gradient, module, torch, weights_of
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.needs("torch")
EXAMPLE = Path(__file__).parents[3] / "examples/example_mnist_torch.py"


# ---------------------------------------------------------------- the framework


def test_the_import_is_silent_and_takes_the_threads_it_is_given():
    code = """
from nnlo_opt.engine.models.torch import framework as torch_module
assert not torch_module.is_model(1)
import sys
assert "torch" not in sys.modules
torch_module.import_framework(1)
import torch
print(torch.get_num_threads(), torch.get_num_interop_threads(), float(torch.ones(3).sum()))
torch_module.import_framework(1)
"""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "OMP_"))}
    done = python(code, env=quiet)
    assert (done.out, done.err) == ("1 1 3.0\n", "")


def test_the_seed_is_of_everything_a_module_may_draw_from():
    import random

    def draw():
        torch_module.set_seed(5)
        return random.random(), np.random.random(), torch.rand(1).item()

    assert draw() == draw()


def test_what_is_for_keras_is_refused_or_ignored():
    with torch_module.building({"Own": object}, None):
        pass
    with pytest.raises(ConfigurationError, match="dtype policy is for Keras"), torch_module.building({}, "mixed"):
        pass
    check_refused("jit_compile` is for Keras", torch_module.adapter, torch.nn.Linear(1, 1), [], jit_compile=True)


# ---------------------------------------------------------------- outputs


def test_outputs_and_where_they_come_from():
    nn = torch.nn
    softmax = nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1))
    assert torch_module.describe_outputs(softmax, (6,)) == [Output("output_0", (3,), "softmax")]
    functional = module(lambda self, x: nn.functional.log_softmax(self.net(x), 1), net=nn.Linear(6, 3))
    assert torch_module.describe_outputs(functional, (6,)) == [Output("output_0", (3,), "log_softmax")]
    pair = module(lambda self, x: (self.net(x), self.net(x).sigmoid()), net=nn.Linear(6, 3))
    first, second = Output("output_0", (3,), None), Output("output_1", (3,), "sigmoid")
    assert torch_module.describe_outputs(pair, (6,)) == [first, second]
    named = module(lambda self, x: {"a": self.net(x)}, net=nn.Linear(6, 3))
    assert torch_module.describe_outputs(named, (6,)) == [Output("a", (3,), None)]
    flat = module(lambda self, x: self.net(x).squeeze(), net=nn.Linear(6, 1))
    assert torch_module.describe_outputs(flat, (6,)) == [Output("output_0", (), None)]


def test_inputs_of_several_types_forms_and_open_lengths():
    nn = torch.nn

    def forward(self, words, pair):
        numbers, images = pair
        return self.words(words).mean(1) + self.numbers(numbers) + images.mean((1, 2, 3))[:, None]

    model = module(forward, words=nn.Embedding(9, 5), numbers=nn.Linear(4, 5))
    shapes = [(None,), [(4,), (8, 8, 1)]]
    assert torch_module.describe_outputs(model, shapes)[0].shape == (5,)


def test_a_description_changes_nothing_but_lazy_layers():
    nn = torch.nn
    model = nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LazyLinear(2))
    model[2].eval()
    torch_module.describe_outputs(model, (6,))
    assert model[0].weight.shape == (4, 6)
    assert [module.training for module in model.modules()] == [True, True, True, False, True]
    assert model[1].num_batches_tracked == 0
    assert not model[1].running_mean.any()


@pytest.mark.parametrize(
    ("make", "shape", "sentence"),
    [
        (
            lambda nn: nn.Linear(5, 2),
            (6,),
            r"shape of the features, \(6,\). Received: RuntimeError: mat1 .* or the data.$",
        ),
        (lambda nn: nn.Conv2d(1, 4, 3), (28, 28, 1), r"begin with `x.permute\(0, 3, 1, 2\)`"),
        (
            lambda nn: module(lambda self, x: self.fc(x.view(-1, 3)), fc=nn.Linear(3, 2)),
            (6,),
            r"one row for each sample. Received: output_0 of shape \(4, 2\) for 2 samples of shape \(6,\)",
        ),
        (lambda nn: nn.LSTM(4, 5), (7, 4), "Received: tuple as output_1"),
        (lambda nn: module(lambda self, a, b: a), (4,), "TypeError"),
    ],
)
def test_models_that_cannot_take_the_features(make, shape, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        torch_module.describe_outputs(make(torch.nn), shape)


# ---------------------------------------------------------------- saved models


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def test_saved_states_in_every_wrapping(tmp_path):
    expected = small().state_dict()
    of_parallel = {f"module.{name}": value for name, value in expected.items()}
    wrapped = [expected, {"state_dict": expected, "epoch": 3}, {"model_state_dict": expected}, of_parallel]
    for number, saved in enumerate(wrapped):
        torch.save(saved, path := tmp_path / f"{number}.pt", _use_new_zipfile_serialization=number % 2 == 0)
        model = torch_module.load_model(
            path, lambda: torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        )
        assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_a_state_of_a_lazy_module(tmp_path):
    torch.save(small().state_dict(), path := tmp_path / "a.pt")
    model = torch_module.load_model(path, lambda: torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.BatchNorm1d(2)))
    assert torch.equal(model[0].weight, small()[0].weight)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/nnlo_opt_evil",)


def write_damaged_script(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/constants.pkl", b"")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: None, "must exist. Received: .*, which is no file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 no archive"), "damaged or holds objects"),
        (write_damaged_script, r"TorchScript archive must be .* Received: .*a\.pt"),
        (
            lambda path: torch.save(small(), path),
            r"objects, which are not unpickled \(UnpicklingError\). Save `model.state_dict\(\)`",
        ),
        (lambda path: torch.save({"weight": torch.ones(1), "more": Evil()}, path), "objects, which are not unpickled"),
        (lambda path: torch.save([torch.ones(1)], path), "tensors by name. Received: .*, a list with none"),
        (lambda path: torch.save({"epoch": 3}, path), "tensors by name. Received: .*, a dict with none"),
        (lambda path: torch.save(small().state_dict(), path), "Put a.py with `get_model` next to it"),
    ],
)
def test_files_that_hold_no_model(tmp_path, write, sentence):
    write(path := tmp_path / "a.pt")
    with pytest.raises(ConfigurationError, match=sentence):
        torch_module.load_model(path)
    assert not Path("/tmp/nnlo_opt_evil").exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda nn: nn.Sequential(nn.Linear(3, 2)), r"a.pt, which also has '1.bias'"),
        (lambda nn: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)), "which lacks '2.bias'"),
        (lambda nn: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), r"a.pt, 0.weight: copying a param with shape"),
    ],
)
def test_weights_of_another_module(tmp_path, make, sentence):
    torch.save(small().state_dict(), path := tmp_path / "a.pt")
    with pytest.raises(ConfigurationError, match=sentence):
        torch_module.load_model(path, lambda: make(torch.nn))


# ---------------------------------------------------------------- the example


def test_every_value_of_the_example_gives_a_model():
    """Of the reference's 9 kernel sizes 7 failed in training."""
    get_model = runpy.run_path(str(EXAMPLE))["get_model"]
    ranges = {parameter.name: parameter for parameter in get_model.parameter_range}
    kernels, pools = (range(ranges[name].low, ranges[name].high + 1) for name in ("kernel_size", "pool_size"))
    assert [*kernels] == [*range(2, 11)]
    for kernel, pool in itertools.product(kernels, pools):
        model = get_model(kernel_size=kernel, pool_size=pool)
        assert torch_module.describe_outputs(model, (28, 28, 1)) == [Output("output_0", (10,), "log_softmax")]
    for name in ("nb_filters", "dense", "dropout"):
        for value in (ranges[name].low, ranges[name].high):
            assert torch_module.describe_outputs(get_model(**{name: value}), (28, 28, 1))[0].shape == (10,)


def test_the_example_describes_itself_and_learns(digits):
    import h5py

    definition = open_model(str(EXAMPLE))
    assert {parameter.name for parameter in definition.parameter_range} == definition.accepted_parameters
    with h5py.File(digits / (digits / "train_mnist.list").read_text().split()[0]) as file:
        x, y = file["features"][:200], file["labels"][:200]
    torch_module.set_seed(0)
    model = definition.build({"dropout": 0.0}, framework_named("torch"))
    outputs = torch_module.describe_outputs(model, x.shape[1:])
    terms, _ = make_terms(None, None, outputs, [Labels((10,), "float32", y)], torch_module.RULES)
    adapter = torch_module.adapter(model, terms)
    weights = weights_of(adapter)
    # After 30 steps the order of sums on a processor decides between 0.1 and 0.6; after 150 it is 0.85 to 1.
    for _ in range(150):
        weights -= 0.1 * gradient(adapter, (x, y))[0]
        adapter.write_weights(weights)
    assert adapter.evaluate(x, y).means()["acc"] > 0.5


# ---------------------------------------------------------------- ensembles


def test_the_mean_of_models_is_a_script_that_needs_no_code(tmp_path):
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)) for _ in range(3)]
    x = torch.ones(5, 3)
    with torch.no_grad():
        expected = sum(w * model.eval()(x) for model, w in zip(models, (0.5, 0.3, 0.2), strict=True))
    torch_module.save_mean([model.train() for model in models], (0.5, 0.3, 0.2), path := tmp_path / "mean.pt")
    np.testing.assert_allclose(torch.jit.load(str(path))(x).detach(), expected, rtol=1e-5)


def test_models_that_have_no_mean_are_refused(tmp_path):
    several = [module(lambda self, a, b: a + b, fc=torch.nn.Linear(1, 1))]
    check_refused("one input and one output", torch_module.save_mean, several, (1.0,), tmp_path / "mean.pt")


def test_outputs_are_measured_as_the_model_is():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    x, y = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32), np.arange(30) % 3
    outputs = torch_module.describe_outputs(model, (6,))
    terms, _ = make_terms(None, None, outputs, [Labels((), "int64", y)], torch_module.RULES)
    adapter = torch_module.adapter(model, terms)
    assert adapter.measure(adapter.predict(x), y).sums == pytest.approx(adapter.evaluate(x, y).sums)
