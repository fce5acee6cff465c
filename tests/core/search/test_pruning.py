from functools import partial

import pytest

from nnlo_opt.core.search.curves import Curve, Reports
from nnlo_opt.core.search.pruners import Brackets, MedianStopping, SuccessiveHalving, describe, make_pruner
from nnlo_opt.core.search.pruning import Decision, Pruner, PruningPlan, Verdict
from nnlo_opt.testing.pruner_conformance import N_EPOCHS, PrunerConformance


class TestMedian(PrunerConformance):
    make = staticmethod(partial(make_pruner, PruningPlan(name="median", max_epochs=N_EPOCHS)))


class TestAsha(PrunerConformance):
    make = staticmethod(partial(make_pruner, PruningPlan(name="asha", max_epochs=N_EPOCHS)))


class TestAshaThatStops(PrunerConformance):
    make = staticmethod(partial(make_pruner, PruningPlan(name="asha", pauses=False)))


class TestHyperband(PrunerConformance):
    make = staticmethod(partial(make_pruner, PruningPlan(name="hyperband", max_epochs=N_EPOCHS)))


class TestFreezeThaw(PrunerConformance):
    make = staticmethod(partial(make_pruner, PruningPlan(name="freeze-thaw", min_epochs=0, max_epochs=N_EPOCHS)))


