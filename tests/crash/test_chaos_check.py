"""The judge of benchmarks/resilience/chaos.py finds what it is there to find."""

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "resilience"))

import chaos_check as check

UNIX_0 = 1000.0
REFERENCE = {str(n): {"point": {"x": n}, "figure": n / 2, "n_ranks": 2} for n in range(2)}


def assigned(assignment, trial, at_s, n_ranks=2):
    place = {"trial": trial, "fold": 0, "n_ranks": n_ranks, "block": 1}
    return {"event": "FoldAssigned", "time_s": at_s, "assignment": assignment, **place}


def trial(number, at_s, assignment):
    return [
        {"event": "TrialSuggested", "time_s": at_s, "trial": number, "point": {"x": number}},
        assigned(assignment, number, at_s),
        {"event": "FoldBegan", "time_s": at_s + 0.1, "assignment": assignment},
        {"event": "AssignmentFinished", "time_s": at_s + 1, "assignment": assignment},
        {"event": "TrialCompleted", "time_s": at_s + 1, "trial": number, "figure_of_merit": number / 2},
    ]


def evaluation(number, began_s, ended_s):
    times = {"began_unix_s": UNIX_0 + began_s, "ended_unix_s": UNIX_0 + ended_s}
    return {"point": {"x": number}, "value": number / 2, **times}


@pytest.fixture
def run():
    """Events and evaluations of a sound run of two trials."""
    start = {"event": "RunStarted", "time_s": 0.0, "unix_s": UNIX_0}
    end = {"event": "RunCompleted", "time_s": 5.0}
    events = [start, *trial(0, 1.0, 0), *trial(1, 3.0, 1), end]
    return events, [evaluation(0, 1.1, 1.9), evaluation(1, 3.1, 3.9)]


def problems(events, evaluations):
    found = check.check(events, evaluations, REFERENCE, 2)
    return {name: len(getattr(found, name)) for name in ("lost", "twice", "wrong") if getattr(found, name)}


def without(events, name, number=0):
    nth = [i for i, event in enumerate(events) if event["event"] == name][number]
    return events[:nth] + events[nth + 1 :]


def test_a_sound_run_is_sound_and_is_what_it_is_compared_with(run):
    assert problems(*run) == {}
    assert check.check(*run, REFERENCE, 2).n_compared == 2
    assert check.outcomes(run[0]) == REFERENCE


def test_a_trial_without_a_result_or_that_failed_is_lost(run):
    events, evaluations = run
    assert problems(without(events, "TrialCompleted"), evaluations) == {"lost": 1}
    failed = [*without(events, "TrialCompleted"), {"event": "TrialFailed", "time_s": 2.0, "trial": 0, "reason": "why"}]
    assert problems(failed, evaluations) == {"lost": 1}
    killed = [{"event": "AssignmentLost", "time_s": 2.0, "assignment": 0}] * check.MAX_ATTEMPTS
    found = check.check([*failed, *killed], evaluations, REFERENCE, 2)
    assert (found.lost, found.n_given_up) == ([], 1)
    outlived = {"event": "RanksLost", "time_s": 2.0, "assignment": 0, "ranks": [2], "counts": True}
    found = check.check([*failed, *killed[1:], outlived], evaluations, REFERENCE, 2)
    assert (found.lost, found.n_given_up) == ([], 1)
    found = check.check([*failed, *killed[1:], outlived | {"counts": False}], evaluations, REFERENCE, 2)
    assert (len(found.lost), found.n_given_up) == (1, 0)


def test_an_evaluation_that_the_journal_knows_nothing_of_is_lost(run):
    events, evaluations = run
    assert problems(events, [*evaluations, evaluation(7, 1.0, 2.0)]) == {"lost": 1}


def test_what_is_executed_after_it_was_complete_or_recorded_again_is_twice(run):
    events, evaluations = run
    assert problems(events, [*evaluations, evaluation(0, 2.5, 3.0)]) == {"twice": 1}
    assert problems([*events, events[5]], evaluations) == {"twice": 1}
    assert problems([*events, events[4]], evaluations) == {"twice": 1}


def test_an_evaluation_repeated_before_its_end_was_in_the_journal_is_counted_only(run):
    events, evaluations = run
    found = check.check(events, [evaluation(0, 0.2, 0.9), *evaluations], REFERENCE, 2)
    assert (found.twice, found.n_repeated, found.n_at_once) == ([], 1, 0)
    found = check.check(events, [evaluation(0, 0.2, 1.5), *evaluations], REFERENCE, 2)
    assert found.n_at_once == 1


def test_a_figure_that_was_not_returned_or_differs_undisturbed_is_wrong(run):
    events, evaluations = run
    assert problems(events, evaluations[1:]) == {"wrong": 1}
    other = copy.deepcopy(events)
    other[5]["figure_of_merit"] = 0.25
    assert problems(other, evaluations) == {"wrong": 2}  # not what was returned, and not what it is undisturbed
    other = copy.deepcopy(events)
    other[1]["point"]["x"] = 9
    assert "wrong" in problems(other, evaluations)


def test_a_trial_of_another_number_of_ranks_is_not_compared(run):
    events, evaluations = run
    reference = {**REFERENCE, "0": {**REFERENCE["0"], "n_ranks": 3, "figure": 9.0}}
    found = check.check(events, evaluations, reference, 2)
    assert (found.wrong, found.n_compared) == ([], 1)
    reference["0"]["n_ranks"] = None
    assert len(check.check(events, evaluations, reference, 2).wrong) == 1


def test_a_journal_that_no_longer_has_what_it_had_has_changed():
    assert check.changed([b"a\nb\nto", b""], b"a\nb\nc\n") == []
    assert len(check.changed([b"a\nx\n"], b"a\nb\nc\n")) == 1


def test_a_recovery_is_measured_from_the_blow_to_the_next_attempt(run):
    events, _ = run
    # Struck in trial 1; attempted again in the same start, then instead after a new one.
    lost = {"event": "AssignmentLost", "time_s": 3.6, "assignment": 1}
    again = [assigned(2, 1, 3.7, n_ranks=1), {"event": "FoldBegan", "time_s": 4.5, "assignment": 2}]
    struck = [*events[:9], lost, *again]
    assert check.recovery_s(struck, UNIX_0 + 3.5, [1]) == (pytest.approx(1.0), True)
    assert check.recovery_s(struck, UNIX_0 + 3.5, [2]) is None
    restarted = [*events[:9], {"event": "RunStarted", "time_s": 3.6, "unix_s": UNIX_0 + 3.6}, lost, *again]
    assert check.recovery_s(restarted, UNIX_0 + 3.5, [1]) == (pytest.approx(1.0), False)
    assert check.recovery_s(events, UNIX_0 + 2.5, [1]) is None
    # It goes on with the ranks that are left, and is heard of again; what is said before they have met is late.
    died = {"event": "RanksLost", "time_s": 3.6, "assignment": 1, "ranks": [2]}
    epochs = [{"event": "EpochEnded", "time_s": time_s, "assignment": 1, "epoch": 1} for time_s in (3.55, 4.0)]
    outlived = [*events[:9], epochs[0], died, epochs[1]]
    assert check.recovery_s(outlived, UNIX_0 + 3.5, [1]) == (pytest.approx(0.5), True)
    assert check.recovery_s([*events[:9], died, lost, epochs[1]], UNIX_0 + 3.5, [1]) is None
