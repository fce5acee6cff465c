"""Strategies for values of the types that messages and events have."""

from typing import Any

from hypothesis import strategies as st

finite = st.floats(allow_nan=False, allow_infinity=False)
#: what JSON can hold
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | finite | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def by_name(values):
    return st.dictionaries(st.text(max_size=8), values, max_size=4)


OF_TYPE = {
    int: st.integers(-1, 2**40),
    float: finite,
    str: st.text(max_size=40),
    bool: st.booleans(),
    Any: plain,
    float | None: st.none() | finite,
    list[int]: st.lists(st.integers(0, 2**40), max_size=4),
    dict[str, Any]: by_name(plain),
    dict[str, int]: by_name(st.integers(0, 2**40)),
    dict[str, float]: by_name(finite),
}
