"""`hyper_opt="auto"` from Python and in simulations."""

import json

import pytest

import nnlo_opt
from nnlo_opt import Real, load_run
from nnlo_opt.core.base.errors import SearchWarning
from tests.helpers.refusals import check_refused

SPACE = {"x": Real(0, 1)}


def resumable(x, report, checkpoint):
    for epoch in range(checkpoint.epoch + 1, 10):
        checkpoint.save(epoch, lambda folder: (folder / "state").touch())
        if not report(epoch, (x - 0.3) ** 2 + 1 / epoch):
            break
    return (x - 0.3) ** 2 + 1 / 9


def whole(x):
    return (x - 0.3) ** 2


def search(objective, n_trials=6, **more):
    return nnlo_opt.optimize(objective, SPACE, hyper_opt="auto", num_iterations=n_trials, progress=False, **more)


def test_a_plain_objective_is_searched_by_bayesian():
    assert search(whole).hyper_opt == "bayesian (auto, because an objective without `checkpoint` cannot be paused)"


def test_an_objective_that_goes_on_where_it_was_is_searched_by_freeze_thaw(tmp_path):
    run = {"checkpoint": tmp_path / "run", "pruner_max_epochs": 9}
    result = search(resumable, 8, **run)
    assert result.hyper_opt == "freeze-thaw (auto, because trials report up to 9 epochs and can be paused)"
    assert {trial.state for trial in result.trials} >= {"complete", "pruned"}
    assert "Search: freeze-thaw (auto, because trials report" in result._repr_html_()
    assert search(resumable, 12, opt_restore=True, **run).hyper_opt == result.hyper_opt


def test_a_given_pruner_is_kept_beside_bayesian():
    result = search(resumable, 8, pruner="median", pruner_min_trials=2)
    assert result.hyper_opt == 'bayesian (auto, because `pruner="median"` is given)'
    assert "pruned" in {trial.state for trial in result.trials}


def test_a_resume_with_another_pruner_is_refused(tmp_path):
    run = {"checkpoint": tmp_path / "run"}
    search(resumable, 3, pruner_max_epochs=9, **run)
    check_refused("it was freeze-thaw, now asha", search, resumable, 4, pruner="asha", opt_restore=True, **run)


def test_options_that_the_choice_leaves_without_effect_are_named():
    with pytest.warns(SearchWarning, match="Without effect here: `pruner_max_epochs`"):
        search(whole, pruner_max_epochs=9)


def test_a_choice_stands_in_the_run_and_a_resume_keeps_it(tmp_path):
    run = {"checkpoint": tmp_path / "run"}
    search(whole, 3, **run)
    assert load_run(tmp_path / "run").hyper_opt.startswith("bayesian (auto, because")
    assert search(whole, 5, opt_restore=True, **run).hyper_opt.startswith(
        "bayesian (auto, because an objective without"
    )
    explicit = nnlo_opt.optimize(whole, SPACE, num_iterations=6, progress=False, opt_restore=True, **run)
    assert explicit.hyper_opt == "bayesian"


def test_a_resume_by_auto_keeps_what_a_user_has_named(tmp_path):
    run = {"checkpoint": tmp_path / "run", "progress": False}
    nnlo_opt.optimize(whole, SPACE, hyper_opt="random", num_iterations=2, **run)
    kept = nnlo_opt.optimize(whole, SPACE, hyper_opt="auto", num_iterations=4, opt_restore=True, **run)
    assert kept.hyper_opt == "random (auto, because the run has begun with it)"


@pytest.mark.parametrize(
    ("words", "algorithm"), [([], "bayesian"), (["--epochs", 9], "freeze-thaw"), (["--pruner", "asha"], "bayesian")]
)
def test_a_simulation_says_what_auto_is(words, algorithm, printed):
    common = ["--hyper-opt", "auto", "--objective", "branin", "--trials", 12, "--blocks", 2]
    text = printed("simulate", *common, *words, *(["--epochs", 9] if "--pruner" in words else []))
    assert text.startswith(f"`--hyper-opt auto` is {algorithm}, because ")
    assert f"{algorithm} search" in text
    settings = json.loads(
        printed("simulate", *common, *words, *(["--epochs", 9] if "--pruner" in words else []), "--json")
    )
    assert settings["hyper_opt"] == algorithm
