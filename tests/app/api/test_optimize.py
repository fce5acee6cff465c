"""Searches from Python in this process, without MPI; those of several ranks are in test_optimize_ranks.py."""

import dataclasses
import os
import re
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, get_type_hints

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt.app.api.arguments import Earlier, SearchArguments
from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.run.options.table import OPTIMIZATION_OPTIONS
from nnlo_opt.app.run.start.identity import refuse_run_of_script
from nnlo_opt.core.base.errors import TrialError, printable
from nnlo_opt.core.search.base import SearchAlgorithm
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.engine.objective import forked
from nnlo_opt.space import Integer, Real, Space
from tests.helpers.launcher import events_of, python
from tests.helpers.refusals import check_refused

SPACE = {"x": Real(-5, 5), "n": Integer(1, 4)}
#: the same, as a list has it
NAMED = [Real(-5, 5, name="x"), Integer(1, 4, name="n")]
FEW = {"num_iterations": 5, "hyper_opt": "random"}
EXAMPLE = Path(__file__).parents[3] / "examples" / "example_optimize.py"


def distance(parameters):
    return (parameters["x"] - 2) ** 2 + parameters["n"]


def near_but_large(parameters):
    return {"value": abs(parameters["x"]), "size": 10 * parameters["n"]}


def points(result):
    return [trial.parameters for trial in result.trials]


def test_the_arguments_are_the_options_of_the_table_with_their_types():
    types = {o.name: o.kind.type | None if o.default is None else o.kind.type for o in OPTIMIZATION_OPTIONS if o.python}
    types["shuffle"] = types.pop("no_shuffle")
    types["direction"] = Literal["min", "max", "minimize", "maximize"] | None
    types["mode"] |= str  # one's own, as FILE.py:CLASS
    types["backend"] |= str  # of an installed package
    types["hyper_opt"] |= str | SearchAlgorithm | type[SearchAlgorithm]  # or as an object, or its class
    types["pruner"] |= str | Pruner | type[Pruner]
    types["objective"] |= Mapping[str, str]
    types["warm_start"] = Earlier | Sequence[Earlier]  # or a result, or a data frame
    assert get_type_hints(SearchArguments) == types


def test_editors_see_every_name_of_the_package():
    stub = (Path(nnlo_opt.__file__).parent / "__init__.pyi").read_text().splitlines()
    assert {line.rpartition(" as ")[2] for line in stub if line.startswith("from ")} == set(nnlo_opt.__all__)
    assert all(name in dir(nnlo_opt) and getattr(nnlo_opt, name).__name__ == name for name in nnlo_opt.__all__)
    with pytest.raises(AttributeError):
        _ = nnlo_opt.MPISomething


def test_importing_the_package_imports_nothing_else(tmp_path):
    heavy = {"mpi4py", "keras", "h5py", "numpy"}
    assert said_by(f"import sys, nnlo_opt; print({heavy} & set(sys.modules))", folder=tmp_path) == "set()\n"


# ---------------------------------------------------------------- what is found


def test_a_search_finds_the_best_point(here, capfd):
    result = nnlo_opt.optimize(distance, SPACE, num_iterations=15)
    assert len(result.trials) == 15
    assert result.best_parameters == result.best.parameters
    assert result.figure_of_merit == min(trial.figure_of_merit for trial in result.trials) < 1.5
    assert result.directory is None
    assert result.ended_because == "all trials are done"
    best = f"best {result.figure_of_merit:.6g} at {result.best_parameters}"
    assert repr(result) == f"<SearchResult: 15 complete, {best}>"
    frame = result.to_dataframe()
    assert list(frame["p:n"]) == [trial.parameters["n"] for trial in result.trials]
    assert not list(here.iterdir())
    assert capfd.readouterr() == ("", "")


def test_every_suggestion_knows_the_values_of_all_trials_before_it():
    """A search of one trial at a time need not guess: it comes as near as its last points allow."""
    result = nnlo_opt.optimize(lambda p: (p["x"] - 2) ** 2, {"x": Real(-5, 5)}, num_iterations=20)
    assert result.figure_of_merit < 1e-4


def test_two_searches_one_after_another_are_equal_and_leave_the_process_as_it_was():
    def state():
        handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)]
        return handlers, dict(os.environ), sys.excepthook, os.getcwd(), threading.active_count(), sys.stdout

    before = state()
    first, second = (nnlo_opt.optimize(distance, SPACE, **FEW) for _ in range(2))
    assert state() == before
    assert points(first) == points(second)
    assert points(nnlo_opt.optimize(distance, SPACE, seed=1, **FEW)) != points(first)


