import numpy as np
import pytest

from nnlo_opt.core.update_rules.clipping import CLIPPINGS, Clipping
from nnlo_opt.core.update_rules.layers import layers_of

LAYERS = layers_of([("kernel", (3, 4)), ("none", (0,)), ("bias", (5,)), ("scale", (2,))])
N_WEIGHTS = 19


def clipped(name, limit, gradient):
    result = gradient.copy()
    Clipping(name, limit, LAYERS).clip(result)
    return result


@pytest.mark.keras
@pytest.mark.parametrize("limit", [0.5, 3.0, 100.0])
@pytest.mark.parametrize(
    ("name", "theirs"), [*zip(CLIPPINGS, ["clipnorm", "global_clipnorm", "clipvalue"], strict=True)]
)
def test_gradients_are_clipped_as_in_keras(name, theirs, limit):
    import keras

    optimizer = keras.optimizers.SGD(**{theirs: limit})
    gradient = np.random.default_rng(0).normal(size=N_WEIGHTS).astype(np.float32)
    gradient[-2:] *= 1e-3
    parts = [keras.ops.convert_to_tensor(gradient[layer.part]) for layer in LAYERS]
    expected = np.concatenate([np.asarray(part) for part in optimizer._clip_gradients(parts)])
    np.testing.assert_allclose(clipped(name, limit, gradient), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["clip_norm", "global_clip_norm"])
def test_gradients_are_clipped_as_in_torch(name):
    torch = pytest.importorskip("torch")
    gradient = np.random.default_rng(0).normal(size=N_WEIGHTS).astype(np.float32)
    parameters = [torch.nn.Parameter(torch.zeros(layer.shape)) for layer in LAYERS]
    for parameter, layer in zip(parameters, LAYERS, strict=True):
        parameter.grad = torch.tensor(gradient[layer.part].reshape(layer.shape))
    for group in [parameters] if name == "global_clip_norm" else [[one] for one in parameters if one.numel()]:
        torch.nn.utils.clip_grad_norm_(group, 1.5)
    expected = np.concatenate([parameter.grad.numpy().ravel() for parameter in parameters])
    np.testing.assert_allclose(clipped(name, 1.5, gradient), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["clip_norm", "global_clip_norm"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_norm_that_is_not_finite_shows_in_all_of_its_gradient(name, value):
    gradient = np.ones(N_WEIGHTS, np.float32)
    gradient[1] = value
    result = clipped(name, 1.0, gradient)
    assert np.isnan(result[:12]).all()
    assert np.isnan(result[12:]).all() == (name == "global_clip_norm")
