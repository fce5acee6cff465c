"""First programs as people write them by the habits of other packages."""

import importlib.util
import pickle
import re
import time
import traceback

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt import Categorical, Integer, Real, Space, When, load_run
from nnlo_opt.cli import tool as cli
from nnlo_opt.core.base.errors import ConfigurationError, SearchWarning, TrialError
from nnlo_opt.engine.objective.other_names import ARGUMENTS, OF_MODULE

SPACE = {"x": Real(-5, 5)}
FEW = {"num_iterations": 4, "hyper_opt": "random"}


def square(x):
    return x**2


@pytest.fixture(scope="module")
def result():
    return nnlo_opt.optimize(square, SPACE, **FEW)


# ---------------------------------------------------------------- names of others


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_others_is_refused_with_ours(name):
    with pytest.raises(ConfigurationError, match=re.escape(f"`{name}`, which is `{ARGUMENTS[name]}` here")):
        nnlo_opt.optimize(square, SPACE, **{name: 1})


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("best_params", "best_parameters"),
        ("best_value", "figure_of_merit"),
        ("best_trial", "best"),
        ("x", "best_parameters"),
        ("fun", "figure_of_merit"),
        ("trials_dataframe", r"to_dataframe\(\)"),
    ],
)
def test_an_attribute_of_others_names_ours(result, name, ours):
    with pytest.raises(AttributeError, match=f"a result has no '{name}': take `{ours}`"):
        getattr(result, name)
    with nnlo_opt.Study(SPACE, **FEW) as study, pytest.raises(AttributeError, match=rf"take `result\.{ours}`"):
        getattr(study, name)


@pytest.mark.parametrize(("name", "ours"), [("value", "figure_of_merit"), ("params", "parameters")])
def test_an_attribute_of_the_trial_of_a_callback_names_ours(name, ours):
    def callback(study, trial):
        getattr(trial, name)

    with pytest.raises(AttributeError, match=f"a trial has no '{name}': take `{ours}`"):
        nnlo_opt.optimize(square, SPACE, callbacks=[callback], **FEW)


def test_a_callback_sees_the_result_so_far():
    seen = []
    nnlo_opt.optimize(square, SPACE, callbacks=[lambda study, trial: seen.append(len(study.result))], **FEW)
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("create_study", "optimize"), ("load_study", "load_run"), ("TrialPruned", "report"), ("gp_minimize", "optimize")],
)
def test_a_function_of_others_names_ours(name, ours):
    with pytest.raises(AttributeError, match=f"'{name}': take `.*{ours}"):
        getattr(nnlo_opt, name)


def test_an_unknown_attribute_is_an_attribute_error_without_a_guess(result):
    for thing in (result, result.best, nnlo_opt):
        assert not hasattr(thing, "zebra")
        with pytest.raises(AttributeError, match=r"has no 'zebra'$"):
            thing.zebra  # noqa: B018


def test_a_result_has_a_length_and_its_trials_and_is_true_without_any(result):
    assert len(result) == 4
    assert [trial.number for trial in result] == [0, 1, 2, 3]
    with nnlo_opt.Study(SPACE, **FEW) as study:
        assert study.result
        assert not [*study.result]


# ---------------------------------------------------------------- arguments of an objective

CONDITIONAL = {"model": Categorical(["svm", "tree"]), "C": Real(0, 1, condition=When("model", "svm"))}


def test_a_parameter_with_a_condition_and_no_default_is_refused_before_the_first_trial():
    called = []
    with pytest.raises(ConfigurationError, match=r"`C` exists only if model is 'svm'\. Write `C=None`"):
        nnlo_opt.optimize(lambda model, C: called.append(model), CONDITIONAL, **FEW)
    assert not called


def test_keywords_of_an_objective_are_all_parameters_that_the_trial_has():
    given = []
    nnlo_opt.optimize(lambda **rest: given.append(rest) or 1.0, CONDITIONAL, num_iterations=8, hyper_opt="random")
    assert {tuple(rest) for rest in given} == {("model", "C"), ("model",)}


# ---------------------------------------------------------------- a constraint before the trial


def above(parameters):
    return parameters["x"] > 1


def square_above(x):
    return x**2