def test_the_largest_value_and_several_objectives():
    for word in ("max", "maximize"):
        largest = nnlo_opt.optimize(distance, SPACE, direction=word, **FEW)
        assert largest.figure_of_merit == max(trial.figure_of_merit for trial in largest.trials)
    both = nnlo_opt.optimize(near_but_large, SPACE, objective=["value:min", "size:max"], **FEW)
    assert both.best in both.pareto
    assert set(both.best.objectives) == {"value", "size"}


def test_only_a_trial_that_keeps_the_outcome_constraints_is_the_best(here):
    bounds = ["size<25", "size>5"]
    result = nnlo_opt.optimize(near_but_large, SPACE, outcome_constraint=bounds, num_iterations=15, checkpoint="bound")
    feasible = [trial for trial in result.trials if trial.parameters["n"] < 3]
    assert [trial for trial in result.trials if trial.feasible] == feasible
    assert result.best.figure_of_merit == min(trial.figure_of_merit for trial in feasible)
    assert 0 < len(feasible) < 15
    assert f"15 complete ({15 - len(feasible)} infeasible), best " in repr(result)
    frame = result.to_dataframe()
    assert list(frame["feasible"]) == list(frame["m:size"] < 25)
    result.plot_history()
    places = [result.directory, result.directory / "results.csv"]
    warm = nnlo_opt.optimize(near_but_large, SPACE, outcome_constraint=bounds[::-1], warm_start=places, **FEW)
    assert [o["feasible"] for o in warm.ledger.adopted if "feasible" in o].count(False) == 2 * (15 - len(feasible))
    other = {"outcome_constraint": "size<20", "warm_start": places[0]}
    check_refused("with the same constraints", nnlo_opt.optimize, near_but_large, SPACE, **other, **FEW)


def test_the_search_learns_by_how_much_trials_keep_a_bound_and_a_resumed_one_suggests_the_same(here):
    def loss(w, b):
        return {"loss": 1 / w + 1 / b, "memory": w * b / 1000}

    space = {"w": Integer(1, 512), "b": Integer(1, 512)}
    bounded = {"objective": "loss:min", "outcome_constraint": "memory<=20", "num_iterations": 16}
    whole = nnlo_opt.optimize(loss, space, **bounded)
    assert sum(trial.feasible for trial in whole.trials[5:]) >= 8
    nnlo_opt.optimize(loss, space, checkpoint="parts", **bounded | {"num_iterations": 10})
    resumed = nnlo_opt.optimize(loss, space, checkpoint="parts", opt_restore=True, **bounded)
    assert points(resumed) == points(whole)


def test_where_no_trial_keeps_them_there_is_no_best():
    result = nnlo_opt.optimize(near_but_large, SPACE, outcome_constraint="size<0", **FEW)
    assert (result.best, result.trials[0].state) == (None, "complete")
    with pytest.raises(TrialError, match=r"The first reason: Of 5 complete trials, none keeps size<0\."):
        result.best_parameters  # noqa: B018
    with pytest.raises(TrialError, match="`weight`, as `objective` or `outcome_constraint` says; it returned value"):
        nnlo_opt.optimize(near_but_large, SPACE, outcome_constraint="weight<0", catch=False, **FEW)


def test_options_have_the_names_and_the_meaning_of_the_command_line():
    first = {"x": 1.5, "n": 3}
    result = nnlo_opt.optimize(distance, SPACE, fix={"n": 3}, start_point=[first], stop_after_no_improvement=2, **FEW)
    assert result.trials[0].parameters == first
    assert {trial.parameters["n"] for trial in result.trials} == {3}


@pytest.mark.parametrize(
    "space",
    [NAMED, {"x": NAMED[0], "n": Integer(1, 4)}, Space(NAMED), "space.py", Path("space.py")],
    ids=["list", "dict", "Space", "module", "path"],
)
def test_a_space_may_be_given_in_any_form(here, space):
    (here / "space.py").write_text(f"from nnlo_opt.space import *\nspace = {NAMED}\n")
    assert points(nnlo_opt.optimize(distance, space, **FEW)) == points(nnlo_opt.optimize(distance, SPACE, **FEW))


def test_an_objective_may_bring_its_space():
    def own(parameters):
        return parameters["x"]

    own.parameter_range = [Real(0, 1, name="x")]
    assert 0 <= nnlo_opt.optimize(own, **FEW).figure_of_merit <= 1


