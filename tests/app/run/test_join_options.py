"""`--join` on the command line, and what it excludes."""

import pytest

from nnlo_opt import optimize
from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.space import Real
from tests.helpers.shared_run import shared_run

DRIVER = ["--model", "objective.py", "--checkpoint", "big"]


def objective(parameters):
    return parameters["x"]


def options_of(*words, driver="OptimizationDriver"):
    return driver_options(driver, [*DRIVER, *words])


def test_the_time_of_silence_is_two_minutes_unless_given():
    assert options_of("--join").join_s == 120.0
    assert options_of("--join", "30s").join_s == 30.0
    assert options_of().join_s is None
    assert not options_of().joins


def test_a_run_that_jobs_join_is_resumed_by_the_same_command():
    assert options_of("--join").run.restore
    assert options_of("--join").run.resuming(["--join"]) == ["--join"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--join", "--overwrite"], "`--overwrite` replaces a run, on which other jobs of `--join` may be working"),
        (["--join", "3"], "`--join` must be a time of at least 5 s"),
    ],
)
def test_what_cannot_be_joined_is_refused(words, says):
    with pytest.raises(ConfigurationError, match=says):
        options_of(*words)


def test_a_run_without_a_name_cannot_be_joined():
    with pytest.raises(ConfigurationError, match="Received: no name"):
        driver_options("OptimizationDriver", ["--model", "objective.py", "--join"])


def test_a_training_has_no_jobs_that_join():
    with pytest.raises(ConfigurationError, match="--join"):
        options_of("--join", driver="TrainingDriver")


def test_a_script_cannot_resume_a_run_that_jobs_have_shared(tmp_path):
    shared_run(run := tmp_path / "run")
    with pytest.raises(ConfigurationError, match="by `--join` on the command line"):
        optimize(objective, space=[Real(0.0, 1.0, name="x")], num_iterations=2, checkpoint=run, opt_restore=True)
