"""Names of Optuna, scikit-optimize, scikit-learn, Ray Tune and hyperopt, with ours.

Whoever comes from there types them by habit: as arguments of a search, and as attributes of what it returns.
"""

from collections.abc import Mapping


def _table(names: Mapping[str, str]) -> dict[str, str]:
    """`{"a b": "c"}` -> `{"a": "c", "b": "c"}`."""
    return {name: ours for several, ours in names.items() for name in several.split()}


#: argument of a search -> ours
ARGUMENTS = _table(
    {
        "n_trials n_calls n_iter max_evals num_samples n_evaluations": "num_iterations",
        "n_jobs": "n_parallel",
        "sampler algorithm algo search_alg": "hyper_opt",
        "storage study_name": "checkpoint",
        "load_if_exists": "opt_restore",
        "directions": "objective",
        "constraint constraints": "feasible",
        "constraints_func": "outcome_constraint",
        "random_state rstate": "seed",
        "x0 points_to_evaluate": "start_point",
        "no_shuffle": "shuffle",
        "scheduler": "pruner",
        "resources": "block_size",
        "callback": "callbacks",
        "show_progress_bar verbose": "progress",
        "search_space": "space",
    }
)

#: attribute of what a search returns -> ours
_OF_RESULT = _table(
    {
        "best_params best_params_ best_config x": "best_parameters",
        "best_value best_score_ fun": "figure_of_merit",
        "best_trial best_result": "best",
        "best_trials": "pareto",
        "best_index_": "best.number",
        "best_estimator_": "best_model()",
        "get_trials results": "trials",
        "trials_dataframe dataframe get_dataframe cv_results_ df": "to_dataframe()",
        "x_iters": "[trial.parameters for trial in trials]",
        "func_vals": "[trial.figure_of_merit for trial in trials]",
        "directions": "direction",
    }
)
#: what is looked at -> attribute of others -> ours
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "result": _OF_RESULT,
    # while the search runs: `Study` has the result so far, and callbacks the trial
    "study": {name: f"result.{ours}" for name, ours in _OF_RESULT.items() if not ours.startswith("[")}
    | {"trials": "result.trials", "direction": "result.direction", "best": "result.best"}
    | _table(
        {
            "optimize": "optimize(objective, space) of nnlo_opt",
            "enqueue_trial": "enqueue({...})",
            "add_trial add_trials": "warm_start=FILE of a table",
            "set_user_attr": "report(epoch, value, name=number) of the trial",
        }
    ),
    "trial": _table(
        {
            "value loss score": "figure_of_merit",
            "params config x": "parameters",
            "values": "objectives",
            "intermediate_values": "curve",
            "trial_id": "number",
            "user_attrs metrics": 'result.to_dataframe("epochs")',
        }
    ),
    "running trial": _table(
        {
            "params config": "parameters",
            "suggest_float suggest_int suggest_categorical suggest_uniform suggest_loguniform "
            "suggest_discrete_uniform": 'trial.parameters["name"]',
            "set_user_attr": "report(epoch, value, name=number)",
            "trial_id": "number",
        }
    ),
    "module `nnlo_opt`": _table(
        {
            "create_study": "optimize(objective, space) or Study(space)",
            "load_study": 'load_run("checkpoints/NAME")',
            "gp_minimize forest_minimize gbrt_minimize dummy_minimize fmin minimize run tune Tuner BayesSearchCV":
                "optimize(objective, space)",
            "TrialPruned": "RunningTrial.report, which returns False if the trial is to stop: return any value then",
            "FloatDistribution uniform loguniform": "Real",
            "IntDistribution randint": "Integer",
            "CategoricalDistribution choice": "Categorical",
            "Trial": "RunningTrial",
            "samplers": 'optimize(..., hyper_opt="NAME")',
            "pruners": 'optimize(..., pruner="NAME")',
            "visualization": "load_run(RUN).plot_history() and other methods `plot_...`",
            "Optimizer": "Study",
        }
    ),
}  # fmt: skip


def absence(kind: str, name: str, obj: object) -> AttributeError:
    """Return the error about an attribute that `obj` does not have.

    Args:
        kind: of the object, a key of `_ATTRIBUTES`.
    """
    ours = _ATTRIBUTES[kind].get(name)
    hint = f": take `{ours}`" if ours else ""
    return AttributeError(f"a {kind} has no {name!r}{hint}", name=name, obj=obj)