def test_an_objective_has_no_communicator_and_its_reports_are_epochs(tmp_path):
    def objective(parameters, comm, report):
        assert comm is None
        return float(report(1, 0.5) and report(2, 0.25))

    result = nnlo_opt.optimize(objective, SPACE, num_iterations=1, checkpoint=tmp_path / "run")
    assert result.figure_of_merit == 1.0
    assert (tmp_path / "run" / "journal.jsonl").read_text().count('"event":"EpochEnded"') == 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_trial_has_a_folder_of_its_own_that_lasts_as_long_as_its_run(tmp_path, keeps):
    folders = []

    def objective(x, trial, n):
        folders.append(trial.directory)
        (trial.directory / "mine").write_text(str(x))
        return x + n if trial.parameters == {"x": x, "n": n} else None

    options = {"checkpoint": tmp_path / "run"} if keeps else {}
    result = nnlo_opt.optimize(objective, SPACE, **FEW, **options)
    assert [trial.state for trial in result.trials] == ["complete"] * 5
    assert [folder.name for folder in folders] == [f"{number:04d}" for number in range(5)]
    assert [(folder / "mine").exists() for folder in folders] == [keeps] * 5


def test_a_constraint_is_a_function_of_the_script():
    space = Space([Real(0, 1, name="x")], constraint=lambda point: point["x"] > 0.5)
    assert all(point["x"] > 0.5 for point in points(nnlo_opt.optimize(lambda p: p["x"], space, **FEW)))


# ---------------------------------------------------------------- what fails


def test_an_objective_that_raises_fails_its_trial_with_the_reason():
    def raises(parameters):
        if parameters["x"] < 0:
            raise ValueError("x is negative")
        return parameters["x"]

    result = nnlo_opt.optimize(raises, SPACE, num_iterations=10, hyper_opt="random")
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert failed
    assert all("ValueError: x is negative" in trial.reason for trial in failed)
    assert result.figure_of_merit >= 0


def test_a_search_that_only_fails_stops_with_the_line_of_the_caller(capfd):
    options = {"num_iterations": 50, "hyper_opt": "random", "max_failures": 3}
    result = nnlo_opt.optimize(lambda p: 1 / 0, SPACE, catch=True, **options)
    with nnlo_opt.Study(SPACE, **options) as study:
        for trial in study:
            study.tell(trial, error=f"{trial.parameters['x']} is too large")
    for ended in (result, study.result):
        assert len(ended.trials) == 3
        assert ended.ended_because.endswith("none succeeded (`max_failures`)")
    assert re.fullmatch(r"ZeroDivisionError: .* \(`.*test_optimize\.py`, line \d+\)", result.trials[0].reason)
    assert capfd.readouterr() == ("", "")


