"""Hypothesis strategies for parameters of every kind and spaces with conditions."""

import json

from hypothesis import assume
from hypothesis import strategies as st

from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When
from tests.helpers.any_values import finite

priors = st.sampled_from(["uniform", "log-uniform"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | finite | st.text(max_size=3)
categories = st.lists(scalars | st.lists(scalars, max_size=2), min_size=2, max_size=5, unique_by=json.dumps)
shares = st.floats(0, 1)


@st.composite
def reals(draw):
    prior = draw(priors)
    least = 1e-300 if prior == "log-uniform" else -1e300
    low, high = sorted(draw(st.floats(least, 1e300)) for _ in range(2))
    assume(low < high)
    return Real(low, high, prior, name="x")


@st.composite
def integers(draw):
    prior = draw(priors)
    low, high = sorted(draw(st.integers(1 if prior == "log-uniform" else -(2**53), 2**53)) for _ in range(2))
    assume(low < high)
    return Integer(low, high, prior, name="n")


@st.composite
def grids(draw, name="x", condition=None):
    """A Real or an Integer with a step, and perhaps a likely value."""
    prior, n_steps = draw(priors), draw(st.integers(1, 12))
    if draw(st.booleans()):
        kind, step = Integer, draw(st.integers(1, 40))
        low = draw(st.integers(1 if prior == "log-uniform" else -100, 100))
    else:
        kind, step = Real, draw(st.integers(1, 400)) / draw(st.sampled_from([1, 10, 1000]))
        low = draw(st.integers(1 if prior == "log-uniform" else -100, 100)) / 10
    high = round(low + n_steps * step, 6)
    assume(low < high)
    plain = kind(low, high, prior, name=name, step=step, condition=condition)
    if draw(st.booleans()):
        return plain
    likely = plain.value_at(draw(st.integers(0, n_steps)))
    return kind(low, high, prior, name=name, step=step, likely=likely, condition=condition)


@st.composite
def likely_reals(draw, name="x", condition=None):
    prior = draw(priors)
    low = draw(st.floats(1e-6, 10)) if prior == "log-uniform" else draw(st.floats(-10, 10))
    high = low + draw(st.floats(1e-3, 100))
    likely = min(max(low + draw(shares) * (high - low), low), high)
    return Real(low, high, prior, name=name, likely=likely, condition=condition)


@st.composite
def choices(draw, name="x", condition=None):
    values = draw(categories)
    kind = draw(st.sampled_from([Categorical, Ordinal, Constant]))
    if kind is Constant:
        return Constant(values[0], name, condition=condition)
    if kind is Categorical:
        return Categorical(values, name, condition=condition)
    return Ordinal(values, name, likely=draw(st.sampled_from([None, *values])), condition=condition)


@st.composite
def spaces(draw, finite=False):
    """A space of several parameters, each perhaps under values of an earlier one, in any order."""
    parameters = []
    for i in range(draw(st.integers(1, 5))):
        parents = [p for p in parameters if p.n_values is not None]
        condition = None
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(parents))
            numbers = draw(st.sets(st.integers(0, parent.n_values - 1), min_size=1, max_size=3))
            condition = When(parent.name, *(parent.value_at(number) for number in sorted(numbers)))
        kinds = [grids, choices] if finite else [grids, choices, likely_reals]
        parameters.append(draw(draw(st.sampled_from(kinds))(name=f"p{i}", condition=condition)))
    return Space(draw(st.permutations(parameters)))


#: a parameter of any kind
parameters = reals() | integers() | grids() | likely_reals() | choices()
