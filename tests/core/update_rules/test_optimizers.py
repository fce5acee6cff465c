import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS, make_optimizer
from nnlo_opt.core.update_rules.vectors import BLOCK
from tests.helpers import effort

VARIANTS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("adam", {}),
    ("adam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3}),
    ("rmsprop", {}),
    ("rmsprop", {"rho": 0.5, "momentum": 0.9, "epsilon": 1e-4}),
    ("rmsprop", {"centered": True, "momentum": 0.5}),
    ("adadelta", {}),
    ("adadelta", {"rho": 0.5, "epsilon": 1e-3}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.5, "beta_1": 0.5}),
    ("nadam", {}),
    ("nadam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3}),
    ("adagrad", {}),
    ("adagrad", {"initial_accumulator_value": 0.0, "epsilon": 1e-3}),
    ("lion", {}),
    ("lion", {"beta_1": 0.5, "beta_2": 0.8}),
]
#: names of Keras's classes that are not just capitalised
KERAS = {"sgd": "SGD", "rmsprop": "RMSprop", "adamw": "AdamW"}
variants = pytest.mark.parametrize(("name", "parameters"), VARIANTS)


def gradients(n_steps, n, seed=0):
    rng = np.random.default_rng(seed)
    scales = rng.choice([1e-4, 1e-2, 1, 10], size=n)
    return [(rng.normal(size=n) * scales).astype(np.float32) for _ in range(n_steps)]


def trajectory(optimizer, weights, steps):
    for gradient in steps:
        optimizer.apply(weights, gradient)
        yield weights


@variants
def test_steps_continue_in_memory_that_is_given_between_them(name, parameters):
    stays, moves = (make_optimizer(name, 10, 0.05, parameters).beside(ema=0.5) for _ in range(2))
    first, second = gradients(2, 10)
    weights = [np.ones(10, np.float32) for _ in range(2)]
    for optimizer, own in zip((stays, moves), weights, strict=True):
        optimizer.apply(own, first)
    memory = [slot.copy() for slot in moves.slots]
    moves.live_in(memory)
    for optimizer, own in zip((stays, moves), weights, strict=True):
        optimizer.apply(own, second)
    assert np.array_equal(*weights)
    assert all(np.array_equal(given, slot) for given, slot in zip(memory, stays.slots, strict=True))


@pytest.mark.keras
@pytest.mark.parametrize("learning_rate", effort.some_of([0.05, None]))
@variants
def test_every_step_is_kerass(name, parameters, learning_rate):
    import keras

    rate = {} if learning_rate is None else {"learning_rate": learning_rate}
    theirs = getattr(keras.optimizers, KERAS.get(name, name.capitalize()))(**parameters, **rate)
    compare_to_keras(make_optimizer(name, 100, learning_rate, parameters), theirs)


def compare_to_keras(optimizer, theirs):
    """Compare 20 steps; the weights are two variables of Keras, and one vector here."""
    import keras

    weights = np.linspace(-1, 1, 100, dtype=np.float32)
    variables = [keras.Variable(weights[:30], name="kernel"), keras.Variable(weights[30:], name="bias")]
    theirs.build(variables)
    start = weights.copy()
    for gradient in gradients(20, 100):
        optimizer.apply(weights, gradient)
        theirs.apply([gradient[:30], gradient[30:]], variables)
        moved = np.abs(weights - start).max()
        expected = np.concatenate([variable.numpy() for variable in variables])
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-4 * moved)
    return weights


@pytest.mark.keras
@pytest.mark.parametrize("name", ["sgd", "adamw", "lion"])
def test_decay_and_average_are_kerass(name):
    import keras

    theirs = getattr(keras.optimizers, KERAS.get(name, name.capitalize()))(
        0.05, weight_decay=0.3, use_ema=True, ema_momentum=0.8
    )
    theirs.exclude_from_weight_decay(var_names=["bias"])
    ours = make_optimizer(name, 100, 0.05).beside(weight_decay=0.3, no_decay="bias", ema=0.8)
    ours.take_layers(layers_of([("dense/kernel", (30,)), ("dense/bias", (70,))]))
    compare_to_keras(ours, theirs)
    theirs.finalize_variable_values(theirs._trainable_variables)
    expected = np.concatenate([variable.numpy() for variable in theirs._trainable_variables])
    np.testing.assert_allclose(ours.average, expected, rtol=1e-5, atol=1e-5)