def test_without_catch_the_exception_reaches_the_caller():
    calls = []

    def raises(parameters):
        calls.append(parameters)
        if len(calls) >= 3:
            raise ZeroDivisionError("too small")
        return 1.0

    with pytest.raises(ZeroDivisionError, match="too small"):
        nnlo_opt.optimize(raises, SPACE, catch=False, **FEW)
    assert len(calls) == 3
    result = nnlo_opt.optimize(raises, SPACE, catch=True, **FEW)
    assert result.best is None
    with pytest.raises(TrialError, match=r"No trial succeeded\. The first reason: .*ZeroDivisionError"):
        _ = result.best_parameters


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        (lambda: 1, {}, "must take `parameters`"),
        (lambda x, y: 1, {}, "must take `parameters`"),
        (3, {}, "takes a function, a module or a file. Received: 3"),
        ("no_such.py", {}, "no_such.py"),
        (distance, {"num_iterations": 0}, "`num_iterations` must be a whole number, at least 1. Received: 0."),
        (distance, {"shuffle": False}, "Received: `shuffle=False`"),
        (distance, {"shuffle": 3}, "`shuffle` must be True or False. Received: 3."),
        (distance, {"fix": {"n": 9}}, '`fix={"n": ...}` must give a value that the parameter can have'),
        (distance, {"surrogate": "gp"}, 'Received: `hyper_opt="bayesian"`; drop `surrogate`'),
        (distance, {"n_trials": 3}, "Received: `n_trials`, which is `num_iterations` here."),
        (distance, {"n_calls": 3}, "which is `num_iterations` here."),
        (distance, {"n_jobs": 3}, "which is `n_parallel` here."),
        (distance, {"sampler": 3}, "which is `hyper_opt` here."),
        (distance, {"storage": "sqlite:///a"}, "which is `checkpoint` here."),
        (distance, {"load_if_exists": True}, "which is `opt_restore` here."),
        (distance, {"n_iterations": 3}, "must be one of a search. Received: `n_iterations`"),
        (distance, {"num_iteration": 3}, "Did you mean `num_iterations`?"),
        (distance, {"hang_timeout": 3}, "Received: `hang_timeout`"),
        (distance, {"opt_restore": True}, "name it by `checkpoint`"),
        (distance, {"epochs": 3}, "Received: `epochs`"),
        (distance, {"n_fold": 3}, "3 folds for an objective without; add the argument"),
        (distance, {"space": None}, "A search needs a search space"),
        (distance, {"space": {}}, "at least one parameter"),
        (distance, {"space": {"x": 3}}, "Every value of a search space must be a parameter. Received: 3 for 'x'"),
        (distance, {"space": {"x": (-5, 5.5)}}, "Received: (-5, 5.5) for 'x'. Write it as `{'x': Real(-5, 5.5)}`"),
        (distance, {"space": {"x": ["a", 1]}}, "Write it as `{'x': Categorical(['a', 1])}`"),
        (distance, {"space": {"x": Real(0, 1, name="y")}}, "one name"),
        (distance, {"space": [Real(0, 1)]}, "must have a name"),
        (distance, {"space": {"train.batch": Integer(1, 2)}}, "train.batch"),
    ],
)
def test_a_wrong_request_is_refused_before_the_first_trial(target, arguments, words):
    tried = []
    given = {"space": SPACE, "callbacks": [lambda study, trial: tried.append(trial)], **arguments}
    check_refused(words, nnlo_opt.optimize, target, **given)
    assert not tried


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"num_iterations": None}, "so that the search has 10."), ({"block_size": 2}, "Received: 2 without `mpirun`")],
)
def test_an_argument_that_is_missing_or_idle_says_what_it_does_at_the_line_of_the_caller(arguments, words):
    with pytest.warns(nnlo_opt.SearchWarning, match=re.escape(words)) as said:
        nnlo_opt.optimize(distance, SPACE, **{**FEW, **arguments})
    assert [warning.filename for warning in said] == [__file__]


