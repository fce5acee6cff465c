import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.models.layout import Layout, WeightSpec

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5)


def layout_of(shapes):
    return Layout(tuple(WeightSpec(f"w{i}", shape) for i, shape in enumerate(shapes)))


@given(shapes)
def test_views_and_gather_are_inverse(shapes):
    layout = layout_of(shapes)
    vector = np.arange(layout.n_weights, dtype=np.float32)
    views = layout.views(vector)
    assert [view.shape for view in views] == shapes
    assert all(np.shares_memory(view, vector) for view in views if view.size)
    layout.gather(views, out := np.empty_like(vector))
    assert np.array_equal(out, vector)


def test_another_length_is_refused():
    with pytest.raises(ValueError, match=r"shape \(6,\)"):
        layout_of([(2, 3)]).views(np.zeros(5, np.float32))