square_above.feasible = above


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (square, {"space": SPACE, "feasible": above}),
        (square, {"space": Space([Real(-5, 5, name="x")], constraint=above)}),
        (square_above, {"space": SPACE}),
    ],
    ids=["argument", "space", "attribute"],
)
def test_a_constraint_of_a_script_is_kept_by_every_trial(target, given, tmp_path):
    run = {"num_iterations": 8, "checkpoint": tmp_path / "run", **given}
    result = nnlo_opt.optimize(target, **run)
    assert min(trial.parameters["x"] for trial in result) > 1
    nnlo_opt.optimize(target, opt_restore=True, **run | {"num_iterations": 9})
    assert min(trial.parameters["x"] for trial in nnlo_opt.load_run(tmp_path / "run")) > 1


def test_another_constraint_is_another_search(tmp_path):
    run = {"num_iterations": 2, "checkpoint": tmp_path / "run"}
    nnlo_opt.optimize(square, SPACE, feasible=above, **run)
    for other in (None, lambda parameters: parameters["x"] > 2):
        with pytest.raises(ConfigurationError, match=r"the constraint was `feasible` .* and is now"):
            nnlo_opt.optimize(square, SPACE, feasible=other, opt_restore=True, **run)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"feasible": 3}, "must be a function of one argument"),
        ({"feasible": lambda: True}, "must be a function of one argument"),
        ({"feasible": lambda p: False}, "must accept some points"),
        ({"feasible": lambda p: p["y"]}, "Received: KeyError: 'y' at"),
        ({"feasible": above, "space": Space([Real(-5, 5, name="x")], above)}, "has one constraint"),
        ({"constraint": above}, "`constraint`, which is `feasible` here"),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_refused(given, words):
    with pytest.raises(ConfigurationError, match=words):
        nnlo_opt.optimize(square, **{"space": SPACE} | given, **FEW)
    with pytest.raises(ConfigurationError, match=words):
        nnlo_opt.Study(**{"space": SPACE} | given, **FEW)


def test_an_argument_and_an_attribute_are_two_constraints():
    with pytest.raises(ConfigurationError, match="has one constraint"):
        nnlo_opt.optimize(square_above, SPACE, feasible=lambda p: True, **FEW)


def test_a_study_asks_for_feasible_points_only():
    with nnlo_opt.Study(SPACE, feasible=above, **FEW) as study:
        for trial in study:
            study.tell(trial, trial.parameters["x"])
    assert min(trial.parameters["x"] for trial in study.result) > 1


# ---------------------------------------------------------------- earlier searches


def test_a_run_is_taken_by_its_name_wherever_a_path_is(here):
    nnlo_opt.optimize(square, SPACE, checkpoint="yesterday", **FEW)
    assert len(load_run("yesterday")) == len(load_run("checkpoints/yesterday")) == 4
    result = nnlo_opt.optimize(square, SPACE, warm_start="yesterday", checkpoint="today", **FEW)
    assert len(result.ledger.adopted) == 4
    with pytest.raises(ConfigurationError, match="Received: `tomorrow`"):
        nnlo_opt.optimize(square, SPACE, warm_start="tomorrow", **FEW)


@pytest.mark.parametrize("kept", [True, False], ids=["with checkpoint", "without"])
@pytest.mark.parametrize("of", [lambda r: r, lambda r: [r], lambda r: r.to_dataframe()], ids=["one", "list", "frame"])
def test_a_warm_start_takes_a_result_and_a_data_frame(of, kept, tmp_path):
    first = nnlo_opt.optimize(square, SPACE, **FEW, **({"checkpoint": tmp_path / "run"} if kept else {}))
    second = nnlo_opt.optimize(square, SPACE, warm_start=of(first), checkpoint=tmp_path / "next", **FEW)
    assert [each["value"] for each in second.ledger.adopted] == [trial.figure_of_merit for trial in first]
    resumed = nnlo_opt.optimize(square, SPACE, opt_restore=True, checkpoint=tmp_path / "next", **FEW)
    assert resumed.ledger.adopted == second.ledger.adopted


def test_a_warm_start_takes_rows_of_a_data_frame_and_a_run(tmp_path):
    first = nnlo_opt.optimize(square, SPACE, checkpoint=tmp_path / "run", **FEW)
    best = first.to_dataframe().nsmallest(2, "figure_of_merit")
    second = nnlo_opt.optimize(square, SPACE, warm_start=[best, load_run(tmp_path / "run")], **FEW)
    assert len(second.ledger.adopted) == 6


