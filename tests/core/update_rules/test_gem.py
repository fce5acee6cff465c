import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.downpour import SummingWorker
from nnlo_opt.core.update_rules.gem import MAX_PI, Gem
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.vectors import BLOCK

seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def updated(gem, gradient):
    gem.update(np.asarray(gradient, np.float32), out := np.empty(len(gradient), np.float32))
    return out


class PlainGem:
    """One element, in Python's floats, with pi as the paper writes it."""

    def __init__(self, learning_rate, momentum, kappa):
        self.learning_rate, self.mu, self.kappa = learning_rate, momentum, kappa
        self.m = self.c = 0.0
        self.stale = None

    def adopt(self, central):
        self.c = 0.0 if self.stale is None else central - self.stale
        self.stale = central

    def update(self, gradient):
        g = -self.learning_rate * gradient
        self.m = self.mu * self.m + g
        if g == 0:
            return 0.0
        pi = (self.kappa * abs(self.m) - abs(self.c)) / abs(g)
        return min(max(pi, 0.0), MAX_PI) * g


@given(seeds, st.floats(0.001, 1), st.floats(0, 0.99), st.floats(0.1, 5))
def test_every_element_is_the_formula(seed, learning_rate, momentum, kappa):
    n = 20
    rng = np.random.default_rng(seed)
    gem = Gem(n, learning_rate, momentum, kappa)
    plain = [PlainGem(learning_rate, momentum, kappa) for _ in range(n)]
    central = normal((seed, 0), n)
    for _ in range(6):
        gem.adopt(central)
        gradient = (rng.normal(size=n) * rng.choice([0, 1e-3, 1, 10], size=n)).astype(np.float32)
        update = updated(gem, gradient)
        for element, value in zip(plain, central, strict=True):
            element.adopt(float(value))
        expected = [element.update(float(value)) for element, value in zip(plain, gradient, strict=True)]
        np.testing.assert_allclose(update, expected, rtol=1e-3, atol=1e-5)
        # Others move the central weights too, by about as much.
        central = central + update + (learning_rate * normal((seed, 1), n)).astype(np.float32)


@given(seeds, st.floats(0.1, 5))
def test_an_update_and_the_movement_stay_below_the_proxy(seed, kappa):
    gem, central = Gem(50, 0.1, 0.9, kappa), normal((seed, 0), 50)
    m = np.zeros(50)
    for step in range(5):
        gem.adopt(central)
        movement = gem.state()["movement"].copy()
        gradient = normal((seed, 1, step), 50)
        g = -0.1 * gradient.astype(float)
        m = 0.9 * m + g
        update = updated(gem, gradient)
        moved = update != 0
        assert np.all(np.sign(update[moved]) == np.sign(g[moved]))
        assert np.all(np.abs(update) <= MAX_PI * np.abs(g) * (1 + 1e-5))
        assert np.all((np.abs(update) + movement)[moved] <= kappa * np.abs(m[moved]) * (1 + 1e-4) + 1e-6)
        central = central + update + normal((seed, 2, step), 50) * np.float32(0.05)


def test_one_worker_alone_does_exactly_what_the_paper_says():
    """The paper's worker pulls just before it commits; with nobody else that is the last answer."""
    learning_rate, momentum, kappa = 0.05, 0.9, 1.0
    curvature = np.array([1.0, 3.0, 0.2], np.float32)
    theirs = [1.0, -2.0, 0.5]
    plain = [PlainGem(learning_rate, momentum, kappa) for _ in theirs]
    for element, weight in zip(plain, theirs, strict=True):
        element.adopt(weight)  # its pull before the first batch

    ours = np.array(theirs, np.float32)
    gem = Gem(3, learning_rate, momentum, kappa)
    for _ in range(15):
        gem.adopt(ours)
        ours += updated(gem, curvature * ours)
        for i, element in enumerate(plain):
            element.adopt(theirs[i])
            theirs[i] += element.update(float(curvature[i]) * theirs[i])
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_the_first_update_is_kappa_times_the_step():
    gem = Gem(3, 0.1, 0.9, 2.0)
    gem.adopt(np.array([100, -100, 0], np.float32))
    np.testing.assert_allclose(updated(gem, [1, -2, 3]), [-0.2, 0.4, -0.6], rtol=1e-6)


def test_a_large_kappa_is_clipped():
    gem = Gem(2, 0.1, 0.9, 1e6)
    gem.adopt(np.zeros(2, np.float32))
    np.testing.assert_allclose(updated(gem, [1, -1]), [-MAX_PI * 0.1, MAX_PI * 0.1], rtol=1e-6)


def test_a_worker_adds_nothing_if_other_workers_move_enough():
    gem = Gem(2, 0.1, 0.9, 2.0)
    gem.adopt(np.zeros(2, np.float32))
    gem.adopt(np.array([5, -5], np.float32))
    assert np.abs(updated(gem, [1, 1])).max() == 0


