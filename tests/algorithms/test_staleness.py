import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.algorithms.staleness import StalenessStatistics
from nnlo_opt.errors import ProtocolError


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