def test_a_data_frame_without_figures_is_refused():
    frame = nnlo_opt.optimize(square, SPACE, **FEW).to_dataframe()[["trial", "p:x"]]
    with pytest.raises(ConfigurationError, match=r"A data frame for `warm_start` must .* a data frame of 4 x 2 "):
        nnlo_opt.optimize(square, SPACE, warm_start=frame, **FEW)


# ---------------------------------------------------------------- remedies


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (range(16, 257, 16), "{'x': Integer(16, 256, step=16)}"),
        (range(3), "{'x': Integer(0, 2)}"),
        ([16, 32], "{'x': Categorical([16, 32])}` or `{'x': Integer(16, 32)}"),
        ((0, 1), "{'x': Integer(0, 1)}` or `{'x': Real(0, 1)}"),
        ((1e-4, 0.1), "{'x': Real(0.0001, 0.1)}"),
        (["relu", "tanh"], "{'x': Categorical(['relu', 'tanh'])}"),
        (np.arange(3), "{'x': Categorical([0, 1, 2])}"),
        (3, "{'x': Constant(3)}"),
    ],
)
def test_a_value_that_is_no_parameter_is_refused_with_the_one_that_it_means(value, remedy):
    with pytest.raises(ConfigurationError, match=re.escape(f"Write it as `{remedy}`.")):
        nnlo_opt.optimize(square, {"x": value}, **FEW)
    for code in remedy.split("` or `"):
        assert len(nnlo_opt.optimize(lambda x: 1.0, eval(code, vars(nnlo_opt.space)), num_iterations=1)) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: When("model", "svm", Real(0, 1)), r"Write it as Real\(\.\.\., condition=When\('model', 'svm'\)\)"),
        (lambda: Real(0, 1, when="svm"), r"Received: when='svm'\. Write it as `condition=When\("),
        (lambda: Real(1, 2, log=True), 'Write it as `prior="log-uniform"`'),
        (lambda: Integer(0, 8, q=2), "Write it as `step=...`"),
        (lambda: Categorical(choices=["a", "b"]), "Write it as `categories="),
        (lambda: Real(0, 1, lowe=1), "Did you mean `low`"),
        (lambda: Categorical(["a", "b"], log=True), r"The arguments of Categorical are .* Received: log=True\.$"),
    ],
)
def test_an_argument_that_a_parameter_does_not_have_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_random_starts": 3}, "which is unknown. `help"),
        ({"validation_split": 0.2}, "which is unknown. `help"),
        ({"num_iteration": 3}, "Did you mean `num_iterations`"),
        ({"optimizer": "adamax"}, "Received: 'adamax'.$"),
        ({"objective": "loss"}, "such as loss:min or loss:max. Received: 'loss'"),
        ({"objective": ["minimize", "maximize"]}, "Write it as `objective={'value_0': 'min', 'value_1': 'max'}`"),
        ({"seed": np.zeros((320, 9))}, r"Received: a ndarray of 320 x 9\."),
        ({"space": np.zeros((320, 9))}, "Received: a ndarray of 320 x 9. "),
        ({"space": ["x" * 999]}, "Received: 'x{99} … x{49}'"),
    ],
)
def test_a_wrong_argument_is_refused_in_few_words(given, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        nnlo_opt.optimize(square, **{"space": SPACE} | FEW | given)
    assert len(str(refused.value)) < 500


def both(x):
    return {"loss": x**2, "size": -x}


@pytest.mark.parametrize(
    "objective", [{"loss": "min", "size": "maximize"}, ["loss:minimise", "size:max"]], ids=["mapping", "list"]
)
def test_objectives_are_taken_in_the_words_of_others(objective):
    result = nnlo_opt.optimize(both, SPACE, objective=objective, **FEW)
    assert [str(each) for each in result.ledger.objectives] == ["loss:min", "size:max"]
    assert nnlo_opt.optimize(square, SPACE, direction="maximise", **FEW).direction == "max"


# ---------------------------------------------------------------- ends of a search


@pytest.mark.parametrize("limit", ["timeout", "walltime"])
def test_a_search_with_a_limit_of_time_alone_has_any_number_of_trials(limit, tmp_path, recwarn):
    def slow(x):
        time.sleep(0.05)
        return square(x)

    result = nnlo_opt.optimize(slow, SPACE, hyper_opt="random", checkpoint=tmp_path / "run", **{limit: 1.0})
    assert len(result) > 0
    assert not recwarn
    assert load_run(tmp_path / "run").ledger.settings.plan.num_iterations == 0
    assert cli.main(["status", str(tmp_path / "run")]) == cli.main(["list", str(tmp_path)]) == 0


def test_a_target_alone_keeps_the_number_of_trials_and_says_so():
    with pytest.warns(SearchWarning, match="so that the search has 10"):
        assert len(nnlo_opt.optimize(square, SPACE, hyper_opt="random", target_objective=-1.0)) == 10


# ---------------------------------------------------------------- looking at a search


def test_a_study_shows_how_far_it_is(tmp_path):
    with nnlo_opt.Study(SPACE, **FEW) as study:
        assert repr(study) == "<Study: no trial yet, none succeeded>"
        study.tell(study.ask(), 0.5)
        assert repr(study).startswith("<Study: 1 complete, best 0.5 at {'x': ")


def test_the_importance_of_parameters_is_a_frame():
    space = {"x": Real(-5, 5), "y": Real(-5, 5)}
    result = nnlo_opt.optimize(lambda x, y: x**2, space, num_iterations=12, hyper_opt="random")
    frame = result.importance()
    assert [*frame.columns] == ["parameter", "low", "importance", "high"]
    assert frame.parameter[frame.importance.idxmax()] == "x"
    assert (frame.low <= frame.importance).all()
    assert (frame.importance <= frame.high).all()
    assert "share of the variance of figure of merit" in result.plot_importance().get_xlabel()


def test_the_importance_of_too_few_trials_is_refused_with_the_reason(result):
    with pytest.raises(ConfigurationError, match="At least 5 complete trials are needed"):
        result.importance()


def test_two_histories_on_the_same_axes_have_labels_and_colours_of_their_own(tmp_path):
    runs = [nnlo_opt.optimize(square, SPACE, checkpoint=tmp_path / name, **FEW) for name in ("tpe", "random")]
    ax = runs[0].plot_history()
    assert ax.get_legend_handles_labels()[1] == ["complete", "best so far"]
    runs[1].plot_history(ax)
    lines, labels = ax.get_legend_handles_labels()
    assert labels == ["complete", "best so far: tpe", "best so far: random"]
    assert len({line.get_color() for line in lines}) == 3


# ---------------------------------------------------------------- what would be silent


@pytest.mark.parametrize("name", ["median", "asha"])
def test_a_pruner_without_a_report_is_named_at_the_end(name):
    words = f"`pruner` compares .* Received: {name}, and 4 trials without a report"
    with pytest.warns(SearchWarning, match=words) as said:
        nnlo_opt.optimize(square, SPACE, pruner=name, **FEW)
    assert [warning.filename for warning in said] == [__file__]


def test_a_pruner_that_hears_reports_is_not_named(recwarn):
    nnlo_opt.optimize(lambda x, report: report(1, x) and x, SPACE, pruner="median", **FEW)
    assert not recwarn


def test_a_resume_by_another_algorithm_warns_in_a_script(tmp_path):
    run = {"checkpoint": tmp_path / "run", "num_iterations": 2}
    nnlo_opt.optimize(square, SPACE, hyper_opt="random", **run)
    with pytest.warns(SearchWarning, match="The search was random and is now sobol") as said:
        nnlo_opt.optimize(square, SPACE, hyper_opt="sobol", opt_restore=True, **run | {"num_iterations": 3})
    assert [warning.filename for warning in said] == [__file__]


def test_a_study_that_is_resumed_by_another_algorithm_warns(tmp_path):
    run = {"checkpoint": tmp_path / "run", "num_iterations": 2}
    nnlo_opt.Study(SPACE, hyper_opt="random", **run).close()
    with pytest.warns(SearchWarning, match="The search was random and is now sobol") as said:
        nnlo_opt.Study(SPACE, hyper_opt="sobol", opt_restore=True, **run).close()
    assert [warning.filename for warning in said] == [__file__]


@pytest.mark.parametrize("kept", [True, False], ids=["with checkpoint", "without"])
def test_an_interrupted_search_says_how_far_it_is_and_how_it_is_resumed(kept, tmp_path, capsys):
    calls = []

    def objective(x):
        calls.append(x)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return x**2

    run = {"checkpoint": tmp_path / "run"} if kept else {}
    result = nnlo_opt.optimize(objective, SPACE, **FEW, **run)
    assert repr(result).startswith("<SearchResult: interrupted, 2 complete, ")
    remedy = "`opt_restore=True` resumes it." if kept else "Without `checkpoint` there is nothing to resume."
    said = capsys.readouterr().err
    assert said.removeprefix("Writing report.html ...\n").startswith("Interrupted: 2 complete, ")
    assert said.endswith(f". {remedy}\n")


def test_runs_are_compared_in_a_frame(here):
    for name, seed in (("one", 0), ("two", 1)):
        nnlo_opt.optimize(square, SPACE, checkpoint=name, seed=seed, **FEW)
    frame = load_run("one").compare("two")
    assert [*frame.index] == ["one", "two"]
    assert frame.complete.tolist() == [4, 4]
    assert frame.common.tolist() == [frame.best.max()] * 2
    worst = frame.best.idxmax()
    assert frame.trials_to_common[worst] == 1 + frame.best_trial[worst]
    with pytest.raises(ConfigurationError, match="Received: `three`"):
        load_run("one").compare("three")


# ---------------------------------------------------------------- programs of people who do not read


def test_a_name_of_others_that_is_imported_names_ours():
    with pytest.raises(ImportError, match=r"has no 'create_study': take `optimize\(objective, space\)"):
        from nnlo_opt import create_study  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'zebra'"):
        from nnlo_opt import zebra  # noqa: F401
    assert not hasattr(nnlo_opt, "create_study")


@pytest.mark.parametrize("name", OF_MODULE)
def test_no_name_of_others_hides_a_module_of_ours(name):
    assert importlib.util.find_spec(f"nnlo_opt.{name}") is None
    assert name not in nnlo_opt.__all__


def test_unknown_arguments_are_named_all_at_once():
    with pytest.raises(ConfigurationError) as refused:
        nnlo_opt.optimize(square, SPACE, n_trials=5, storage="a.db", gc_after_trial=True)
    for words in ("`n_trials`, which is `num_iterations` here", "`storage`, which is `checkpoint`", "`gc_after_trial`"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"callbacks": print}, "Write it as `callbacks=[print]`."),
        ({"callbacks": [lambda result: None]}, "Write it as `def callback(study, trial): ...`"),
        ({"callbacks": [dict]}, "Write it as `callbacks=[dict()]`."),
        ({"catch": (ValueError,)}, "`catch` must be True, False or None."),
        ({"progress": "bar"}, "`progress` must be True, False or None."),
        ({"mode": "max"}, 'Write it as `direction="max"`.'),
        ({"objective": "minimize"}, 'Write it as `direction="min"`.'),
        ({"direction": ["minimize", "maximize"]}, "`objective={'value_0': 'min', 'value_1': 'max'}`"),
        ({"checkpoint": ""}, "`checkpoint` must name a run."),
        ({"checkpoint": "sqlite:///a.db"}, "`checkpoint` must be a name in `checkpoints`, or a path."),
        ({"y": Real(0, 1)}, "Write it as `space={'y': Real(0.0, 1.0)}`."),
        ({"warm_start": True}, "`warm_start` must be a result"),
        ({"warm_start": [({"x": 1.0}, 1.0)]}, "Write measurements as `pandas.DataFrame("),
        ({"hyper_opt": "TPE"}, "Did you mean `tpe`?"),
        ({"hyper_opt": "RandomSampler"}, "Did you mean `random`?"),
        ({"pruner": "MedianPruner"}, "Did you mean `median`?"),
        ({"pruner": True}, "`pruner` must be one of none, median"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_its_remedy(given, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        nnlo_opt.optimize(square, SPACE, **FEW | given)


def test_objects_and_classes_of_other_packages_name_ours():
    for kind in (type("TPESampler", (), {}), type("TPESampler", (), {})()):
        with pytest.raises(ConfigurationError, match="Did you mean `tpe`"):
            nnlo_opt.optimize(square, SPACE, num_iterations=2, hyper_opt=kind)


def test_the_space_before_the_objective_is_refused_with_the_order():
    with pytest.raises(ConfigurationError, match=r"Write it as `optimize\(objective, space\)`"):
        nnlo_opt.optimize(SPACE, square, **FEW)


def test_what_is_optimized_may_be_named_target():
    assert len(nnlo_opt.optimize(target=square, space=SPACE, num_iterations=1)) == 1


class FloatDistribution:
    low, high, log, step = 1e-5, 1.0, True, None


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (FloatDistribution(), '{"x": Real(1e-05, 1.0, "log-uniform")}'),
        ({"min": 0.5, "max": 2}, '{"x": Real(0.5, 2)}'),
        ({"values": [1, 2]}, '{"x": Categorical([1, 2])}'),
        ((1e-6, 1.0, "log-uniform"), '{"x": Real(1e-06, 1.0, "log-uniform")}'),
        ((10, 1), '{"x": Integer(1, 10)}'),
        ({2, 1}, '{"x": Categorical([1, 2])}'),
        ([square, len], "{\"x\": Categorical(['square', 'len'])}"),
        (bool, '{"x": Categorical([True, False])}'),
        (Integer, '{"x": Integer(0, 9)}'),
        ([1], '{"x": Constant(1)}'),
        ("log-uniform", '{"x": Real(0.001, 1, "log-uniform")}'),
        (np.logspace(-3, 0, 50), '{"x": Real(0.001, 1.0, "log-uniform")}'),
        (np.linspace(0, 1, 100_000), '{"x": Real(0.0, 1.0)}'),
    ],
)
def test_an_entry_of_others_is_refused_with_the_parameter_that_it_means(value, remedy):
    with pytest.raises(ConfigurationError, match=re.escape(f"`{remedy}`".replace('"x"', "'x'"))):
        Space({"x": value})
    assert len(Space(eval(remedy, vars(nnlo_opt.space))).names) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Space([(-5.0, 5.0)]), 'Write it as `Real(-5.0, 5.0, name="NAME")`.'),
        (lambda: Space([("x", Real(0, 1))]), 'Write it as `Real(0.0, 1.0, name="x")`.'),
        (lambda: Space({"svm": {"C": Real(0, 1)}}), "`condition=When(\"PARENT\", 'svm')`"),
        (lambda: Space(Real(0, 1, name="x")), "must be a list of parameters, or a dictionary"),
        (lambda: Real(0, 1, condition={"model": "svm"}), "Write it as When(\"model\", 'svm')."),
        (lambda: Real(0, 1, condition="model == 'svm'"), "Write it as When(\"model\", 'svm')."),
        (lambda: When("n", range(2, 4)), "Write it as When('n', 2, 3)."),
        (lambda: Integer(16, 256, 16), "Write it as `step=16`."),
        (lambda: Real("lr", 0, 1), "Write the name last, as `name='lr'`."),
        (lambda: Real(min=0, max=1), "Write it as `low=...`."),
        (lambda: Categorical({"a", "b"}), "Write it as ['a', 'b']."),
    ],
)
def test_a_wrong_part_of_a_space_is_refused_with_the_right_one(make, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        make()


def test_a_list_of_values_in_a_condition_is_spread_in_the_remedy():
    with pytest.raises(ConfigurationError, match=re.escape("Write it as When('m', 'a', 'b').")):
        Space({"m": Categorical(["a", "b", "c"]), "C": Real(0, 1, condition=When("m", ["a", "b"]))})


class Evaluated:
    def at(self, x):
        return x


async def coroutine(x):
    return x


def generator(x):
    yield x


def around(x):
    return x


def decorated(a, b):
    return a


around.__wrapped__ = decorated  # as by `use_named_args` of scikit-optimize


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (coroutine, "return asyncio.run(...)"),
        (generator, "Pass values on the way to the argument `report`"),
        (around, "Remove it"),
        (Evaluated, "Received: the class Evaluated"),
        (Evaluated.at, "as `Objective().method`"),
    ],
)
def test_a_function_that_is_no_objective_is_refused_with_the_way_to_one(target, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        nnlo_opt.optimize(target, {"a": Real(0, 1), "b": Real(0, 1)} if target is around else SPACE, **FEW)


class Lines:
    def __repr__(self):
        return "a value\nof two lines"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda config: config.x, r"`config` is a dictionary of the parameters x: take `config\['x'\]`"),
        (lambda p: p[0], r"or name them as arguments, as in `def objective\(x\)`"),
    ],
)
def test_an_error_about_the_dictionary_of_parameters_says_what_it_is(target, words):
    with pytest.raises((AttributeError, KeyError)) as raised:
        nnlo_opt.optimize(target, SPACE, num_iterations=1)
    assert re.search(words, "".join(raised.value.__notes__))


