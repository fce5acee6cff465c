"""Our update rules pass the suite for update rules, and rules with one fault each fail the test that is for it."""

from typing import ClassVar

import numpy as np
import pytest

from nnlo_opt.core.update_rules.allreduce import Allreduce
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.easgd import Easgd
from nnlo_opt.core.update_rules.gem import GradientEnergyMatching
from nnlo_opt.testing.rule_conformance import UpdateRuleConformance
from tests.helpers import broken_rules

MOMENTUM = {"optimizer": "sgd", "learning_rate": 0.002, "optimizer_params": {"momentum": 0.9}}


class TestDownpour(UpdateRuleConformance):
    make = Downpour


class TestDownpourWithLocalSteps(UpdateRuleConformance):
    make = Downpour
    options: ClassVar = {**MOMENTUM, "sync_every": 3, "worker_optimizer": "adam"}


class TestEasgd(UpdateRuleConformance):
    make = Easgd
    options: ClassVar = {"sync_every": 2}


class TestEasgdWithMomentum(UpdateRuleConformance):
    make = Easgd
    options: ClassVar = {"elastic_momentum": 0.9, "elastic_lr": 0.01}


class TestGem(UpdateRuleConformance):
    make = GradientEnergyMatching
    options: ClassVar = {"gem_lr": 0.001}


class TestGemWithLocalSteps(UpdateRuleConformance):
    make = GradientEnergyMatching
    options: ClassVar = {"sync_every": 3, "worker_optimizer": "adam", "gem_lr": 0.0005}


class TestAllreduce(UpdateRuleConformance):
    make = Allreduce


class TestExample(UpdateRuleConformance):
    make = broken_rules.ErrorFeedback


class ByLayerMaster(broken_rules.MomentumMaster):
    """LARS: the step of each layer is as long as its weights (You, Gitman and Ginsburg, arXiv:1708.03888, (6))."""

    by_layer = True

    def apply(self, central, update, weight):
        for layer in self.layers:
            size = np.linalg.norm(update[layer.part])
            update[layer.part] *= np.linalg.norm(central[layer.part]) / size if size else 1.0
        super().apply(central, update, weight)


class ByLayer(broken_rules.ErrorFeedback):
    def master_half(self, options, n_weights, n_workers):
        return ByLayerMaster(n_weights, self.base_learning_rate(options))


class TestByLayer(UpdateRuleConformance):
    make = ByLayer


class TogetherByLayer(Allreduce):
    """The same steps in allreduce, which no rank can make a part of."""

    parts_steps = False

    def worker_half(self, options, n_weights):
        return broken_rules.Scales(n_weights, self.optimizer(options, n_weights))


class TestTogetherByLayer(UpdateRuleConformance):
    make = TogetherByLayer


FAULTS = [
    pytest.param(test, rule, words, id=f"{test}-{rule.__name__}-{number}")
    for test, rules in broken_rules.BROKEN.items()
    for number, (rule, words) in enumerate(rules)
]


def run_by(suite: UpdateRuleConformance, test: str) -> None:
    """Run a test of the suite, with its parameters in brackets."""
    name, _, words = test.partition("[")
    method = getattr(suite, f"test_{name}")
    arguments = {
        AGREE: lambda: {"n_before": int(words[0]), "staleness": words[2:-1]},
        "workers_may_leave_and_join": lambda: {"before": 4, "after": 2},
        "vectors_are_float32_and_as_long_as_the_model": lambda: {"n_weights": 5},
    }
    method(**arguments.get(name, lambda: {"way": words[:-1]} if words else {})())


AGREE = "messages_and_shared_memory_agree"


@pytest.mark.parametrize(("test", "rule", "words"), FAULTS)
def test_a_rule_with_one_fault_fails_the_test_that_is_for_it(test, rule, words):
    suite = type("Suite", (UpdateRuleConformance,), {"make": rule})()
    with pytest.raises(AssertionError, match=words):
        run_by(suite, test)


def test_every_test_of_the_suite_is_failed_by_a_rule_with_a_fault():
    tests = {name.removeprefix("test_") for name in vars(UpdateRuleConformance) if name.startswith("test_")}
    assert tests == {test.partition("[")[0] for test in broken_rules.BROKEN}