#: torch adds epsilon elsewhere than Keras: there is none to speak of here
TORCH = [
    ("sgd", "SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
    ("adam", "Adam", {"epsilon": 1e-20}, {"eps": 1e-20}),
    ("adamw", "AdamW", {"epsilon": 1e-20, "weight_decay": 0.1}, {"eps": 1e-20, "weight_decay": 0.1}),
    ("nadam", "NAdam", {"epsilon": 1e-20}, {"eps": 1e-20, "momentum_decay": 1.0}),
    ("rmsprop", "RMSprop", {"epsilon": 1e-20}, {"eps": 1e-20, "alpha": 0.9}),
    ("adagrad", "Adagrad", {"epsilon": 1e-20}, {"eps": 1e-20, "initial_accumulator_value": 0.1}),
    ("adadelta", "Adadelta", {"rho": 0.9, "epsilon": 1e-6}, {"rho": 0.9, "eps": 1e-6}),
]


@pytest.mark.parametrize(("name", "kind", "parameters", "torchs"), TORCH)
def test_every_step_is_torchs(name, kind, parameters, torchs):
    torch = pytest.importorskip("torch")
    weights = np.linspace(-1, 1, 100, dtype=np.float32)
    variable = torch.nn.Parameter(torch.tensor(weights))
    theirs, ours = (
        getattr(torch.optim, kind)([variable], lr=0.01, **torchs),
        make_optimizer(name, 100, 0.01, parameters),
    )
    for gradient in gradients(20, 100):
        ours.apply(weights, gradient)
        variable.grad = torch.tensor(gradient)
        theirs.step()
        np.testing.assert_allclose(weights, variable.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.keras
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_defaults_are_kerass(name):
    import keras

    config = keras.optimizers.get(name).get_config()
    optimizer = make_optimizer(name, 1)
    assert optimizer.learning_rate == pytest.approx(config["learning_rate"], rel=1e-6)
    assert optimizer.values == {key: config[key] for key in optimizer.values}


def test_sgd_is_its_formula():
    weights = np.array([1, 2], np.float32)
    make_optimizer("sgd", 2, 0.5).apply(weights, np.array([1, -2], np.float32))
    assert weights.tolist() == [0.5, 3.0]


def test_first_step_of_adam_is_the_learning_rate_whatever_the_gradient():
    weights = np.zeros(3, np.float32)
    make_optimizer("adam", 3, 0.01).apply(weights, np.array([1e3, -1, 1e-2], np.float32))
    np.testing.assert_allclose(weights, [-0.01, 0.01, -0.01], rtol=1e-3)


def test_momentum_of_a_constant_gradient_is_a_geometric_sum():
    weights, mu = np.zeros(1, np.float32), 0.5
    optimizer = make_optimizer("sgd", 1, 1.0, {"momentum": mu})
    for _ in range(3):
        optimizer.apply(weights, np.ones(1, np.float32))
    assert weights[0] == -(1 + (1 + mu) + (1 + mu + mu**2))


@variants
def test_a_long_vector_is_its_parts(name, parameters):
    n = 2 * BLOCK + 7
    weights = np.zeros(n, np.float32)
    part = slice(BLOCK - 3, BLOCK + 3)
    steps = gradients(3, n)
    [*_] = trajectory(make_optimizer(name, n, None, parameters), weights, steps)
    expected = np.zeros(6, np.float32)
    [*_] = trajectory(make_optimizer(name, 6, None, parameters), expected, [gradient[part] for gradient in steps])
    assert np.array_equal(weights[part], expected)


@pytest.mark.parametrize("ema", [None, 0.9])
@variants
def test_state_continues_exactly(name, parameters, ema):
    steps = gradients(6, 50)
    straight, weights = np.ones(50, np.float32), np.ones(50, np.float32)
    through = make_optimizer(name, 50, 0.1, parameters).beside(ema=ema)
    [*_] = trajectory(through, straight, steps)
    first = make_optimizer(name, 50, 0.1, parameters).beside(ema=ema)
    [*_] = trajectory(first, weights, steps[:3])
    kept = {key: np.array(value) for key, value in first.state().items()}
    second = make_optimizer(name, 50, 0.7, parameters).beside(ema=ema)
    [*_] = trajectory(second, np.ones(50, np.float32), steps)  # further than the state
    second.load_state(kept)
    [*_] = trajectory(second, weights, steps[3:])
    assert np.array_equal(weights, straight)
    assert ema is None or np.array_equal(second.average, through.average)


def test_a_small_decay_is_not_lost_in_rounding():
    weights = np.full(3, 1.5, np.float32)
    optimizer = make_optimizer("sgd", 3, 1e-4).beside(weight_decay=0.01)
    for _ in range(1000):
        optimizer.apply(weights, np.zeros(3, np.float32))
    np.testing.assert_allclose(1.5 - weights, 1.5e-3, rtol=0.2)


def test_state_of_another_optimizer_is_refused():
    with pytest.raises(CheckpointError, match="`adam` for 3 weights"):
        make_optimizer("adam", 3).load_state(make_optimizer("adam", 4).state())
    with pytest.raises(CheckpointError, match="`sgd`"):
        make_optimizer("sgd", 3).load_state(make_optimizer("rmsprop", 3).state())
    with pytest.raises(CheckpointError, match="Resume with"):
        make_optimizer("sgd", 3).load_state({})


def test_gradient_is_only_read_and_learning_rate_can_be_set():
    gradient = np.ones(4, np.float32)
    gradient.flags.writeable = False
    optimizer = make_optimizer("sgd", 4, 1.0)
    weights = np.zeros(4, np.float32)
    optimizer.apply(weights, gradient)
    optimizer.learning_rate = 10.0
    optimizer.apply(weights, gradient)
    assert weights.tolist() == [-11.0] * 4


def test_other_vectors_are_refused():
    optimizer = make_optimizer("sgd", 3)
    with pytest.raises(ValueError, match=r"float32 vectors of shape \(3,\)"):
        optimizer.apply(np.zeros(3, np.float64), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"\(4,\)"):
        optimizer.apply(np.zeros(3, np.float32), np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("muon", 3), "sgd, adam, adamw, nadam, rmsprop, adagrad, adadelta, lion. Received: 'muon'"),
        (("adam", 3, None, {"momentum": 0.9}), "beta_1, beta_2, epsilon. Received: 'momentum'"),
        (("sgd", 3, None, {"momentum": 1.5}), "below 1. Received: 1.5"),
        (("sgd", 3, None, {"nesterov": "yes"}), "true or false. Received: 'yes'"),
        (("adam", 3, None, {"epsilon": 0}), "above 0. Received: 0"),
        (("adam", 3, None, {"beta_1": True}), "Received: True"),
        (("sgd", 3, 0.0), "`learning_rate` must be a number above 0"),
        (("sgd", 3, float("nan")), "Received: nan"),
    ],
)
def test_wrong_requests(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        make_optimizer(*arguments)


@given(st.sampled_from(VARIANTS), st.integers(0, 2**32 - 1))
def test_descends_a_bowl(variant, seed):
    name, parameters = variant
    target = np.random.default_rng(seed).normal(size=5).astype(np.float32)
    weights = np.zeros(5, np.float32)
    optimizer = make_optimizer(name, 5, 0.01, parameters)
    for _ in range(30):
        optimizer.apply(weights, weights - target)
    assert np.square(weights - target).sum() < np.square(target).sum()


@pytest.mark.parametrize("name", ["adam", "nadam", "lion"])
def test_a_non_finite_gradient_shows_in_the_weights_without_a_warning(name):
    weights = np.zeros(2, np.float32)
    make_optimizer(name, 2).apply(weights, np.array([np.inf, 1e30], np.float32))
    assert not np.isfinite(weights).all()


@pytest.mark.parametrize(("name", "parameters"), [("adam", {}), ("sgd", {"momentum": 0.9}), ("rmsprop", {"rho": 0.5})])
def test_averages_of_a_dead_unit_become_zero_and_not_subnormal(name, parameters):
    # Subnormal numbers stay where they are and take three times as long to compute with.
    n_steps = 3_000
    optimizer = make_optimizer(name, 2, None, parameters)
    weights = np.zeros(2, np.float32)
    optimizer.apply(weights, np.ones(2, np.float32))
    for _ in range(n_steps):
        optimizer.apply(weights, np.array([0.0, 1.0], np.float32))
    fast = {slot: value for slot, value in optimizer.state().items() if slot in ("momentum", "velocity")}
    smallest = np.finfo(np.float32).tiny
    for slot, value in fast.items():
        assert value[0] == 0.0 or abs(value[0]) >= smallest, slot
        assert value[1] != 0.0
    assert fast["momentum" if name != "rmsprop" else "velocity"][0] == 0.0