def test_trials_that_are_handed_out_change_neither_the_search_nor_with_it():
    with nnlo_opt.Study(SPACE, **FEW) as study:
        trial = study.ask()
        before = study.result.trials[0]
        before.parameters["x"] = None
        study.tell(trial, 1.0)
        assert (before.state, study.result.trials[0].state) == ("running", "complete")
    result = study.result
    assert result.best_parameters == trial.parameters
    assert result.trials[0] is result.trials[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.number = 3


def test_only_a_search_that_is_kept_has_a_best_model(tmp_path):
    check_refused('`checkpoint="mine"`', nnlo_opt.optimize(distance, SPACE, **FEW).best_model)
    kept = nnlo_opt.optimize(distance, SPACE, checkpoint=tmp_path / "run", **FEW)
    check_refused("must be defined in a file", kept.best_model)


# ---------------------------------------------------------------- what is seen while it runs


def test_callbacks_see_each_trial_and_steer_the_search():
    seen = []

    def callback(study, trial):
        seen.append((trial.number, trial.state.value, trial.parameters["n"]))
        if trial.number == 1:
            check_refused("Received: `y`, which is not a parameter", study.enqueue, {"y": 1})
            study.enqueue({"n": 1, "x": 0.5})
        if trial.number == 3:
            study.stop()

    result = nnlo_opt.optimize(distance, SPACE, num_iterations=9, hyper_opt="random", callbacks=[callback])
    assert [number for number, *_ in seen] == [0, 1, 2, 3]
    assert result.trials[2].parameters == {"x": 0.5, "n": 1}
    assert result.ended_because == "stopped by `study.stop()`"
    assert [trial.parameters["n"] for trial in result.trials] == [n for *_, n in seen]


def test_an_error_of_a_callback_ends_the_search():
    with pytest.raises(ZeroDivisionError):
        nnlo_opt.optimize(distance, SPACE, callbacks=[lambda study, trial: 1 / 0], **FEW)


@pytest.mark.parametrize("given", ["x", 3, None, ["x"], [("x", 1, 2)]])
def test_a_point_that_is_no_mapping_is_refused_with_the_form_that_it_must_have(given):
    study = nnlo_opt.Study(SPACE, num_iterations=1)
    with pytest.raises(nnlo_opt.ConfigurationError, match=r"Write it as `study.enqueue\({\"x\": ...}\)`") as refused:
        study.enqueue(given)
    assert repr(given) in str(refused.value)
    study.close()


@pytest.mark.parametrize("given", [[3], [["x=1"]], [{"x": 1}], [None]])
def test_a_fixed_value_that_is_no_text_is_refused(given):
    with pytest.raises(nnlo_opt.ConfigurationError, match="`fix` must be a mapping of names and values"):
        nnlo_opt.optimize(distance, SPACE, fix=given, **FEW)


def test_a_warning_holds_no_character_on_which_a_terminal_would_act():
    def objective(parameters):
        raise ValueError("\x1b[2J\x1b]0;title\x07 \x9b \u202e")

    with pytest.warns(nnlo_opt.SearchWarning) as said:
        nnlo_opt.optimize(objective, SPACE, catch=True, num_iterations=2, hyper_opt="random")
    text = warnings.formatwarning(said[0].message, said[0].category, said[0].filename, said[0].lineno)
    assert printable(text) == text
    assert "\\u001b[2J" in text


def test_a_study_is_stopped_and_takes_points():
    study = nnlo_opt.Study(SPACE, n_parallel=2, num_iterations=9, hyper_opt="random")
    study.ask()
    study.enqueue({"x": 0.5, "n": 2})
    assert study.ask().parameters == {"x": 0.5, "n": 2}
    study.stop()
    assert study.ask() is None
    assert study.result.ended_because == "stopped by `study.stop()`"


def test_the_first_failure_that_does_not_end_a_search_is_a_warning_at_the_line_of_the_caller():
    def fails(parameters):
        return parameters["x"] if parameters["x"] > 0 else 1 / 0

    with pytest.warns(nnlo_opt.SearchWarning, match="has failed, and the search continues: ZeroDivisionError") as said:
        result = nnlo_opt.optimize(fails, SPACE, num_iterations=12, hyper_opt="random")
    assert [warning.filename for warning in said] == [__file__]
    n_failed = sum(trial.state == "failed" for trial in result.trials)
    assert n_failed > 1
    assert repr(result).startswith(f"<SearchResult: {12 - n_failed} complete, {n_failed} failed, best ")
    page = result._repr_html_()
    assert "<b>SearchResult</b>" in page
    assert f"finished (all trials are done): {12 - n_failed} complete" in page
    assert "<img " in page


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_progress_is_shown_where_a_person_looks_or_where_it_is_asked_for(capsys, progress, shown):
    nnlo_opt.optimize(distance, SPACE, progress=progress, **FEW)
    assert ("5/5 trials | best " in capsys.readouterr().out) is shown


# ---------------------------------------------------------------- what is kept


def test_a_run_with_a_name_is_kept_and_resumed(here):
    first = nnlo_opt.optimize(distance, SPACE, checkpoint="mine", **FEW)
    assert first.directory == Path("checkpoints/mine")
    words, gone = "`warm_start` must name a run directory", {"warm_start": "nowhere", **FEW}
    check_refused(words, nnlo_opt.optimize, distance, SPACE, checkpoint="none", **gone)
    assert [path.name for path in Path("checkpoints").iterdir()] == ["mine"]
    assert (first.directory / "results.csv").is_file()
    check_refused("Resume it with `opt_restore=True`", nnlo_opt.optimize, distance, SPACE, checkpoint="mine", **FEW)
    check_refused(words, nnlo_opt.optimize, distance, SPACE, checkpoint="mine", overwrite=True, **gone)
    more = {**FEW, "num_iterations": 8}
    resumed = nnlo_opt.optimize(distance, SPACE, checkpoint="mine", opt_restore=True, **more)
    assert points(resumed)[:5] == points(first)
    assert len(resumed.trials) == 8
    check_refused("has changed", nnlo_opt.optimize, lambda p: 1.0, SPACE, checkpoint="mine", opt_restore=True, **more)
    assert len(nnlo_opt.optimize(distance, SPACE, checkpoint=here / "here", **FEW).trials) == 5
    assert (here / "here" / "journal.jsonl").is_file()


def test_a_lambda_is_the_same_while_its_code_is(tmp_path):
    for options in ({"num_iterations": 2}, {"num_iterations": 4, "opt_restore": True}):
        result = nnlo_opt.optimize(lambda p: p["x"], SPACE, checkpoint=tmp_path / "run", **options)
    assert len(result.trials) == 4


def refuse_early(directory, *arguments):
    """Do what OptimizationDriver does before it reads the model."""
    options = driver_options("OptimizationDriver", [*arguments, "--checkpoint", str(directory), "--opt-restore"])
    refuse_run_of_script(options.run)


def test_the_command_line_says_that_only_the_script_resumes_its_function(tmp_path):
    nnlo_opt.optimize(lambda p: p["x"], SPACE, checkpoint=tmp_path / "run", **FEW)
    any_file = str(tmp_path / "any.py")
    sentence = check_refused("`<lambda>` of the script", refuse_early, tmp_path / "run", "--model", any_file)
    assert "`opt_restore=True`" in sentence


def test_what_stands_in_a_module_is_the_same_run_for_the_command_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "objective_in_a_module.py"
    path.write_text("def objective(parameters):\n    return parameters['x']\n")
    import objective_in_a_module

    for number, target in enumerate((objective_in_a_module.objective, objective_in_a_module, str(path), path)):
        result = nnlo_opt.optimize(target, SPACE, checkpoint=tmp_path / f"run-{number}", **FEW)
        model = read_ledger(result.directory).identity.model
        sha256 = nnlo_opt.app.api.optimize.open_model(str(path)).sha256
        assert (model.name, model.source, model.sha256, model.function) == (path.stem, str(path), sha256, "")
        refuse_early(result.directory, "--model", str(path))


def test_a_module_that_searches_when_it_is_imported_is_refused(tmp_path):
    path = tmp_path / "searches.py"
    path.write_text(
        "import nnlo_opt\ndef objective(p):\n    return 1\n"
        "nnlo_opt.optimize(objective, {'x': nnlo_opt.Real(0, 1)}, num_iterations=1)\n"
    )
    check_refused("Put it under `if __name__ == '__main__':`", nnlo_opt.optimize, path, SPACE)


# ---------------------------------------------------------------- where it runs


def said_by(program: str, folder: Path) -> str:
    done = python(textwrap.dedent(program), cwd=folder).expect(0)
    assert done.err.replace("Writing report.html ...\n", "") == ""
    return done.out


def test_it_works_as_in_a_notebook(tmp_path):
    """An event loop runs, standard output is no file, `__main__` has none, and the function is not in any."""
    out = said_by(
        """
        import asyncio, io, sys

        class Cell(io.TextIOBase):
            def __init__(self):
                self.text = ""
            def write(self, text):
                self.text += text
                return len(text)

        terminal, sys.stdout = sys.stdout, Cell()
        assert not hasattr(sys.modules["__main__"], "__file__")

        async def cell():
            import nnlo_opt
            namespace = {"__name__": "__main__"}
            exec("def objective(p):\\n    return p['x'] ** 2", namespace)
            for _ in range(2):
                result = nnlo_opt.optimize(namespace["objective"], {"x": nnlo_opt.Real(-1, 1)}, num_iterations=3)
            with nnlo_opt.Study({"x": nnlo_opt.Real(-1, 1)}, num_iterations=3) as study:
                for trial in study:
                    study.tell(trial, trial.parameters["x"])
            return len(result.trials), len(study.result.trials), sorted({"mpi4py", "keras", "h5py"} & set(sys.modules))

        print(asyncio.run(cell()), file=terminal)
        """,
        folder=tmp_path,
    )
    assert out == "(3, 3, [])\n"
    assert not list(tmp_path.iterdir())


def test_the_example_runs_and_is_short(tmp_path):
    out = said_by(EXAMPLE.read_text(), folder=tmp_path)
    assert float(out.split()[0]) < 0.5
    assert len([line for line in EXAMPLE.read_text().splitlines() if line]) <= 12


# ---------------------------------------------------------------- ask and tell


def test_a_study_asks_and_is_told_until_it_is_over():
    with nnlo_opt.Study(SPACE, **FEW) as study:
        trials = []
        for trial in study:
            trials.append(trial.parameters)
            study.tell(trial, distance(trial.parameters))
        assert study.ask() is None
    assert trials == points(nnlo_opt.optimize(distance, SPACE, **FEW))
    assert study.result.figure_of_merit == min(map(distance, trials))
    assert study.result.ended_because == "all trials are done"


def test_a_study_gives_several_trials_at_a_time_and_takes_their_values_in_any_order():
    check_refused("`n_parallel` must be a whole number of trials, at least 1", nnlo_opt.Study, SPACE, n_parallel=0)
    study = nnlo_opt.Study(SPACE, n_parallel=3, num_iterations=4, hyper_opt="random")
    first, second, third = (study.ask() for _ in range(3))
    check_refused("At most `n_parallel`", study.ask)
    study.tell(second, 2.0)
    study.tell(first, error=ValueError("no luck"))
    fourth = study.ask()
    assert [trial.number for trial in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert study.ask() is None  # all trials have begun
    study.tell(fourth, float("nan"))
    study.tell(third, 3.0)
    states = {trial.number: (trial.state.value, trial.reason) for trial in study.result.trials}
    assert states[0] == ("failed", "ValueError: no luck")
    assert states[3][0] == "failed"
    assert "finite number" in states[3][1]
    assert study.result.figure_of_merit == 2.0
    check_refused("unfinished trial of this study", study.tell, third, 1.0)


def test_trials_of_a_study_that_was_left_are_asked_for_again(tmp_path):
    with nnlo_opt.Study(SPACE, checkpoint=tmp_path / "run", **FEW) as study:
        study.tell(study.ask(), 1.0)
        open_trial = study.ask()
    check_refused("unfinished trial of this study", study.tell, open_trial, 1.0)
    assert read_ledger(tmp_path / "run").preempted_because == "the study was closed"
    again = nnlo_opt.Study(SPACE, checkpoint=tmp_path / "run", opt_restore=True, **FEW)
    assert again.ask().parameters == open_trial.parameters
    assert again.result.directory == tmp_path / "run"
    again.close()
    check_refused("`nnlo_opt.Study` of the script", refuse_early, tmp_path / "run", "--model", "any.py")


#: forks a child in each of six trials, which ends in the way of the trial
FORKS = """
    import fcntl, os, sys, warnings
    import nnlo_opt
    from nnlo_opt.core.base.errors import ConfigurationError

    def refused(call, *arguments):
        try:
            call(*arguments)
        except ConfigurationError as error:
            sys.exit(40 + (f"forked from process {os.getppid()}" in str(error)))

    def raises():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        raise ValueError

    warnings.simplefilter("ignore")  # of later versions of Python, about threads
    codes = []
    with nnlo_opt.Study({"x": nnlo_opt.Real(-5, 5)}, num_iterations=6, hyper_opt="random", **OPTIONS) as study:
        folder = study._run.directory.path
        ends = [
            lambda: refused(study.tell, trial, 1.0),
            lambda: refused(study.ask),
            lambda: refused(trial.report, 1, 1.0),
            lambda: sys.exit(study.close()),
            lambda: os._exit(3),
            raises,
        ]
        for trial in study:
            if not (child := os.fork()):
                ends[trial.number]()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            with open(folder / "run.lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    study.tell(trial, 1.0)
    print(codes, len(study.result.trials), study.result.ended_because, folder.exists())
"""


@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.proof)])
def test_a_forked_child_neither_writes_nor_ends_the_study_of_its_parent(keeps, tmp_path):
    options = {"checkpoint": str(tmp_path / "run")} if keeps else {}
    out = said_by(FORKS.replace("OPTIONS", str(options)), folder=tmp_path)
    assert out == f"[41, 41, 41, 0, 3, 1] 6 all trials are done {keeps}\n"
    if keeps:
        assert read_ledger(tmp_path / "run").n_ended == 6
        assert repair(tmp_path / "run") is None