def test_a_gradient_of_zero_pushes_nothing_however_large_the_momentum():
    gem = Gem(2, 0.1, 0.9, 2.0)
    gem.adopt(np.zeros(2, np.float32))
    updated(gem, [10, 10])
    assert np.abs(updated(gem, [0, -0.0])).max() == 0
    tiny = np.finfo(np.float32).smallest_subnormal
    assert np.isfinite(updated(gem, [tiny, -tiny])).all()


def test_a_sync_period_counts_its_sum():
    learning_rate, gradients = 0.1, [normal(seed, 4) for seed in range(3)]
    worker, local = SummingWorker(4, make_optimizer("sgd", 4)), np.zeros(4, np.float32)
    worker.weights[:] = 0
    for gradient in gradients:
        worker.gradient[:] = gradient
        worker.step(10)
        local -= learning_rate * gradient
    update = worker.finish()
    gem = Gem(4, learning_rate, 0.9, 1.0)
    gem.adopt(np.zeros(4, np.float32))
    gem.update(update, out=update)
    # Alone, at rest before and with kappa = 1, the worker's own way through the period is the update.
    np.testing.assert_allclose(update, local, rtol=1e-5, atol=1e-7)


def test_gradient_and_central_weights_are_only_read_unless_they_are_the_output():
    gradient, central = normal(0, BLOCK + 5), normal(1, BLOCK + 5)
    gradient.flags.writeable = central.flags.writeable = False
    first, second = Gem(BLOCK + 5), Gem(BLOCK + 5)
    first.adopt(central)
    second.adopt(central)
    in_place = gradient.copy()
    second.update(in_place, out=in_place)
    assert np.array_equal(updated(first, gradient), in_place)


def test_a_long_vector_is_its_parts():
    n, part = 2 * BLOCK + 7, slice(BLOCK - 3, BLOCK + 3)
    long, short = Gem(n), Gem(6)
    for seed in range(3):
        central = normal((seed, 0), n) * np.float32(0.01)
        long.adopt(central)
        short.adopt(central[part])
        gradient = normal((seed, 1), n)
        assert np.array_equal(updated(long, gradient)[part], updated(short, gradient[part]))


def run(gem, rounds):
    updates = []
    for seed in rounds:
        gem.adopt(normal((seed, 0), 30) * np.float32(0.01))
        updates.append(updated(gem, normal((seed, 1), 30)))
    return updates


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_state_continues_exactly(n_before):
    straight = run(Gem(30), range(6))
    first, second = Gem(30), Gem(30, learning_rate=0.5)
    run(first, range(n_before))
    second.load_state({key: np.array(value) for key, value in first.state().items()})
    assert np.array_equal(run(second, range(n_before, 6)), straight[n_before:])


def test_state_of_another_is_refused():
    with pytest.raises(CheckpointError, match="`--mode gem` for 3 weights"):
        Gem(3).load_state(Gem(4).state())
    with pytest.raises(CheckpointError, match="Resume with"):
        Gem(3).load_state({})
    with pytest.raises(CheckpointError, match="`adam`"):
        Gem(3).load_state({**Gem(3).state(), "name": "adam"})


def test_nothing_is_allocated():
    n = 4 * BLOCK
    gem, central, gradient = Gem(n), normal(0, n), normal(1, n)
    before = gem.state()
    tracemalloc.start()
    try:
        for _ in range(2):
            gem.adopt(central)
            gem.update(gradient, out=gradient)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BLOCK
    assert all(gem.state()[name] is before[name] for name in ("momentum", "stale", "movement"))


def test_what_is_not_finite_shows_without_a_warning():
    gem = Gem(3)
    gem.adopt(np.zeros(3, np.float32))
    update = updated(gem, [math.inf, math.nan, 1.0])
    assert not np.isfinite(update[:2]).any()
    assert np.isfinite(update[2])


def test_learning_rate_can_be_set():
    gem = Gem(1, 0.1, 0.0, 1.0)
    gem.adopt(np.zeros(1, np.float32))
    gem.learning_rate = 1.0
    assert updated(gem, [1.0]).tolist() == [-1.0]


def test_local_steps_have_the_learning_rate_of_the_schedule_too():
    options = TrainingOptions.of({"mode": "gem", "gem_lr": 0.5, "sync_every": 2})
    worker = options.rule.worker_half(options, 1)
    worker.scale_learning_rate(0.25)
    worker.weights[:], worker.gradient[:] = 1.0, 2.0
    worker.step(n_samples=1)
    assert worker.weights.tolist() == [1.0 - 0.5 * 0.25 * 2.0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"learning_rate": 0}, "`--gem-lr` must be a finite number above 0. Received: 0. Leave it out for 0.01"),
        ({"learning_rate": math.nan}, "`--gem-lr`.* Received: nan"),
        ({"kappa": -1.0}, "`--gem-kappa`.* Received: -1.0. Leave it out for 2.0"),
        ({"kappa": True}, "`--gem-kappa`.* Received: True"),
        ({"momentum": 1}, "`--gem-momentum` must be a number of at least 0 and below 1. Received: 1. Leave it out"),
        ({"momentum": "0.9"}, "`--gem-momentum`.* Received: '0.9'"),
    ],
)
def test_wrong_requests(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        Gem(3, **arguments)
