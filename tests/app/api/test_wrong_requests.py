"""Wrong requests from Python: each is refused in words of Python, before a trial begins, or warned of."""

import re

import pytest

import nnlo_opt
from nnlo_opt import Categorical, Integer, Real, Study, load_run
from nnlo_opt.app.api.arguments import SearchArguments
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.space import When
from tests.helpers.refusals import check_refused

SPACE = {"x": Real(0, 1)}
FEW = {"num_iterations": 3, "hyper_opt": "random"}
#: words that only somebody at a command line can act on; mpirun is how ranks of a script are started, too
FOREIGN = re.compile(r"--[a-z]|\boptions?\b|exit code|nnlo-opt enqueue|docs/|\.md\b")


def square(x):
    return x * x


def reports(x, report):
    report(1, x)
    return x


def searched(target=square, space=SPACE, **options):
    return nnlo_opt.optimize(target, space, **FEW | options)


#: argument -> values that are wrong for a search of an objective in one process
WRONG = {
    "train_data": ["nowhere", 3],
    "val_data": ["nowhere"],
    "features_name": [3],
    "loss": [3, "nope"],
    "backend": ["jax"],
    "class_weights": ["x"],
    "memory_limit": [-1, 5],
    "preload_data": [-1, 5],
    "cache_data": [3, "/nowhere/x"],
    "copy_command": ["cp"],
    "batch": [0, 7],
    "epochs": [0, 7],
    "mode": ["nope", "file.py:X"],
    "synchronous": [True, "yes"],
    "sync_every": [0, 7],
    "optimizer": ["adamw"],
    "optimizer_params": [3, {"a": 1}],
    "lr_schedule": ["x"],
    "early_stopping": ["x"],
    "n_processes": [0, 3],
    "n_masters": [0, 5],
    "staleness": ["x"],
    "momentum_correction": [True],
    "elastic_force": [-1],
    "gem_lr": [-1],
    "shuffle": ["x", False],
    "checkpoint": ["a/b:c", 3],
    "checkpoint_interval": [-1, 2],
    "max_attempts": [0],
    "seed": ["x", -1],
    "fix": [{"y": 1}, {"x": 9}, "x=1", 3],
    "hyper_opt": ["nope", 3],
    "surrogate": ["x", "gp"],
    "ga_populations": [0, 4],
    "grid_points": [3],
    "start_point": [{"y": 1}, {"x": 5}, "x", 3],
    "warm_start": ["nowhere", 3],
    "block_size": [0],
    "n_fold": [0, 3],
    "fold_by": ["x"],
    "opt_restore": [True],
    "pruner": ["nope", 3, "hyperband"],
    "pruner_eta": [1, 3],
    "pruner_min_epochs": [3],
    "fold_racing": [True],
    "objective": ["a:b:c", 3, {"a": "up"}],
    "outcome_constraint": ["x", 3],
    "figure_of_merit": ["file.py:f"],
    "objective_epoch": ["x", "best"],
    "direction": ["up"],
    "num_iterations": [-1, "x"],
    "timeout": [-1],
    "walltime": ["x"],
    "max_failures": [-1],
    "target_objective": ["x"],
    "n_parallel": [0, "x"],
    "callbacks": [3, "x", square],
    "comm": [3],
    "feasible": [3],
    "n_trials": [3],
    "validation_split": [0.1],
    "keep_weights": [3],
    "command": ["x"],
    "mirror": ["optuna"],
    "search_space": [3],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda given: repr(given).partition(" at 0x")[0][:40])
def test_a_wrong_argument_is_refused_in_words_of_python(tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        searched(**{name: value})
    assert not FOREIGN.search(str(refused.value)), str(refused.value)
    assert "Received" in str(refused.value)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of a run that is called `done`."""
    folder = tmp_path_factory.mktemp("kept")
    searched(checkpoint=folder / "checkpoints" / "done")
    return folder


@pytest.mark.parametrize(
    "request_",
    [
        lambda: searched(checkpoint="done"),
        lambda: searched(space={"x": Real(0, 2)}, checkpoint="done", opt_restore=True),
        lambda: searched(checkpoint="done", opt_restore=True, seed=5),
        lambda: searched(checkpoint="done", opt_restore=True, direction="max"),
        lambda: searched(checkpoint="done", opt_restore=True, pruner="asha"),
        lambda: searched(reports, checkpoint="done", opt_restore=True),
        lambda: searched(warm_start="done", direction="max"),
        lambda: Study(SPACE, checkpoint="done", **FEW),
        lambda: Study(SPACE, train_data="x", **FEW),
        lambda: Study(SPACE, catch=True, **FEW),
        lambda: Study(SPACE, n_fold=3, **FEW),
        lambda: searched(3),
        lambda: searched("nowhere.py"),
        lambda: searched(space=None),
        lambda: searched(space={"train.batch": Integer(1, 3)}),
        lambda: searched(space={"y": Categorical([1, 2]), "x": Real(0, 1, condition=When("y", 5))}),
        lambda: load_run(3),
        lambda: load_run("nope"),
        lambda: load_run("done").compare(3),
        lambda: load_run("done").trial(99),
        lambda: load_run("done").to_dataframe("x"),
        lambda: load_run("done").importance(),
        lambda: load_run("done").plot_parameter("y"),
        lambda: load_run("done").plot_pareto(objectives=["a"]),
        lambda: load_run("done").plot_history(by="x"),
        lambda: load_run("done").best_model(),
    ],
)
def test_a_wrong_request_is_refused_in_words_of_python(kept, monkeypatch, request_):
    monkeypatch.chdir(kept)
    with pytest.raises((ConfigurationError, TrialError)) as refused:
        request_()
    assert not FOREIGN.search(str(refused.value)), str(refused.value)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"cache_data": "/nowhere"}, "`cache_data`"),
        ({"memory_limit": 5}, "`memory_limit`"),
        ({"preload_data": 5}, "`preload_data`"),
        ({"shuffle": False}, "`shuffle=False`"),
    ],
)
def test_an_option_of_training_is_named_as_it_was_given(given, names):
    check_refused(f"Received: {names}; leave it out", searched, **given)


def test_an_argument_that_only_the_command_has_gets_no_guess():
    check_refused("`keep_weights`, which only the command OptimizationDriver has. `help(", searched, keep_weights=3)
    check_refused("`catch`, which is for `nnlo_opt.optimize`", Study, SPACE, catch=True)


def test_the_help_of_a_search_describes_every_argument_without_a_page():
    shown = nnlo_opt.optimize.__doc__.partition("Options:\n")[2]
    names = re.findall(r"^    (\w+): \w", shown, re.MULTILINE)
    assert names == [*SearchArguments.__annotations__]
    assert "--" not in shown


def broken(x):
    raise ValueError("broken")


def test_what_a_search_from_python_says_of_itself_is_in_words_of_python():
    with pytest.warns(nnlo_opt.SearchWarning, match="broken"):
        result = nnlo_opt.optimize(broken, SPACE, num_iterations=9, hyper_opt="random", catch=True, max_failures=2)
    assert result.ended_because.endswith("(`max_failures`)")
    early = nnlo_opt.optimize(square, SPACE, num_iterations=2, hyper_opt="auto", pruner="none")
    assert early.hyper_opt == 'bayesian (auto, because `pruner="none"` is given)'
