"""Rules on lists of arrays, and what they are refused for."""

import numpy as np
import pytest

from nnlo_opt.controller.channel import EASGD, apply, arrays_in, check_params, difference_of, layout_of
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.vectors import aligned_bytes
from tests.helpers.refusals import check_refused


def arrays(value):
    return [np.full((3, 2), value, np.float32), np.full(5, value), np.array(value, np.float32)]


def test_easgd_pulls_both_sides_by_the_same_force():
    local, central = arrays(1.0), arrays(3.0)
    apply(EASGD(0.25), local, central)
    assert [set(array.ravel()) for array in local] == [{1.5}] * 3
    assert [set(array.ravel()) for array in central] == [{2.5}] * 3


@pytest.mark.parametrize("alpha", [-0.1, 1.5, True, "0.5", float("nan")])
def test_a_moving_rate_out_of_range_is_refused(alpha):
    check_refused("`alpha` must be a number from 0 to 1. Received: ", EASGD, alpha)


def test_easgd_has_the_methods_of_platoon():
    rule = EASGD(0.25)
    rule.set_alpha(0.5)
    assert rule.get_alpha() == rule.alpha == 0.5
    check_refused("from 0 to 1", rule.set_alpha, 2)


def test_a_rule_may_return_both_lists():
    local, central = arrays(1.0), arrays(3.0)
    kept = local[0]
    apply(lambda ours, shared: ([x + 1 for x in ours], [x * 2 for x in shared]), local, central)
    assert local[0] is kept
    assert [set(array.ravel()) for array in local + central] == [{2.0}] * 3 + [{6.0}] * 3


def test_a_rule_may_return_the_arrays_that_it_was_given():
    local, central = arrays(1.0), arrays(3.0)
    apply(lambda ours, shared: (shared, ours), local, central)
    assert [set(array.ravel()) for array in local + central] == [{3.0}] * 3 + [{1.0}] * 3


@pytest.mark.parametrize(
    ("result", "received"),
    [
        (([np.zeros((2, 3)), np.zeros(5), 0.0], arrays(9.0)), r"shape \(2, 3\) for local array 0, which has \(3, 2\)"),
        ((arrays(9.0), arrays(9.0)[:2]), "2 arrays for 3 central arrays"),
        ((arrays(9.0), None), "NoneType for 3 central arrays"),
        (arrays(9.0), "list instead of two lists"),
        (1.0, "float instead of two lists"),
    ],
)
def test_a_rule_that_returns_other_shapes_changes_nothing(result, received):
    local, central = arrays(1.0), arrays(3.0)
    with pytest.raises(ConfigurationError, match=f"^A rule must change the arrays in place .* Received: {received}"):
        apply(lambda *_: result, local, central)
    assert [set(array.ravel()) for array in local + central] == [{1.0}] * 3 + [{3.0}] * 3


@pytest.mark.parametrize(
    ("params", "received"),
    [
        (np.zeros(3), "ndarray"),
        ([], "list"),
        ([[1.0]], "list as number 0"),
        ([np.array(["a"])], "array of <U1 as number 0"),
        ([np.zeros(2), np.arange(3)], "array of int64 as number 1"),
        ([np.zeros((2, 3)).T], "array 0 of shape (3, 2)"),
        ([np.broadcast_to(0.0, 3)], "array 0 of shape (3,)"),
    ],
)
def test_parameters_that_cannot_be_changed_in_place_are_refused(params, received):
    check_refused(f"Received: {received}", check_params, params)


def test_arrays_of_any_type_lie_side_by_side_in_one_memory():
    own = [np.arange(3, dtype=np.int64), np.zeros((0, 2), np.float32), np.ones((2, 2), np.float16)]
    layout = layout_of(own)
    _, n_bytes = arrays_in(None, layout)
    found, _ = arrays_in(aligned_bytes(n_bytes), layout)
    for array, value in zip(found, own, strict=True):
        array[...] = value
    assert all((array == value).all() and array.dtype == value.dtype for array, value in zip(found, own, strict=True))


def test_the_first_difference_of_two_layouts_is_named():
    layout = layout_of(arrays(0.0))
    assert difference_of(layout, [(kind, list(shape)) for kind, shape in layout]) is None
    assert difference_of(layout, layout[:2]) == "2 arrays instead of 3"
    other = [layout[0], ("<f4", [5]), layout[2]]
    assert difference_of(layout, other) == "float32 (5,) instead of float64 (5,) as array 1"
