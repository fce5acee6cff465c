"""Searches from Python that begin with their likely values, and resumes of runs that did not."""

import pytest

import nnlo_opt
from nnlo_opt import Integer, Real, load_run
from nnlo_opt.core.base.errors import SearchWarning
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from tests.helpers.stories import write_journal

SPACE = {"lr": Real(1e-4, 1.0, "log-uniform", likely=0.01), "n": Integer(1, 64)}


def objective(lr, n):
    return (lr - 0.02) ** 2 + n / 100


def origins(result):
    return [trial.origin for trial in result.trials]


def search(n_trials, **more):
    return nnlo_opt.optimize(objective, SPACE, num_iterations=n_trials, progress=False, **more)


def of_the_version_before(run, other):
    """Write the journal of `run` to the folder `other` as the version before wrote it."""
    events = read_events((run / JOURNAL_NAME).read_bytes(), "journal")[0]
    identity = {key: value for key, value in events[0].identity.items() if key != "likely_first"}
    other.mkdir()
    write_journal(other, [events[0].replaced(identity=identity), *events[1:]])


def test_a_new_search_tries_the_likely_values_first():
    result = search(4)
    assert origins(result) == ["likely values", "", "", ""]
    assert result.trials[0].parameters["lr"] == 0.01
    assert len({trial.parameters["n"] for trial in result.trials}) > 1


def test_start_points_and_likely_values_are_named_in_the_run(tmp_path, printed):
    search(3, start_point=[{"lr": 0.5}], checkpoint=tmp_path / "run")
    assert origins(load_run(tmp_path / "run")) == ["start point", "likely values", ""]
    assert "Trial 1: complete (likely values)" in printed("show", tmp_path / "run", "--trial", 1)


def test_a_grid_has_no_point_of_likely_values():
    space = {"lr": Real(0.0, 1.0, likely=0.3), "n": Integer(1, 2)}
    result = nnlo_opt.optimize(objective, space, hyper_opt="grid", grid_points=3, progress=False)
    assert origins(result) == [""] * 6
    assert 0.3 not in {trial.parameters["lr"] for trial in result.trials}


def test_a_run_that_began_as_a_grid_stays_without_it(tmp_path):
    run = {"checkpoint": tmp_path / "run"}
    search(2, hyper_opt="grid", **run)
    with pytest.warns(SearchWarning, match="was grid and is now random"):
        assert origins(search(4, hyper_opt="random", opt_restore=True, **run)) == [""] * 4


def test_a_resumed_run_has_its_likely_point_once(tmp_path):
    run = {"checkpoint": tmp_path / "run"}
    search(1, start_point=[{"n": 3}], **run)
    assert origins(search(4, start_point=[{"n": 3}], opt_restore=True, **run)) == [
        "start point",
        "likely values",
        "",
        "",
    ]
    assert origins(search(6, start_point=[{"n": 3}], opt_restore=True, **run))[4:] == ["", ""]


def test_a_run_of_the_version_before_gets_no_likely_point(tmp_path):
    search(1, start_point=[{"n": 3}], checkpoint=tmp_path / "run")
    of_the_version_before(tmp_path / "run", tmp_path / "old")
    result = search(4, start_point=[{"n": 3}], checkpoint=tmp_path / "old", opt_restore=True)
    assert origins(result) == ["start point", "", "", ""]


def test_a_warm_start_leaves_the_likely_values_to_be_tried_once(tmp_path):
    first = search(3)
    assert origins(search(3, warm_start=first)) == ["", "", ""], "they were measured by the first search"
    other = nnlo_opt.optimize(objective, {"lr": Real(0.1, 1.0), "n": Integer(1, 64)}, num_iterations=3, progress=False)
    assert origins(search(3, warm_start=other)) == ["likely values", "", ""]


def test_likely_values_that_the_constraint_refuses_are_named_in_a_warning():
    with pytest.warns(SearchWarning, match="likely values are not tried together"):
        result = search(3, feasible=lambda p: p["lr"] > 0.05)
    assert origins(result) == ["", "", ""]


def test_a_study_and_an_algorithm_of_a_user_begin_with_the_likely_values():
    class Sweep:
        def suggest(self, history):
            return history.space.from_unit([0.1 * history.n_suggested, 0.5])

    with nnlo_opt.Study(SPACE, num_iterations=3, hyper_opt=Sweep()) as study:
        for trial in study:
            study.tell(trial, objective(**trial.parameters))
    assert [t.parameters["lr"] == 0.01 for t in study.result.trials] == [True, False, False]
