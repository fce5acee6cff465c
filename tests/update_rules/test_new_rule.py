"""A fifth update rule, made in this file and named in the registry: it trains in every way that a team has."""

import linear_teams
import numpy as np
import pytest
from linear_teams import data_of, options_of, tree_of, val_losses
from loopback_team import LoopbackTeam

from nnlo_opt.comm import messages as msg
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.update_rules.registry import RULES
from nnlo_opt.update_rules.rule import GroupHalf, MasterHalf, UpdateRule, WorkerHalf

DATA = data_of(36, 9, n_features=3)
RATE = 0.01


class SignMaster(MasterHalf):
    def __init__(self, rate):
        self._rate = rate

    def apply(self, central, update, weight):
        central -= self._rate * update


class SignWorker(WorkerHalf):
    def finish(self):
        return np.sign(self.gradient)


class SignGroup(GroupHalf):
    """The majority decides."""

    def combine(self, updates):
        return np.sign(np.sum([update for _, update in updates], axis=0)).astype(np.float32)


class SignSgd(UpdateRule):
    """signSGD (Bernstein et al., arXiv:1802.04434): workers push signs; a group pushes those of its majority."""

    name = "sign"
    makes_local_steps = False
    may_be_synchronous = False

    def master_half(self, options, n_weights, n_workers):
        return SignMaster(options.learning_rate)

    def worker_half(self, options, n_weights):
        return SignWorker(n_weights)

    def group_half(self, options, n_weights, n_workers):
        return SignGroup()


@pytest.fixture(autouse=True)
def _is_registered(monkeypatch):
    monkeypatch.setitem(RULES, SignSgd.name, SignSgd())


def trained(directory, workers):
    return linear_teams.trained(
        directory, options_of(mode="sign", epochs=30, learning_rate=RATE), workers, seed=0, data=DATA
    )


@pytest.mark.parametrize(
    ("shares", "workers"),
    [(False, 1), (False, 3), (True, 1), (True, 3), (False, tree_of(4, 3))],
    ids=["one worker by messages", "messages", "one worker in memory", "shared memory", "a tree"],
)
def test_a_new_rule_trains_by_messages_in_shared_memory_and_in_a_tree(tmp_path, monkeypatch, shares, workers):
    monkeypatch.setattr(LoopbackTeam, "shares", shares)
    team = trained(tmp_path, workers)
    losses = val_losses(team)
    assert losses[-1] < losses[0] / 2
    pushes = team.delivered(msg.PushUpdate)
    assert all((push.payload is None) == shares for push in pushes)
    # Every weight moves by the rate in every update, up or down.
    if not shares:
        moved = [d.payload[:-1] for d in team.delivered(msg.Train) if d.payload is not None and d.group == 0]
        steps = np.diff([weights[:3] for weights in moved if weights.size], axis=0) / RATE
        assert np.allclose(steps, np.round(steps), atol=1e-3)


def test_one_worker_of_a_new_rule_does_the_same_by_messages_and_in_memory(tmp_path, monkeypatch):
    by_messages = val_losses(trained(tmp_path / "messages", 1))
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    assert val_losses(trained(tmp_path / "memory", 1)) == by_messages


def test_what_a_new_rule_cannot_do_is_refused_by_name():
    for changes in ({"synchronous": True}, {"sync_every": 2}, {"staleness": "scale"}):
        with pytest.raises(ConfigurationError, match="`--mode sign`"):
            TrainingOptions(mode="sign", **changes)
