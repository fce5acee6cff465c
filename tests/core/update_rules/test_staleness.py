import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError
from nnlo_opt.core.update_rules.staleness import StalenessPolicy, StalenessStatistics, explicit_momentum


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))))
def test_counts_every_update(updates):
    statistics = StalenessStatistics()
    for base, staleness in updates:
        assert statistics.record(base, base + staleness) == staleness
    received = [staleness for _, staleness in updates]
    assert statistics.n_updates == len(received)
    assert statistics.max == max(received, default=0)
    assert statistics.mean == pytest.approx(sum(received) / max(1, len(received)))
    assert statistics.histogram == {s: received.count(s) for s in sorted(set(received))}
    restored = StalenessStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert restored.histogram == statistics.histogram


def test_an_update_from_the_future_is_a_bug():
    with pytest.raises(ProtocolError, match="version 5"):
        StalenessStatistics().record(5, 4)


def test_dropped_updates_are_counted_and_kept():
    statistics = StalenessStatistics()
    policy = StalenessPolicy.parse("drop:2")
    for staleness in (0, 3, 2, 7):
        statistics.record(0, staleness)
        if not policy.weight(staleness):
            statistics.drop()
    assert (statistics.n_updates, statistics.n_dropped) == (4, 2)
    assert statistics.to_json() == {"0": 1, "2": 1, "3": 1, "7": 1, "dropped": 2}
    restored = StalenessStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert (restored.histogram, restored.n_dropped) == ({0: 1, 2: 1, 3: 1, 7: 1}, 2)


def test_without_drops_the_json_is_as_before():
    statistics = StalenessStatistics.from_json({"0": 3, "4": 1})
    assert (statistics.histogram, statistics.n_dropped) == ({0: 3, 4: 1}, 0)
    assert statistics.to_json() == {"0": 3, "4": 1}


def test_more_drops_than_updates_are_a_bug():
    statistics = StalenessStatistics({1: 1})
    statistics.drop()
    with pytest.raises(ProtocolError, match="all 1 recorded"):
        statistics.drop()


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_policies_weigh_as_they_say(staleness, limit):
    assert StalenessPolicy.parse("none").weight(staleness) == StalenessPolicy().weight(staleness) == 1
    assert StalenessPolicy.parse("scale").weight(staleness) == 1 / (1 + staleness)
    assert StalenessPolicy.parse(f"drop:{limit}").weight(staleness) == (0 if staleness > limit else 1)


def test_policies_are_values():
    assert StalenessPolicy.parse(" drop:3 ") == StalenessPolicy(kind="drop", limit=3)
    assert StalenessPolicy.parse("scale") != StalenessPolicy.parse("none")


NO_POLICIES = "drop drop: drop:-1 drop:1.5 drop:+1 drop:1_0 drop:² none:3 scale: Scale"


@pytest.mark.parametrize("text", ["", *NO_POLICIES.split(), "drop: 3", 3])
def test_other_policies_are_refused(text):
    with pytest.raises(ConfigurationError, match=r"`--staleness` must be none, scale or drop:N.* Received: "):
        StalenessPolicy.parse(text)


@given(st.floats(0.01, 0.99), st.floats(0, 120))
def test_momentum_of_optimizer_and_staleness_are_together_what_was_asked(asked, staleness):
    momentum, implicit = explicit_momentum(asked, staleness), staleness / (1 + staleness)
    assert 0 <= momentum <= asked * (1 + 1e-12)
    assert 1 - (1 - momentum) * (1 - implicit) == pytest.approx(max(asked, implicit))


@pytest.mark.parametrize(
    ("asked", "staleness", "left"),
    [(0.9, 0, 0.9), (0.9, 1, 0.8), (0.9, 7, 0.2), (0.9, 9, 0), (0.9, 15, 0), (0.5, 0.5, 0.25), (0.5, 1, 0)],
)
def test_momentum_that_is_left_to_the_optimizer(asked, staleness, left):
    assert explicit_momentum(asked, staleness) == pytest.approx(left)


def test_staleness_without_momentum_acts_as_the_momentum_of_the_queueing_model():
    """M workers of exponential times; a slope of 1 everywhere moves the weights as momentum 1 - 1/M does."""
    n_workers, ages = 8, np.arange(400)
    assert explicit_momentum(1 - 1 / n_workers, n_workers - 1) == pytest.approx(0)
    geometric = (1 - 1 / n_workers) ** ages / n_workers
    step, momentum = np.zeros(len(ages)), 0.0
    for age in ages:
        momentum = (1 - 1 / n_workers) * momentum + (1 / n_workers if age == 0 else 0)
        step[age] = momentum
    np.testing.assert_allclose(step, geometric)