class Late(Pruner):
    """Ends few trials, just before their end."""

    def decide(self, trial, fold, epoch, reports):
        others = [reports.curve(other, fold).value_at(epoch) for other in range(trial)]
        known = sorted(value for value in others if value is not None)
        curve = reports.curve(trial, fold)
        assert (curve.epochs[-1], curve.values[-1]) == [*curve][-1] == (epoch, curve.last)
        is_bad = epoch == N_EPOCHS - 1 and len(known) > 3 and curve.last > known[len(known) // 2]
        return Decision(Verdict.PRUNE, reason="worse") if is_bad else Decision(Verdict.GO_ON)


class TestLate(PrunerConformance):
    make = Late
    saves_much = False


def at_epoch(values, epoch=1, **kwargs):
    """Reports of trials 0, 1, … that all have these values at `epoch`."""
    reports = Reports(**kwargs)
    for trial, value in enumerate(values):
        reports.add(trial, 0, epoch, value)
    return reports


# ---------------------------------------------------------------- curves


def test_a_curve_knows_means_and_bests_and_keeps_the_first_word():
    curve = Curve()
    for epoch, value in ((1, 4.0), (2, 1.0), (3, 4.0), (3, -9.0), (2, -9.0)):
        curve.add(epoch, value)
    assert [curve.mean_until(e) for e in range(5)] == [None, 4.0, 2.5, 3.0, 3.0]
    assert [curve.best_until(e) for e in range(5)] == [None, 4.0, 1.0, 1.0, 1.0]
    assert [curve.value_at(e) for e in (1, 3, 4)] == [4.0, 4.0, None]
    assert (curve.last, curve.last_epoch, curve.epoch_before(3)) == (4.0, 3, 2)
    curve.final = 2.0
    assert (curve.value_at(4), curve.last, curve.reached(99)) == (2.0, 2.0, True)


def test_reports_at_some_epochs_only_count_for_those_between():
    curve = Curve()
    curve.add(5, 1.0)
    assert curve.value_at(3) == 1.0
    assert curve.value_at(6) is None


# ---------------------------------------------------------------- median


def test_the_median_rule_compares_the_best_with_means_up_to_the_same_epoch():
    reports = Reports()
    # running means after two epochs: 2, 3, 4; what comes later does not count
    for trial, values in enumerate([(1, 3, -100), (2, 4, -100), (4, 4, 100)]):
        for epoch, value in enumerate(values, 1):
            reports.add(trial, 0, epoch, float(value))
    pruner = MedianStopping(min_epochs=1, min_trials=3)
    for trial, value, verdict in ((3, 3.0, Verdict.GO_ON), (4, 3.1, Verdict.PRUNE)):
        alone = Reports()
        alone._curves = {t: reports._curves[t] for t in (0, 1, 2)}
        alone.add(trial, 0, 1, 9.0)
        alone.add(trial, 0, 2, value)
        assert pruner.decide(trial, 0, 2, alone).verdict is verdict
    assert "best 3.1 up to epoch 2; the median of 3 other trials is 3" in pruner.decide(4, 0, 2, alone).reason


@pytest.mark.parametrize(("min_epochs", "min_trials", "pruned"), [(1, 3, True), (2, 3, False), (1, 4, False)])
def test_the_median_rule_waits_for_its_warm_up_and_for_enough_trials(min_epochs, min_trials, pruned):
    reports = at_epoch([1.0, 1.0, 1.0, 5.0])
    decision = MedianStopping(min_epochs, min_trials).decide(3, 0, 1, reports)
    assert (decision.verdict is Verdict.PRUNE) == pruned


def test_the_median_rule_compares_the_same_fold():
    reports = Reports(n_fold=2)
    for trial in range(4):
        reports.add(trial, 0, 1, 1.0)
        reports.add(trial, 1, 1, 10.0)
    reports.add(4, 0, 1, 5.0)
    reports.add(5, 1, 1, 5.0)
    pruner = MedianStopping(1, 4)
    assert pruner.decide(4, 0, 1, reports).verdict is Verdict.PRUNE
    assert pruner.decide(5, 1, 1, reports).verdict is Verdict.GO_ON


# ---------------------------------------------------------------- successive halving


def asha(**changes):
    return make_pruner(PruningPlan(**{"name": "asha", "eta": 3, "max_epochs": 27} | changes))


def test_rungs_are_powers_below_the_whole_training():
    assert Brackets.one(PruningPlan(name="asha", max_epochs=27)).epochs == ((1, 3, 9),)
    assert Brackets.one(PruningPlan(name="asha", max_epochs=26)).epochs == ((1, 3),)
    assert Brackets.one(PruningPlan(name="asha", max_epochs=20, min_epochs=5, eta=2)).epochs == ((5, 10),)
    assert asha().pause_epochs(0, Reports()) == (1, 3, 9)


def test_one_trial_in_eta_passes_a_rung():
    pruner, values = asha(), [0.5, 0.3, 0.4, 0.2, 0.6, 0.1]
    verdicts = [pruner.decide(n, 0, 1, at_epoch(values[: n + 1])) for n in range(6)]
    pause = Decision(Verdict.PAUSE, 0)
    # Of three the best is number 1, which waits; the sixth is the best of all and goes on at once.
    assert verdicts == [pause, pause, pause, Decision(Verdict.GO_ON, 1), pause, Decision(Verdict.GO_ON, 1)]
    assert pruner.promotion(at_epoch(values[:2])) is None
    assert pruner.promotion(at_epoch(values[:3])) == 1


def test_the_highest_rung_is_promoted_first_and_there_the_best():
    reports = at_epoch([0.9, 0.8, 0.7, 0.3, 0.2, 0.1, 0.15, 0.95, 0.96])
    for trial in (3, 4, 5):
        reports.promote(trial, 1)
        reports.add(trial, 0, 3, {3: 0.03, 4: 0.01, 5: 0.02}[trial])
    pruner = asha()
    assert pruner.promotion(reports) == 4
    reports.promote(4, 2)
    # At the first rung 5, 6 and 4 are the best three of nine, and 6 alone has not passed it.
    assert pruner.promotion(reports) == 6
    reports.promote(6, 1)
    assert pruner.promotion(reports) is None
    assert pruner.last_resort(reports) == 5


def test_equal_values_go_by_age():
    assert asha().promotion(at_epoch([0.5] * 3)) == 0


def test_folds_are_averaged_and_a_trial_waits_for_all_of_them():
    reports = Reports(n_fold=2)
    for trial, values in enumerate([(0.0, 1.0), (0.4, 0.4), (0.9, 0.9)]):
        for fold, value in enumerate(values):
            reports.add(trial, fold, 1, value)
    reports.add(3, 0, 1, -9.0)
    pruner = asha()
    assert pruner.decide(3, 0, 1, reports).verdict is Verdict.PAUSE
    assert pruner.promotion(reports) == 1  # 0.4 is less than 0.5


def test_a_fold_that_ended_early_counts_with_its_figure():
    reports = at_epoch([0.5, 0.6])
    reports.finish(2, 0, 0.1)
    reports.end(2)
    assert asha().promotion(reports) is None  # one of three passes, and that one has ended
    assert asha(eta=2).promotion(reports) is None
    reports.add(3, 0, 1, 0.7)
    assert asha(eta=2).promotion(reports) == 0


def test_where_trials_cannot_be_paused_they_are_stopped():
    pruner = asha(pauses=False, max_epochs=None)
    values = [0.5, 0.6, 0.4, 0.45]
    verdicts = [pruner.decide(n, 0, 1, at_epoch(values[: n + 1])).verdict for n in range(4)]
    assert verdicts == [Verdict.GO_ON, Verdict.PRUNE, Verdict.GO_ON, Verdict.PRUNE]
    assert pruner.pause_epochs(0, Reports()) == ()
    # A report that passes several rungs is judged at each.
    reports = at_epoch([0.1], epoch=3)
    reports.add(1, 0, 10, 0.2)
    decision = pruner.decide(1, 0, 10, reports)
    assert decision.verdict is Verdict.PRUNE
    assert decision.reason == "place 2 of 2 at epoch 1"


def test_a_rung_that_a_fold_has_passed_does_not_stop_it_later():
    reports = at_epoch([0.5, 0.1, 0.2])  # trial 0 came first, so it passed
    reports.add(0, 0, 2, 0.4)
    assert asha(pauses=False).decide(0, 0, 2, reports).verdict is Verdict.GO_ON


# ---------------------------------------------------------------- hyperband


def test_the_brackets_are_those_of_the_paper():
    """R = 81, eta = 3, table 1 of arXiv:1603.06560: 81, 34, 15, 8, 5 configurations."""
    brackets = Brackets.of_hyperband(PruningPlan(name="hyperband", max_epochs=81))
    assert brackets.epochs == ((1, 3, 9, 27), (3, 9, 27), (9, 27), (27,), ())
    assert [brackets.cycle.count(b) for b in range(5)] == [81, 34, 15, 8, 5]
    # However many have begun, every bracket has its share.
    for n in range(1, 144):
        for bracket, size in enumerate((81, 34, 15, 8, 5)):
            assert abs(brackets.cycle[:n].count(bracket) - n * size / 143) < 1.5


def test_a_trial_is_compared_in_its_own_bracket():
    brackets = Brackets(epochs=((1,), ()), cycle=(0, 1))
    pruner = SuccessiveHalving(brackets, 2)
    reports = at_epoch([0.5, 0.1, 0.6, 0.1])
    assert pruner.promotion(reports) == 0
    assert pruner.decide(1, 0, 1, reports) == Decision(Verdict.GO_ON, 0)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            {"name": "asha", "max_epochs": 9},
            "rungs after epochs 1, 3 of 9; one trial in 3 passes a rung; the others are",
        ),
        (
            {"name": "asha", "pauses": False},
            "epochs 1, 3, 9, 27, 81, 243, …; one trial in 3 passes a rung; the others end",
        ),
        ({"name": "hyperband", "max_epochs": 9}, "rungs after epochs 1, 3 | 3 | none of 9;"),
        (
            {"name": "freeze-thaw", "min_epochs": 0, "max_epochs": 52},
            "rungs after epochs 3, 5, 8, 13, 21, 33 of 52; the search chooses which paused trials to resume.",
        ),
        ({"name": "freeze-thaw", "max_epochs": 9, "pauses": False}, "; every trial is trained to its end, because an"),
        ({"name": "median"}, "from epoch 1 on, a trial ends if it is worse than the median of 4 or more other trials"),
    ],
    ids=str,
)
def test_the_rungs_of_a_pruner_are_said(plan, words):
    assert words in describe(PruningPlan(**plan))