def test_a_study_counts_the_epochs_of_a_trial_that_begins_with_0_from_1():
    with nnlo_opt.Study(SPACE, num_iterations=2) as study:
        for trial in study:
            with nullcontext() if trial.number else pytest.warns(nnlo_opt.SearchWarning, match="from 0") as said:
                assert all(trial.report(epoch, 0.5 + epoch) for epoch in range(2))
            assert trial.number or said[0].filename == __file__
            with pytest.raises(TrialError, match="one name"):
                trial.report(2, 0.5, figure_of_merit=1.0)
            study.tell(trial, 0.5)
    assert [trial.curve for trial in study.result.trials] == [{1: 0.5, 2: 1.5}] * 2


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_epochs_from_0_are_counted_from_1_and_one_line_says_so(n_parallel, monkeypatch):
    monkeypatch.setattr(forked, "FRAMEWORKS", ())  # other tests may have imported some

    def objective(x, trial):
        for epoch in range(trial.number % 2, 3):
            trial.report(epoch, epoch / 2)
        return x

    with pytest.warns(nnlo_opt.SearchWarning, match="counts its epochs from 0: here each has 1 more") as said:
        result = nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=4, n_parallel=n_parallel)
    assert len(said) == 1
    for trial in result.trials:
        curve = {1: 0.5, 2: 1.0} if trial.number % 2 else {1: 0.0, 2: 0.5, 3: 1.0}
        assert (trial.curve, trial.folds[0].n_epochs) == (curve, len(curve))


