import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.space import Categorical, Constant, Ordinal, Space


def test_an_ordinal_keeps_its_order_in_its_quantiles():
    parameter = Ordinal([16, 32, 64, 128], name="batch")
    assert [parameter.to_unit(value) for value in (16, 32, 64, 128)] == [0.125, 0.375, 0.625, 0.875]
    assert [parameter.from_unit(unit) for unit in (0, 0.3, 0.6, 1)] == [16, 32, 64, 128]
    assert parameter.n_values == 4


def test_a_likely_category_and_its_neighbours_come_more_often():
    parameter = Ordinal([1, 2, 4, 8, 16], name="n", likely=8)
    drawn = [parameter.from_unit((i + 0.5) / 1000) for i in range(1000)]
    shares = [drawn.count(value) for value in (1, 2, 4, 8, 16)]
    assert sum(shares) == 1000
    assert shares[3] == max(shares) > 300
    assert 0 < shares[0] < shares[1] < shares[2] < shares[3] > shares[4]
    assert all(parameter.from_unit(parameter.to_unit(value)) == value for value in (1, 2, 4, 8, 16))


def test_a_constant_has_one_value_of_any_type():
    parameter = Constant([1, [2, "a"]], name="c")
    assert parameter.n_values == 1
    parameter.from_unit(0.7).clear()
    assert parameter.from_unit(0.0) == parameter.value == [1, [2, "a"]]
    assert parameter.contains((1, (2, "a")))
    assert not Constant(1, name="c").contains(True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ordinal([16], name="p"), "at least 2 categories"),
        (lambda: Ordinal([16, 32, 16], name="p"), "must be different"),
        (lambda: Ordinal([16, 32], name="p", likely=64), "`likely` value of Ordinal `p` must be one of"),
        (lambda: Ordinal("abc", name="p"), "must be a list"),
        (lambda: Space([Ordinal([1, 2])]), "must have a name"),
        (lambda: Constant(print, name="p"), "A category must be"),
        (lambda: Space([Constant(1)]), "must have a name"),
        (lambda: Categorical([1, 2], name="p", condition=("a", 1)), "must be a When"),
        (lambda: Constant(1, name="p", condition=3), "must be a When"),
    ],
)
def test_what_is_refused_and_how(make, words):
    with pytest.raises(ConfigurationError, match=words) as error:
        make()
    assert "Received: " in str(error.value)
    assert "\n" not in str(error.value)
