"""Suggestions are those of an earlier commit, to the last bit.

Bits depend on the machine and on the versions of its libraries, so this is for whoever makes the search faster:
elsewhere record the suggestions of the commit before first (`tests.helpers.suggested`).
"""

import json
from pathlib import Path

import pytest

from tests.helpers import suggested

RECORDED = json.loads((Path(__file__).parents[2] / "golden" / "suggestions.json").read_text())


@pytest.mark.many
@pytest.mark.parametrize("case", suggested.CASES)
def test_suggestions_are_those_recorded(case):
    if suggested.machine() != RECORDED["machine"]:
        pytest.skip("recorded with other libraries")
    assert suggested.digest(case) == RECORDED["suggestions"][case]