@pytest.mark.filterwarnings("ignore:Trial 0 counts:nnlo_opt.SearchWarning")
@pytest.mark.parametrize("saves", [False, True])
def test_a_resumed_trial_counts_its_epochs_as_it_began(tmp_path, saves):
    began = []

    def objective(x, trial):
        start = int((tmp_path / "n").read_text()) if (tmp_path / "n").exists() else 0
        began.append((start, trial.checkpoint.epoch))
        for epoch in range(start, 4):
            (tmp_path / "n").write_text(str(epoch + 1))
            if saves:
                trial.checkpoint.save(epoch, lambda folder: (folder / "state").touch())
            trial.report(epoch, x)
            if epoch == 1 and not start:
                raise KeyboardInterrupt
        return x

    options = {"num_iterations": 1, "checkpoint": tmp_path / "run"}
    assert not nnlo_opt.optimize(objective, {"x": Real(0, 1)}, **options).trials[0].folds
    result = nnlo_opt.optimize(objective, {"x": Real(0, 1)}, opt_restore=True, **options)
    assert began == [(0, 0), (2, saves)]
    assert [*result.trials[0].curve] == [1, 2, 3, 4]
    began_at = [event["epoch"] for event in events_of(tmp_path / "run", "FoldBegan")]
    assert began_at == [0, 2 * saves]


