import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.models.adapter import Metrics

metrics = st.integers(0, 1000).map(lambda n: Metrics(n, {"loss": 3.0 * n, "acc": 0.25 * n} if n else {}))


@given(metrics, metrics, metrics)
def test_merging_is_associative_with_a_neutral_element(a, b, c):
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(Metrics()) == Metrics().merge(a) == a


def test_means_are_over_samples():
    merged = Metrics(10, {"loss": 10.0}).merge(Metrics(30, {"loss": 90.0}))
    assert merged.means() == {"loss": 2.5}
    assert Metrics().means() == {}


def test_other_figures_do_not_add_up():
    with pytest.raises(ValueError, match="same figures"):
        Metrics(1, {"loss": 1.0}).merge(Metrics(1, {"acc": 1.0}))
