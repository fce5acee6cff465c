import json

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.space.parameters import parameter_from_json
from nnlo_opt.core.space.tuples import Tuples
from nnlo_opt.space import Categorical, Constant, Ordinal, Space

#: kernel of a convolution -> the same in JSON
MIXED = [(3, 3), [5, 5], (7, [1, (2,)]), "same"]


def in_json(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("parameter", [Categorical(MIXED, name="kernel"), Ordinal(MIXED, name="kernel")])
def test_a_point_of_json_has_the_tuples_of_its_search_space_and_no_others(parameter):
    space = Space.from_json(in_json(Space([parameter]).to_json()))
    for category in MIXED:
        point = {"kernel": in_json(category)}
        assert repr(space.given(point)) == repr({"kernel": category})
        assert space.contains(point)
        assert space.contains({"kernel": category})


def test_a_constant_may_be_a_tuple():
    space = Space.from_json(in_json(Space([Constant((1, (2, [3])), name="c")]).to_json()))
    assert space.given({"c": [1, [2, [3]]]}) == {"c": (1, (2, [3]))}


def test_a_search_space_without_tuples_is_written_as_before():
    parameter = Categorical([[1, 2], None], name="a")
    assert parameter.to_json() == {"kind": "categorical", "name": "a", "categories": [[1, 2], None]}


def test_a_run_of_a_version_without_tuples_is_not_another_search():
    now = Space([Categorical(MIXED, name="kernel")])
    data = in_json(now.to_json())
    del data["parameters"][0]["tuples"]
    assert Space.from_json(data).difference(now) is None
    assert Space.from_json(data).given({"kernel": [3, 3]}) == {"kernel": [3, 3]}


def test_a_point_that_was_handed_out_may_be_changed():
    space = Space([Categorical(MIXED, name="kernel")])
    space.given({"kernel": [7, [1, [2]]]})["kernel"][1].append(4)
    assert space.given({"kernel": [7, [1, [2]]]}) == {"kernel": (7, [1, (2,)])}


@pytest.mark.parametrize("paths", [[[9]], [["a"]], 5, [[0, 0, 0]], [None], {"a": 1}])
def test_paths_that_lead_nowhere_are_refused_in_a_space_and_passed_over_in_a_result(paths):
    data = Categorical([[3, 3], [5, 5]], name="kernel").to_json() | {"tuples": paths}
    with pytest.raises(ConfigurationError, match="in the form that `to_json` writes"):
        parameter_from_json(data)
    assert Tuples([data]).given({"kernel": [3, 3]}) == {"kernel": [3, 3]}


def test_a_constraint_gets_tuples():
    space = Space([Categorical(MIXED, name="kernel")], lambda point: not isinstance(point["kernel"], list))
    assert [space.is_feasible({"kernel": in_json(category)}) for category in MIXED] == [True, False, True, True]
