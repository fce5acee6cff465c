"""Plain data as bytes: what comes back is equal, and of the same types."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnlo_opt.engine.models.plain_data import packed, unpacked
from tests.helpers.refusals import check_refused

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters()))
KEYS = st.one_of(LEAVES, st.tuples(LEAVES, LEAVES))
DATA = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner), st.lists(inner).map(tuple)
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(DATA)
def test_plain_data_comes_back_with_its_types(data):
    assert repr(unpacked(packed(data))) == repr(data)


def test_arrays_come_back_in_their_places():
    data = {
        "a": [np.arange(6, dtype=">i2").reshape(2, 3), np.array(["x", "yz"])],
        "b": np.array(2.5),
        "c": np.float32(0.5),
    }
    found = unpacked(packed(data))
    np.testing.assert_array_equal(found["a"][0], data["a"][0])
    assert found["a"][1].tolist() == ["x", "yz"]
    assert (found["b"].shape, float(found["b"]), found["c"]) == ((), 2.5, 0.5)


@pytest.mark.parametrize("thing", [{1, 2}, object(), b"bytes", np.array([None]), [print], {"a": 1j}, np.complex64(1j)])
def test_other_data_is_refused(thing):
    check_refused("because nothing is pickled. Received: ", packed, thing)