@pytest.mark.parametrize("reports", [True, False])
def test_the_value_of_a_trial_has_one_name(reports):
    def objective(x, report):
        return report(1, x, figure_of_merit=0.5) if reports else {"value": x, "figure_of_merit": 0.5}

    with pytest.raises(TrialError, match="received: both `value` and `figure_of_merit`"):
        nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=1)


def test_an_objective_may_be_called_accuracy():
    def objective(x, report):
        report(1, 9.0, eval_accuracy=x / 2)
        return {"accuracy": x}

    best = nnlo_opt.optimize(
        objective, {"x": Real(0, 1)}, num_iterations=3, objective=["eval_accuracy:max", "accuracy:min"]
    ).trials[0]
    assert best.objectives == {"eval_acc": best.parameters["x"] / 2, "acc": best.parameters["x"]}
    assert best.curve == {1: best.parameters["x"] / 2}


def test_a_pruner_stops_a_trial_that_reports():
    with nnlo_opt.Study({"x": Real(0, 1)}, pruner="median", pruner_max_epochs=None, num_iterations=12) as study:
        stopped = []
        for trial in study:
            value = float(trial.number)
            goes_on = all(trial.report(epoch, value) for epoch in (1, 2))
            if not goes_on:
                stopped.append(trial.number)
            study.tell(trial, value)
    assert stopped
    assert {trial.number for trial in study.result.trials if trial.state == "pruned"} == set(stopped)


@pytest.mark.parametrize("options", [{}, {"pruner": "median", "pruner_max_epochs": None}])
def test_a_wrong_call_raises_to_its_caller_and_leaves_a_study_as_it_was(options):
    with nnlo_opt.Study(SPACE, **FEW) as other, nnlo_opt.Study(SPACE, **FEW, **options) as study:
        strange, trial = other.ask(), study.ask()
        for epoch in (-1, 2.5, "1", True, None, 10**30):
            with pytest.raises(TrialError, match=r"whole numbers from 1; received: .*range\(1, n \+ 1\)"):
                trial.report(epoch, 0.5)
        for value in ({"a": 1}, None, "x", float("nan")):
            with pytest.raises(TrialError, match="a finite number at epoch 1; received: "):
                trial.report(1, value)
        for wrong in (None, 0, strange):
            check_refused("unfinished trial of this study", study.tell, wrong, 1.0)
        assert study.result.trials[0].curve == {}
        assert trial.report(np.int64(1), np.float32(0.5))
        study.tell(trial, 0.5)
        study.tell(study.ask(), error=KeyError)
        for trial in study:
            study.tell(trial, 1.0)
    assert study.result.trials[0].curve == {1: 0.5}
    assert [trial.state for trial in study.result.trials] == ["complete", "failed", *["complete"] * 3]


def test_a_grid_has_as_many_trials_as_points_unless_fewer_are_asked_for():
    space, grid = {"x": Real(-5, 5), "n": Integer(1, 2)}, {"hyper_opt": "grid", "grid_points": 3}
    result = nnlo_opt.optimize(distance, space, **grid)
    assert points(result) == [{"x": x, "n": n} for x in (-5.0, 0.0, 5.0) for n in (1, 2)]
    assert result.ended_because == "all trials are done"
    assert points(nnlo_opt.optimize(distance, space, **grid, num_iterations=2)) == points(result)[:2]
    check_refused("at most 1,000,000 points", nnlo_opt.optimize, distance, {"n": Integer(1, 10**7)}, **grid)
