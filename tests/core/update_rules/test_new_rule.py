"""A fifth update rule, made in this file and named in the registry: it trains in every way that a team has."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from nnlo_opt.app.run.options.checks import check_shares, least_workers
from nnlo_opt.app.run.options.making import training_options
from nnlo_opt.app.run.options.space_checks import idle_options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.space.parameters import Real
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.core.update_rules.rule import GroupHalf, MasterHalf, RuleOption, UpdateRule, WorkerHalf
from tests.helpers import linear_teams
from tests.helpers.launcher import python
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import data_of
from tests.helpers.linear_teams import options_of, tree_of, val_losses
from tests.helpers.loopback_team import LoopbackTeam
from tests.helpers.refusals import check_refused

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
    options = (
        RuleOption("sign_rate", "RATE", "length of a step", "0.1", default=RATE, is_rate=True),
        RuleOption("sign_votes", "N", "workers without which there is no majority", "3", default=1.0),
    )
    takes_optimizer = False
    makes_local_steps = False
    may_be_synchronous = False

    def master_half(self, options, n_weights, n_workers):
        return SignMaster(options.of_rules["sign_rate"])

    def worker_half(self, options, n_weights):
        return SignWorker(n_weights)

    def group_half(self, options, n_weights, n_workers):
        return SignGroup()

    def check_groups(self, n_masters, n_processes):
        if n_processes > 1:
            raise ConfigurationError(f"`--n-processes` must be 1 with `--mode sign`. Received: {n_processes}.")

    def check_workers(self, own, n_workers):
        if own["sign_votes"] > n_workers:
            raise ConfigurationError(f"`--sign-votes` must be at most {n_workers}. Received: {own['sign_votes']}.")

    def least_workers(self, own):
        return own["sign_votes"]


@pytest.fixture(autouse=True)
def _is_registered(monkeypatch):
    monkeypatch.setitem(RULES, SignSgd.name, SignSgd())


def trained(directory, workers):
    return linear_teams.trained(
        directory, options_of(mode="sign", epochs=30, sign_rate=RATE), workers, seed=0, data=DATA
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
        check_refused("`--mode sign`", TrainingOptions, mode="sign", **changes)


def test_options_of_a_new_rule_are_those_of_a_training():
    options = TrainingOptions.of({"mode": "sign", "sign_votes": 2, "learning_rate": 0.1})
    assert (options.of_rules["sign_rate"], options.to_json()["sign_votes"]) == (RATE, 2)
    assert options.for_updates().of_rules["sign_rate"] == 1.0
    assert idle_options(options, None) == ("Without effect here: `--learning-rate` (`--sign-rate` is that of sign).",)
    (line,) = idle_options(TrainingOptions.of({"sign_rate": 0.5}), None)
    assert "`--sign-rate` (for `--mode sign`)" in line


def test_ranks_are_checked_for_a_new_rule():
    asked = replace(training_options({"model": "m.py"}), training=TrainingOptions(mode="sign"))
    space = Space([Real(1, 4, name="train.sign_votes")])
    data = DataFiles(files=(), n_train=9, n_validation=0)
    found = Findings(model="m", kind="model", source="", sha256="", space=space, data=data, n_train_smallest=9)
    assert least_workers(asked, found) == 4
    check_refused("`--sign-votes` must be at most 2", check_shares, asked, plan_single_block(3), found)
    check_refused("`--n-processes` must be 1", asked.training.rule.check_groups, 1, 2)


#: a process in which a rule is registered before anything else is imported, as by a line in the registry
PROGRAM = """
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.core.update_rules.rule import RuleOption

class Sign(Downpour):
    name = "sign"
    options = (RuleOption("sign_rate", "RATE", "length of a step", "0.1", default=0.01, is_rate=True),)

RULES["sign"] = Sign()

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.options.table import BY_NAME

training = driver_options("TrainingDriver", ["--model", "m.py", "--mode", "sign", "--sign-rate", "0.5"]).training
print(training.of_rules["sign_rate"], training.with_point({"train.sign_rate": 0.25}).of_rules["sign_rate"])
print(BY_NAME["sign_rate"].help_text, BY_NAME["mode"].help, sep="\\n")
"""


def test_options_of_a_new_rule_are_options_of_the_commands():
    assert python(PROGRAM).expect(0).out.splitlines() == [
        "0.5 0.25",
        "sign: length of a step (default: 0.01, example: 0.1)",
        "update rule: downpour, easgd, gem, sign, or allreduce, in which every rank trains",
    ]


class ByLayer(SignSgd):
    """The same rule, whose halves must know the layers of the model in each update."""

    name = "by-layer"
    told: ClassVar[list[list[str]]] = []

    def master_half(self, options, n_weights, n_workers):
        return LayeredMaster(options.of_rules["sign_rate"])

    def worker_half(self, options, n_weights):
        return LayeredWorker(n_weights)

    def group_half(self, options, n_weights, n_workers):
        return LayeredGroup()


def take_note(half):
    ByLayer.told.append([type(half).__name__, *((layer.name, layer.shape, layer.part) for layer in half.layers)])


class LayeredMaster(SignMaster):
    by_layer = True

    def apply(self, central, update, weight):
        take_note(self)
        for layer in self.layers:
            super().apply(central[layer.part], update[layer.part], weight)


class LayeredWorker(SignWorker):
    def finish(self):
        take_note(self)
        return super().finish()


class LayeredGroup(SignGroup):
    def combine(self, updates):
        take_note(self)
        return super().combine(updates)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("workers", [1, 3, tree_of(4, 3)], ids=["one worker", "three", "a tree"])
def test_all_halves_of_a_rule_by_layer_know_the_layers_of_the_model(tmp_path, monkeypatch, shares, workers):
    monkeypatch.setattr(LoopbackTeam, "shares", shares)
    monkeypatch.setitem(RULES, ByLayer.name, ByLayer())
    monkeypatch.setattr(ByLayer, "told", [])
    options = options_of(mode="by-layer", epochs=3, sign_rate=RATE)
    linear_teams.trained(tmp_path, options, workers, seed=0, data=DATA)
    roles = {told[0] for told in ByLayer.told}
    assert roles == {"LayeredMaster", "LayeredWorker"} | ({"LayeredGroup"} if workers not in (1, 3) else set())
    layers = layers_of((spec.name, spec.shape) for spec in LinearAdapter(3, 0).layout.specs)
    assert all(told[1:] == [tuple(layer) for layer in layers] for told in ByLayer.told)
