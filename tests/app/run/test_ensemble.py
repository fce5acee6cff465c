import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.app.run.afterwards.ensemble import select

TRUTH = np.linspace(-1, 1, 50, dtype=np.float32)


def squared_error(outputs):
    """Loss of a regression."""
    return (float(np.mean((outputs[0] - TRUTH) ** 2)),)


def test_two_models_that_err_in_opposite_ways_are_better_than_the_best_one():
    noise = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    outputs = [[TRUTH + error] for error in (noise[0], -noise[0] * 1.1, noise[1] * 3)]
    assert sorted(set(select(outputs, 10, squared_error))) == [0, 1]
    assert select(outputs, 1, squared_error) == [0]


def test_a_model_counts_as_often_as_it_helps():
    outputs = [[TRUTH + 1], [TRUTH - 2]]
    assert sorted(select(outputs, 3, squared_error)) == [0, 0, 1]


def test_a_model_without_finite_outputs_is_not_selected():
    def loss_of(outputs):
        loss = squared_error(outputs)[0]
        return (loss if np.isfinite(loss) else np.inf,)

    assert set(select([[TRUTH * np.nan], [TRUTH + 1]], 3, loss_of)) == {1}


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 8))
def test_more_selections_are_never_worse(seed, n_models, size):
    rng = np.random.default_rng(seed)
    outputs = [[TRUTH + rng.normal(size=50).astype(np.float32)] for _ in range(n_models)]

    def loss(chosen):
        return squared_error([np.mean([outputs[n][0] for n in chosen], axis=0)])[0]

    alone, chosen = (select(outputs, n, squared_error) for n in (1, size))
    assert len(chosen) <= size
    assert loss(chosen) <= loss(alone) * (1 + 1e-5)
