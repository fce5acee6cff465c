"""A model that trains itself hands in differences of its weights, which every rule takes as they are."""

from functools import partial

import numpy as np
import pytest

from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import N_FEATURES, RATE, SMALL
from tests.helpers.linear_teams import central_of, finish, options_of, trained, tree_of
from tests.helpers.loopback_team import LoneTeam, tasks_from

pytestmark = pytest.mark.many


class Stepping(LinearAdapter):
    """The linear model that makes steps of SGD itself."""

    trains_itself = True

    def gradient(self, x, y, out, sample_weight=None):
        metrics = super().gradient(x, y, out, sample_weight)
        out *= RATE
        return metrics


def differences(directory, options, workers):
    """Return the central weights of a team whose workers hand in differences."""
    tasks = partial(tasks_from, lambda parameters, options, seed: Stepping(N_FEATURES, seed), *SMALL, options)
    team = LoneTeam(directory, options, tasks, workers)
    finish(team, 0)
    return central_of(team)


@pytest.mark.parametrize("workers", [1, 3, tree_of(4, 3)], ids=["one", "three", "tree"])
@pytest.mark.parametrize(
    "how",
    [
        {"synchronous": True},
        {"mode": "easgd", "sync_every": 2},
        {"mode": "downpour"},
        {"mode": "downpour", "sync_every": 3},
        {"mode": "gem", "gem_lr": RATE},
        {"synchronous": True, "lr_schedule": "cosine", "warmup_epochs": 0.5},
    ],
    ids=str,
)
def test_differences_move_the_weights_as_the_steps_that_made_them(tmp_path, how, workers):
    own = options_of(**how | {"gem_lr": 0.5}, optimizer="adam", learning_rate=0.3)
    expected = central_of(trained(tmp_path / "rule", options_of(**how), workers, seed=0))
    np.testing.assert_allclose(differences(tmp_path / "own", own, workers), expected, rtol=1e-5, atol=1e-6)
