import numpy as np

from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.space import Categorical, Integer, Ordinal, Real, Space

SPACE = Space([Real(1e-2, 1, "log-uniform", name="x"), Categorical(["a", None, 3], name="c"), Integer(1, 4, name="n")])
HALF = np.sqrt(0.5)


def test_columns():
    encoding = Encoding(SPACE)
    columns = encoding.columns([{"x": 0.1, "c": None, "n": 1}, {"x": 1.0, "c": "a", "n": 4}])
    np.testing.assert_allclose(columns, [[0.5, 0, HALF, 0, 0.125], [1.0, HALF, 0, 0, 0.875]])
    assert encoding.groups.tolist() == [0, 1, 1, 1, 2]
    assert encoding.first.tolist() == [0, 1, 4]


def test_likely_values_do_not_move_the_columns():
    likely = [Real(0, 1, name="x", likely=0.1), Integer(1, 4, name="n", likely=4), Ordinal([1, 2, 8], "o", likely=8)]
    encoding = Encoding(Space(likely))
    np.testing.assert_allclose(encoding.columns([{"x": 0.9, "n": 1, "o": 1}]), [[0.9, 0.125, 1 / 6]])
    assert encoding.space == Space([Real(0, 1, name="x"), Integer(1, 4, name="n"), Ordinal([1, 2, 8], "o")])
    assert Encoding(SPACE).space is SPACE


def test_different_categories_are_one_apart_and_a_missing_one_is_as_far_from_each():
    points = [{"x": 0.1, "c": c, "n": 1} for c in ("a", None, 3)] + [{"x": 0.1, "n": 1}]
    columns = Encoding(SPACE).columns(points)
    squares = ((columns[:, None] - columns[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squares[:3, :3], 1 - np.eye(3))
    np.testing.assert_allclose(squares[3, :3], 0.5)


def test_parameters_that_a_point_does_not_have_lie_in_the_middle():
    np.testing.assert_allclose(Encoding(SPACE).columns([{"c": 3}]), [[0.5, 0, 0, HALF, 0.5]])
