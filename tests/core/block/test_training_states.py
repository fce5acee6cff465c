"""Metrics that are no means, over the training samples of all workers: each sample counts once."""

from dataclasses import replace

import pytest

from nnlo_opt.core.comm import messages as msg
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import data_of
from tests.helpers.linear_teams import finish, options_of, tree_of
from tests.helpers.loopback_team import LoneTeam, tasks_from

pytestmark = pytest.mark.usefixtures("exchange")

N_TRAIN, EPOCHS, BATCH = 120, 2, 3
DATA = data_of(N_TRAIN, 0)


class Counting(LinearAdapter):
    """A linear model with a metric that counts the samples it was trained on."""

    def gradient(self, x, y, out, sample_weight=None):
        return replace(super().gradient(x, y, out, sample_weight), states={"seen": [float(len(x))]})

    def finish(self, states, batches):
        return {name: float(state[0]) for name, state in states.items()}


def team_of(directory, n_workers, **changes):
    options = options_of(batch=BATCH, epochs=EPOCHS, **changes)

    def build(parameters, options, seed):
        return Counting(*DATA.source.info.feature_shape, seed)

    return LoneTeam(directory, options, lambda: tasks_from(build, *DATA, options), n_workers)


def seen(team):
    return [report.metrics["seen"] for report in team.reported(msg.EpochReported)]


@pytest.mark.parametrize("n_workers", [1, 4, tree_of(4, 3)], ids=["1", "4", "groups"])
def test_every_sample_counts_once(tmp_path, n_workers):
    finish(team := team_of(tmp_path, n_workers, synchronous=True))
    assert seen(team) == [N_TRAIN] * EPOCHS


def test_what_was_seen_before_a_preemption_within_an_epoch_counts(tmp_path):
    team = team_of(tmp_path, 2, synchronous=True)
    number = team.run_fold()
    team.steps(40)
    team.order(msg.PreemptFold(assignment=number))
    assert isinstance(team.settle(), msg.FoldStopped)
    (_,) = tmp_path.glob("trials/*/fold0/checkpoint-0-*")
    finish(again := team_of(tmp_path, 2, synchronous=True))
    assert seen(again) == [N_TRAIN] * EPOCHS


def test_workers_that_outlive_others_keep_what_they_have_seen(tmp_path):
    team = team_of(tmp_path, 2)
    team.run_fold()
    team.steps(30)
    assert not team.reported(msg.EpochReported)
    team.regroup(2)  # all of them go on
    team.settle()
    # Workers that do not wait for each other may train some batches more.
    assert all(N_TRAIN <= count <= N_TRAIN + 2 * 2 * BATCH for count in seen(team))
