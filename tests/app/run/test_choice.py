"""What `--hyper-opt auto` stands for, by what the trials can do and by what the user has given."""

import pytest

from nnlo_opt.app.run.options.choice import Choice, chosen, resumed, with_choice, without_effect
from nnlo_opt.app.run.options.making import optimization_options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.trials.identity import StartSettings
from nnlo_opt.space import Integer, Real, Space
from tests.helpers.refusals import check_refused

SPACE = Space([Real(0, 1, name="x")])


def options(*, auto=True, **given):
    return optimization_options({"model": "mnist", "epochs": 9} | ({"hyper_opt": "auto"} if auto else {}) | given)


def model(**more):
    return Findings(
        **{"model": "net", "kind": "model", "source": "", "sha256": "", "space": SPACE, "figure": "e"} | more
    )


def objective(**more):
    return model(kind="objective", figure="value", **more)


@pytest.mark.parametrize(
    ("findings", "given", "because"),
    [
        (model(), {}, "trials report up to 9 epochs and can be paused"),
        (model(), {"pruner_max_epochs": 27}, "up to 27 epochs"),
        (objective(pauses=True), {"pruner_max_epochs": 27}, "up to 27 epochs"),
        (model(), {"objective": ["val_loss:min"]}, "up to 9 epochs"),
        (model(space=Space([Integer(1, 9, name="train.epochs")])), {"pruner_max_epochs": 9}, "up to 9 epochs"),
    ],
)
def test_trials_that_report_epochs_and_can_be_paused_are_frozen_and_thawed(findings, given, because):
    choice = chosen(options(**given), findings)
    assert choice.algorithm == "freeze-thaw"
    assert because in choice.because


@pytest.mark.parametrize(
    ("findings", "given", "because"),
    [
        (objective(pauses=False), {"pruner_max_epochs": 9}, "without `checkpoint` cannot be paused"),
        (objective(pauses=True), {}, "not known without `--pruner-max-epochs`"),
        (model(space=Space([Integer(1, 9, name="train.epochs")])), {}, "not known without `--pruner-max-epochs`"),
        (model(), {"epochs": 1}, "one epoch"),
        (model(), {"objective": ["val_loss:min", "n_weights:min"]}, "2 objectives"),
        (model(), {"objective": ["n_weights:min"]}, "n_weights is not measured after every epoch"),
        (model(figure="loss"), {}, "no validation data"),
        (model(), {"pruner": "asha"}, "`--pruner asha` is given"),
        (model(), {"pruner": "median", "pruner_min_trials": 2}, "`--pruner median` is given"),
    ],
)
def test_all_other_trials_are_whole_ones(findings, given, because):
    choice = chosen(options(**given), findings)
    assert choice.algorithm == "bayesian"
    assert because in choice.because


def test_a_given_pruner_stays_and_that_of_freeze_thaw_goes_with_it():
    bayesian = Choice(algorithm="bayesian", because="so")
    assert with_choice(options(pruner="asha"), bayesian).plan.pruning.name == "asha"
    assert with_choice(options(), bayesian).plan.pruning is None
    frozen = with_choice(options(), Choice(algorithm="freeze-thaw", because="so"))
    plain = optimization_options({"model": "mnist", "epochs": 9, "hyper_opt": "freeze-thaw"})
    assert frozen.plan == plain.plan
    assert frozen.search == plain.search


def test_no_pruner_is_a_choice_of_the_user_as_well():
    given = options(pruner="none")
    assert (given.search.algorithm, given.plan.pruning) == ("bayesian", None)
    assert given.hyper_opt_because == "`--pruner none` is given"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"pruner_eta": 3},
            "`--pruner-eta` is for `--pruner asha` or `--pruner hyperband`. Received: `--hyper-opt auto`",
        ),
        ({"pruner": "median", "pruner_max_epochs": 9}, "`--pruner-max-epochs` is for"),
        (
            {"surrogate": "et"},
            "`--surrogate` is an option of `--hyper-opt bayesian-skopt`. Received: `--hyper-opt auto`",
        ),
        ({"grid_points": 3}, "`--grid-points` is an option of `--hyper-opt grid`"),
        ({"pruner": "asha", "objective": ["val_loss:min", "n_weights:min"]}, "2 objectives"),
    ],
)
def test_wrong_combinations_are_refused(given, words):
    check_refused(words, options, **given)


def test_options_of_freeze_thaw_that_change_nothing_are_named():
    given = options(pruner_max_epochs=9, pruner_min_epochs=2)
    assert "`--pruner-max-epochs`, `--pruner-min-epochs`" in without_effect(
        given, chosen(given, objective(pauses=False))
    )
    assert not without_effect(given, chosen(given, objective(pauses=True)))
    assert not without_effect(options(), chosen(options(), objective(pauses=False)))


@pytest.mark.parametrize("name", ["bayesian", "freeze-thaw", "random"])
def test_a_resumed_run_goes_on_with_what_it_has(name):
    choice = resumed(StartSettings.of({"hyper_opt": name, "hyper_opt_because": "it can"}))
    assert (choice.algorithm, choice.because) == (name, "it can")


@pytest.mark.parametrize("name", ["grid", "mine.py:Sweep (0123456789ab)", ""])
def test_a_run_whose_algorithm_needs_more_than_a_name_is_not_resumed_by_auto(name):
    check_refused("Name it by `--hyper-opt`", resumed, StartSettings.of({"hyper_opt": name}))
