"""The learning rate in the course of a training, under each update rule, against recurrences written down here.

`test_update_rules` has the recurrences of EASGD and GEM, `test_closed_forms` the rounds of workers that wait.
"""

from itertools import accumulate, pairwise

import numpy as np
import pytest

from nnlo_opt.core.update_rules.rule import SteppingWorker
from tests.helpers.linear_serial import EPOCHS, RATE, SIZES, Serial, factor_of, serial_trajectory
from tests.helpers.linear_teams import central_of, options_of, trained

pytestmark = [pytest.mark.usefixtures("exchange"), pytest.mark.many]

SCHEDULES = [
    {"warmup_epochs": 1.5},
    {"lr_schedule": "cosine"},
    {"warmup_epochs": 0.5, "lr_schedule": "linear"},
    {"lr_schedule": "exponential:0.3"},
    {"lr_schedule": "step:1:0.1"},
]


@pytest.fixture
def taken(monkeypatch):
    """The factors that workers with steps of their own have taken."""
    factors, ordinary = [], SteppingWorker.scale_learning_rate
    monkeypatch.setattr(
        SteppingWorker, "scale_learning_rate", lambda self, part: (factors.append(part), ordinary(self, part))
    )
    return factors


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_update_of_one_worker_has_the_rate_of_its_middle(tmp_path, schedule, synchronous, optimizer):
    options = options_of(optimizer=optimizer, synchronous=synchronous, **schedule)
    expected = serial_trajectory(options)[-1]
    assert np.array_equal(central_of(trained(tmp_path, options)), expected)
    constant = serial_trajectory(options_of(optimizer=optimizer))[-1]
    assert not np.allclose(expected, constant, rtol=1e-3)


@pytest.mark.parametrize("schedule", [{}, *SCHEDULES[:3]], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_common_step_of_all_ranks_has_the_rate_of_its_middle(tmp_path, schedule, optimizer):
    options = options_of(mode="allreduce", optimizer=optimizer, **schedule)
    expected = serial_trajectory(options)[-1]
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sync_every", [2, 3])
def test_local_steps_have_each_its_own_rate_and_the_update_that_of_its_middle(tmp_path, sync_every):
    options = options_of(sync_every=sync_every, warmup_epochs=0.5, lr_schedule="linear")
    serial = Serial(options)
    central = serial.initial.copy()
    for _ in range(EPOCHS):
        for first in range(0, len(SIZES), sync_every):
            local, parts, n_began = central.copy(), [], serial.n_samples
            for _ in SIZES[first : first + sync_every]:
                parts.append(serial.gradient_at(local))
                local -= np.float32(RATE * serial.factor) * parts[-1][1]
            mean = sum(size * gradient for size, gradient in parts) / (serial.n_samples - n_began)
            central -= np.float32(RATE * factor_of(options, n_began, serial.n_samples) * len(parts)) * mean
    np.testing.assert_allclose(central_of(trained(tmp_path, options)), central, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sync_every", [1, 3])
def test_a_worker_that_computes_ahead_goes_through_the_same_rates(tmp_path, taken, sync_every):
    options = options_of(mode="easgd", sync_every=sync_every, lr_schedule="linear")
    trained(tmp_path, options, apart=True)
    assert taken == [factor_of(options, *edges) for edges in pairwise(accumulate([0, *SIZES * EPOCHS]))]


@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize("n_workers", [2, 3])
def test_workers_at_their_own_pace_end_with_rates_near_the_schedules_end(tmp_path, taken, mode, sync_every, n_workers):
    options = options_of(mode=mode, sync_every=sync_every, warmup_epochs=1, lr_schedule="linear", epochs=20)
    team = trained(tmp_path, options, n_workers, seed=3, apart=True)
    assert np.isfinite(central_of(team)).all()
    if mode == "easgd":
        assert all(0 <= part <= 1 for part in taken)
        assert max(taken) > 0.9
        assert max(taken[-n_workers:]) < 0.1
        assert min(taken[:n_workers]) < 0.3


def test_without_a_schedule_no_rate_is_touched(tmp_path, taken):
    trained(tmp_path / "constant", options_of(mode="easgd"))
    assert not taken
    trained(tmp_path / "scheduled", options_of(mode="easgd", lr_schedule="linear"))
    assert taken
