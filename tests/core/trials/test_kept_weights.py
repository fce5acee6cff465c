from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.kept_weights import WeightKeeper, kept_trials
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import START, assigned, suggested, trial

FIGURES = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=9)


@given(FIGURES, st.integers(1, 4), st.sampled_from(["min", "max"]))
def test_no_trial_that_is_kept_in_the_end_was_removed_on_the_way(figures, n_best, direction):
    ledger, kept = Ledger([START.replaced(identity={"direction": direction})]), []
    for number, figure in enumerate(figures):
        for event in trial(number, figure):
            ledger.apply(event)
        kept.append(kept_trials(ledger, n_best))
    assert len(kept[-1]) == min(n_best, len(figures))
    assert ledger.best(direction).number in kept[-1]
    for number, so_far in enumerate(kept):
        assert not (kept[-1] & set(range(number + 1))) - so_far


def test_the_pareto_set_is_kept_besides_the_best():
    ledger = Ledger([START.replaced(identity={"objectives": ["val_loss:min", "n_weights:min"]})])
    for number, (loss, n_weights) in enumerate([(0.1, 9.0), (0.2, 5.0), (0.3, 1.0), (0.4, 6.0)]):
        *begin, completed = trial(number, loss)
        values = {"val_loss": loss, "n_weights": n_weights}
        for event in (*begin, completed.replaced(objectives=values, objectives_std=dict.fromkeys(values, 0.0))):
            ledger.apply(event)
    assert kept_trials(ledger, 1) == {0, 1, 2}


def test_weights_are_removed_once_and_only_of_trials_that_have_ended(tmp_path):
    *begin, finished, _ = trial(2, 0.9)
    failed = ev.TrialFailed(time_s=4.0, trial=2, reason="no")
    ledger = Ledger([START, *trial(0, 0.2), *trial(1, 0.1), *begin, finished, suggested(3), assigned(3, 3, 9.5)])
    files = [tmp_path / f"trials/{number:04d}/fold0/weights.npz" for number in range(3)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    keeper = WeightKeeper(tmp_path)
    assert [*map(str, keeper.surplus(ledger, 1))] == [*map(str, files[:1])]
    for event in (failed, suggested(4), assigned(4, 4, 5.0, block=2)):
        ledger.apply(event)
    assert [*map(str, keeper.surplus(ledger, 1))] == [*map(str, files[2:])]
    assert not [*keeper.surplus(ledger, 1)]


def test_weights_stay_until_the_search_has_seen_the_end_of_their_trial(tmp_path):
    worse = tmp_path / "trials/0001/fold0/weights.npz"
    worse.parent.mkdir(parents=True)
    worse.touch()
    ledger, keeper = Ledger([START, *trial(0, 0.1), *trial(1, 0.2)]), WeightKeeper(tmp_path)
    ledger.apply(suggested(2))
    assert not [*keeper.surplus(ledger, 1)], "this suggestion may have been made before the end of trial 1"
    for event in (assigned(2, 2, 5.0), suggested(3), assigned(3, 3, 5.0, block=2)):
        ledger.apply(event)
    assert [*map(str, keeper.surplus(ledger, 1))] == [str(worse)]


def test_the_weights_of_the_best_expected_trial_are_kept(tmp_path):
    ledger = Ledger([START, *trial(0, 0.1), *trial(1, 0.3), *trial(2, 0.2), ev.BestExpected(time_s=9.0, trial=1)])
    assert kept_trials(ledger, 1) == {0, 1}
    ledger.apply(ev.BestExpected(time_s=9.0, trial=2))
    assert kept_trials(ledger, 1) == {0, 2}
    ledger.apply(ev.BestExpected(time_s=9.0, trial=-1))
    assert kept_trials(ledger, 1) == {0}
