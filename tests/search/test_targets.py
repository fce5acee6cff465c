import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.search.targets import encode, penalty, warp
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When

values = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30).map(np.array)


@given(values=values)
def test_warped_values_are_small_and_keep_their_order(values):
    warped = warp(values)
    assert np.all(np.isfinite(warped))
    assert warped.min() == 0.0
    assert warped.max() < 100
    assert np.all(np.diff(warped[np.argsort(values, kind="stable")]) >= 0)
    assert penalty(warped) >= max(1.0, warped.max())


def test_warp_is_linear_near_the_best_and_logarithmic_far_away():
    warped = warp(np.array([5.0, 6.0, 6.0, 5.001, 5.0 + 1e6]))
    np.testing.assert_allclose(warped, np.log1p([0.0, 1.0, 1.0, 0.001, 1e6]))


def test_warp_of_equal_values_is_zero():
    for value in (0.0, -3.0, 1e308):
        assert warp(np.full(4, value)).tolist() == [0.0] * 4


def test_one_different_value_is_seen():
    assert warp(np.array([1.0, 1.0, 1.0, 1.0, 2.0]))[-1] > 1.0
    assert warp(np.array([2.0, 2.0, 2.0, 1.0])).tolist()[-1] == 0.0


def test_encoding():
    space = Space(
        [Real(1e-2, 1, "log-uniform", name="x"), Categorical(["a", None, 3], name="c"), Integer(1, 4, name="n")]
    )
    points = [{"x": 0.1, "c": None, "n": 1}, {"x": 1.0, "c": "a", "n": 4}]
    np.testing.assert_allclose(encode(space, points), [[0.5, 0, 1, 0, 0.125], [1.0, 1, 0, 0, 0.875]])


def test_encoding_of_what_is_not_in_every_point():
    space = Space(
        [
            Categorical(["a", "b"], name="c"),
            Real(0, 1, name="x", condition=When("c", "a")),
            Categorical([1, 2, 3], name="d", condition=When("c", "b")),
            Ordinal([1, 2], name="o"),
            Constant(7, name="k"),
        ]
    )
    points = [{"c": "a", "x": 0.9, "o": 1, "k": 7}, {"c": "b", "d": 3, "o": 2, "k": 7}]
    assert all(space.contains(point) for point in points)
    np.testing.assert_allclose(encode(space, points), [[1, 0, 0.9, 0, 0, 0, 0.25], [0, 1, 0.5, 0, 0, 1, 0.75]])
    assert encode(Space([Constant(7, name="k")]), [{"k": 7}, {"k": 7}]).shape == (2, 1)
