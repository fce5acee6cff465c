"""How often a property is tried."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine that stands still for a second is no fault of a test's.
settings.register_profile("all", settings.default, suppress_health_check=[HealthCheck.too_slow])
# `pytest --hypothesis-profile=some`, as `make test` has it: a tenth of all examples, which .ci/run tries.
settings.register_profile("some", settings.get_profile("all"), max_examples=10)
settings.load_profile("all")
_OF_ALL = 100


def examples(number: int) -> int:
    """Return the number of examples to try of a property that deserves `number` of them."""
    return max(number * settings.default.max_examples // _OF_ALL, 5)


def some_of(cases: Sequence[Any], number: int = 1) -> list[Any]:
    """Return cases of a `parametrize`, the first `number` of them for `make test`, the further ones as proofs."""
    further = [case if isinstance(case, tuple) else (case,) for case in cases[number:]]
    return [*cases[:number], *(pytest.param(*case, marks=pytest.mark.proof) for case in further)]