def test_a_parameter_that_a_trial_does_not_have_is_named_in_the_note():
    with pytest.raises(KeyError) as raised:
        nnlo_opt.optimize(lambda p: p["C"], CONDITIONAL, hyper_opt="random", num_iterations=8)
    assert raised.value.__notes__ == ["A trial has `C` only if its condition holds: take `p.get('C')`."]


def test_a_misuse_is_said_once():
    with pytest.raises(TrialError) as raised:
        nnlo_opt.optimize(lambda x: (x, 1), SPACE, objective=["a:min", "b:max"], num_iterations=1, hyper_opt="random")
    assert str(raised.value).count("must return a finite number") == 1
    assert str(raised.value).endswith("return several numbers by name, such as `{'a': 0.1, 'b': 0.1}`")


def test_the_error_of_a_value_that_is_long_or_has_lines_has_no_note_that_repeats_it():
    for value in ({f"key_{number}": 1.0 for number in range(500)}, Lines()):
        with pytest.raises(TrialError) as raised:
            nnlo_opt.optimize(lambda x, value=value: value, SPACE, num_iterations=1)
        assert not getattr(raised.value, "__notes__", [])


def test_a_report_for_commands_is_refused_in_an_objective():
    with pytest.raises(TrialError, match="Give it the argument `report`"):
        nnlo_opt.optimize(lambda x: nnlo_opt.report(1, x), SPACE, num_iterations=1)


