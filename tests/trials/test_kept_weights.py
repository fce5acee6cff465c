from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.trials import events as ev
from nnlo_opt.trials.kept_weights import WeightKeeper, kept_trials
from nnlo_opt.trials.ledger import Ledger
from tests.helpers.stories import START, trial

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
    failed = ev.TrialFailed(time_s=9.0, trial=2, reason="no")
    ledger = Ledger([START, *trial(0, 0.2), *trial(1, 0.1), *begin, finished])
    files = [tmp_path / f"trials/{number:04d}/fold0/weights.npz" for number in range(3)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    keeper = WeightKeeper(tmp_path)
    assert [*map(str, keeper.surplus(ledger, 1))] == [*map(str, files[:1])]
    ledger.apply(failed)
    assert [*map(str, keeper.surplus(ledger, 1))] == [*map(str, files[2:])]
    assert not [*keeper.surplus(ledger, 1)]
