"""Causes of failures: what counts as the same one, and which trials share it."""

import pytest

from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Failure, cause_of, failures
from tests.helpers.stories import SEARCH, failed, trial


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("`get_model` failed at {'n': 4}, line 12, ValueError: -4.5e3 is bad.", "{'n': 8, 'a': 1}, line 12, ", True),
        ("ValueError: no relu layer at 0x7f3a", "ValueError: no gelu layer at 0x7f3b2", True),
        ("the loss is nan", "the loss is -inf", True),
        ("ValueError: bad (`m.py`, line 12)", "ValueError: bad (`m.py`, line 13)", False),
        ("fold 1: KeyError: 'a'", "fold 0: KeyError: 'b'", False),
    ],
)
def test_failures_have_the_same_cause_if_only_points_and_numbers_differ(one, other, is_same):
    if "at {" in one:
        other = f"`get_model` failed at {other}ValueError: 7 is bad."
    causes = cause_of(one, {"kind": "relu", "n": 4}), cause_of(other, {"kind": "gelu"})
    assert (causes[0] == causes[1]) == is_same


def test_trials_of_the_same_cause_are_told_together_and_the_most_frequent_cause_first():
    ledger, on_rank = Ledger(), "ValueError: x = {} is bad; traceback in `logs/rank-0000{}.log`"
    reasons = ["no memory", on_rank.format(0.5, 1), on_rank.format(-2, 3)]
    for event in [SEARCH, *trial(0), *(event for n, reason in enumerate(reasons, 1) for event in failed(n, reason))]:
        ledger.apply(event)
    assert failures(ledger.trials) == [Failure(reasons[1], [2, 3]), Failure("no memory", [1])]