def test_a_value_that_is_no_number_is_refused_and_the_trial_stays():
    with nnlo_opt.Study(SPACE, **FEW) as study:
        trial = study.ask()
        for wrong in ([1, 2], "bad", None):
            with pytest.raises(ConfigurationError, match=r"^The objective must return a finite number"):
                study.tell(trial, wrong)
        study.tell(trial, 1.0)
    assert [trial.figure_of_merit for trial in study.result] == [1.0]


def test_an_attribute_that_others_would_call_a_constraint_is_refused():
    def target(x):
        return x

    target.constraint = above
    with pytest.raises(ConfigurationError, match=r"is its attribute `feasible`\. Received: `target\.constraint`"):
        nnlo_opt.optimize(target, SPACE, **FEW)


@pytest.mark.parametrize(("ax", "words"), [("a.png", r"\.figure\.savefig"), (np.zeros(2), "figure.subplots")])
def test_what_are_no_axes_are_refused(result, ax, words):
    with pytest.raises(ConfigurationError, match=words):
        result.plot_history(ax)


def test_a_refusal_shows_few_lines_of_this_package(tmp_path):
    with pytest.raises(ConfigurationError) as refused:
        load_run(tmp_path)
    assert len([*traceback.walk_tb(refused.value.__traceback__)]) <= 5


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (lambda: {"x": Real("0.1", 1)}, "Write it as 0.1, without quotes."),
        (lambda: {"x": Real("x", 1)}, "Write the name last, as `name='x'`."),
        (lambda: Real(0, 1), 'Write it as `{"NAME": Real(0.0, 1.0)}`.'),
    ],
)
def test_a_space_is_refused_with_what_to_write(space, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        nnlo_opt.optimize(square, space(), num_iterations=1)


def test_a_study_without_trials_has_no_failure_to_tell_of():
    with pytest.raises(nnlo_opt.TrialError, match=r"^No trial succeeded: none has ended\.$"):
        _ = nnlo_opt.Study(SPACE, num_iterations=3).result.best_parameters


def test_a_traceback_names_an_error_as_it_is_imported():
    raised = traceback.format_exception_only(ConfigurationError("wrong"))
    assert raised == ["nnlo_opt.ConfigurationError: wrong\n"]
    assert pickle.loads(pickle.dumps(nnlo_opt.TrialError("wrong"))).args == ("wrong",)


def test_an_objective_with_another_name_for_its_parameters_keeps_its_trial():
    with pytest.raises(ConfigurationError, match=re.escape("Write it as `def objective(parameters, trial)`.")):
        nnlo_opt.optimize(lambda params, trial: params["x"], SPACE, **FEW)
    assert len(nnlo_opt.optimize(lambda parameters, trial: parameters["x"], SPACE, **FEW)) == 4
