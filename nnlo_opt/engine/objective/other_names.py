"""Maps names of Optuna, scikit-optimize, scikit-learn, Ray Tune, hyperopt and others to ours.

Used in error messages for arguments, attributes and imports that users know from other packages.
"""

from collections.abc import Mapping


def _table(names: Mapping[str, str]) -> dict[str, str]:
    """`{"a b": "c"}` -> `{"a": "c", "b": "c"}`."""
    return {name: ours for several, ours in names.items() for name in several.split()}


#: argument of a search -> ours
ARGUMENTS = _table(
    {
        "n trials n_trials n_calls n_iter n_iterations max_iter maxiter max_evals max_trials num_trials num_samples "
        "n_evaluations iterations count": "num_iterations",
        "n_jobs workers n_workers max_concurrent max_concurrent_trials": "n_parallel",
        "sampler algorithm algo search_alg method tuner": "hyper_opt",
        "acq_func": "acquisition",
        "base_estimator": "surrogate",
        "storage study_name name directory project_name local_dir storage_path": "checkpoint",
        "load_if_exists resume": "opt_restore",
        "directions metric metrics": 'objective={"NAME": "min"}',
        "maximize maximise": 'direction="max"',
        "minimize minimise": 'direction="min"',
        "constraint constraints": "feasible",
        "constraints_func": "outcome_constraint",
        "random_state rstate rng": "seed",
        "x0 points_to_evaluate initial_point": 'start_point={"NAME": VALUE}',
        "y0": "warm_start=FRAME",
        "no_shuffle": "shuffle",
        "scheduler": "pruner",
        "reduction_factor": "pruner_eta",
        "n_warmup_steps min_resource grace_period": "pruner_min_epochs",
        "n_startup_trials": "pruner_min_trials",
        "max_resource max_t": "pruner_max_epochs",
        "resources resources_per_trial": "block_size",
        "callback": "callbacks",
        "show_progress_bar verbose": "progress",
        "time_budget time_budget_s max_time": "timeout",
        "loss_threshold": "target_objective",
        "patience early_stopping_rounds": "stop_after_no_improvement",
        "dimensions param_space search_space search_spaces config bounds param_distributions param_grid": "space",
    }
)

#: algorithm of other packages, lower-case name or class -> ours
ALGORITHMS = _table(
    {
        "tpesampler tpe.suggest hyperopt hyperoptsearch": "tpe",
        "randomsampler randomsearch random_search rand.suggest rand randomizedsearchcv": "random",
        "gridsampler gridsearch grid_search gridsearchcv bruteforcesampler": "grid",
        "gpsampler botorchsampler botorch": "gp",
        "cmaessampler cma cma-es cma_es": "cmaes",
        "qmcsampler halton lhs quasirandom": "sobol",
        "nsgaiisampler nsgaiiisampler nsga2 nsgaii ga evolution evolutionary differential_evolution": "genetic",
        "bayes bo bayesopt bayesoptsearch bayesiansearch bayesianoptimization gp_minimize cbo smac": "bayesian",
        "skopt skoptsampler skoptsearch": "bayesian-skopt",
        "medianpruner medianstoppingrule median_stopping percentilepruner": "median",
        "successivehalvingpruner successive_halving successivehalving sha ashascheduler": "asha",
        "hyperbandpruner hyperbandscheduler": "hyperband",
        "noppruner": "none",
    }
)

#: attribute of a search result -> ours
_OF_RESULT = _table(
    {
        "best_params best_params_ best_parameters_ best_config x get_best_hyperparameters get_best_config":
            "best_parameters",
        "best_estimator_": "best_parameters",
        "best_value best_score best_score_ best_loss best_figure_of_merit fun": "figure_of_merit",
        "best_trial best_result get_best_result get_best_trial": "best",
        "best_trials": "pareto",
        "best_index_": "best.number",
        "get_best_models predict": "best_model()",
        "get_trials results history": "trials",
        "n_trials nfev": "len(result)",
        "trials_dataframe dataframe get_dataframe cv_results_ df results_df to_pandas to_frame to_df head describe":
            "to_dataframe()",
        "to_csv save": 'to_dataframe().to_csv("FILE.csv")',
        "x_iters": "[trial.parameters for trial in trials]",
        "func_vals": "[trial.figure_of_merit for trial in trials]",
        "directions": "direction",
        "param_importances get_param_importances importances feature_importances_": "importance()",
        "plot plot_optimization_history plot_convergence": "plot_history()",
        "plot_param_importances plot_importances": "plot_importance()",
        "plot_parallel_coordinate": "plot_parallel()",
        "plot_slice plot_rank plot_contour plot_effects": 'plot_parameter("NAME")',
        "plot_intermediate_values plot_learning_curves": "plot_curves()",
        "plot_pareto_front": "plot_pareto()",
        "plot_timeline": "plot_blocks()",
        "summary results_summary": "to_dataframe()",
    }
)  # fmt: skip
#: key of the package itself
MODULE = "module `nnlo_opt`"
#: kind of object -> attribute in other packages -> ours
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "result": _OF_RESULT
    | _table({"optimize resume": "optimize(..., checkpoint=NAME, opt_restore=True) of nnlo_opt"}),
    # while the search runs: `Study` has the result so far, and callbacks the trial
    "study": {name: f"result.{ours}" for name, ours in _OF_RESULT.items() if not ours.startswith(("[", "len("))}
    | {"trials": "result.trials", "direction": "result.direction", "best": "result.best"}
    | _table(
        {
            "n_trials": "len(study.result)",
            "optimize": "optimize(objective, space) of nnlo_opt",
            "enqueue_trial": "enqueue({...})",
            "suggest next": "ask()",
            "add_trial add_trials": "Study(..., warm_start=FRAME)",
            "set_user_attr": "report(epoch, value, name=number) of the trial",
        }
    ),
    "trial": _table(
        {
            "value loss score result": "figure_of_merit",
            "params config x": "parameters",
            "values": "objectives",
            "intermediate_values": "curve",
            "trial_id": "number",
            "user_attrs metrics": "folds[0].metrics",
            "duration time": "folds[0].train_s",
            "datetime_start datetime_complete": "assignments",
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
    MODULE: _table(
        {
            "create_study": "optimize(objective, space) or Study(space)",
            "load_study": 'load_run("checkpoints/NAME")',
            "gp_minimize forest_minimize gbrt_minimize dummy_minimize fmin minimize differential_evolution tune "
            "Tuner BayesSearchCV GridSearchCV RandomizedSearchCV RandomSearch GridSearch Hyperband "
            "BayesianOptimization CBO sweep agent optimise hyperopt": "optimize(objective, space)",
            "TrialPruned": "RunningTrial.report, which returns False if the trial is to stop: return any value then",
            "FloatDistribution UniformDistribution LogUniformDistribution Float uniform loguniform quniform "
            "qloguniform LogUniform LogReal": "Real",
            "IntDistribution IntUniformDistribution Int randint lograndint": "Integer",
            "CategoricalDistribution Choice choice grid_search": "Categorical",
            "Bool Boolean": "Categorical([True, False])",
            "randn normal Normal lognormal": "Real(LOW, HIGH, likely=...)",
            "hp": "Real, Integer and Categorical",
            "distributions": "Real, Integer and Categorical",
            "HpProblem ParameterSpace SearchSpace ConfigurationSpace": "Space",
            "use_named_args": "optimize(objective, space): an objective gets the parameters that its arguments name",
            "Trial": "RunningTrial",
            "Trials": "the result of optimize, which has all trials",
            "Objective": 'optimize(..., objective="NAME:min")',
            "STATUS_OK STATUS_FAIL": "the value itself: return it, or raise for a failure",
            "samplers tpe rand anneal": 'optimize(..., hyper_opt="NAME")',
            "pruners ASHAScheduler HyperBandScheduler MedianStoppingRule schedulers": 'optimize(..., pruner="NAME")',
            "visualization plots plot_optimization_history plot_convergence plot_param_importances plot_contour "
            "plot_slice plot_parallel_coordinate plot_pareto_front":
                "result.plot_history() and other methods `plot_...`",
            "importance get_param_importances": "result.importance()",
            "integration": "nnlo_opt.integrations, whose modules are imported by name",
            "logging set_verbosity": "optimize(..., progress=False)",
            "Optimizer": "Study",
            "Results OptimizeResult": "SearchResult",
        }
    ),
}  # fmt: skip

#: names of other packages looked up in the package itself
OF_MODULE = _ATTRIBUTES[MODULE]


def absence(kind: str, name: str, obj: object) -> AttributeError:
    """Return the error for a missing attribute of `obj`.

    Args:
        kind: kind of object, a key of `_ATTRIBUTES`.
    """
    what = f"{'' if kind == MODULE else 'a '}{kind} has no {name!r}"
    if (ours := _ATTRIBUTES[kind].get(name)) is None:
        return AttributeError(what, name=name, obj=obj)
    # Without an object Python does not add its own suggestion, which may differ.
    return AttributeError(f"{what}: take `{ours}`", name=name, obj=None)


def part_named(part: object) -> str | None:
    """Return our name for another package's algorithm or pruner, given by name, class or object; None if unknown."""
    kind = part if isinstance(part, str | type) else type(part)
    word = (kind if isinstance(kind, str) else kind.__name__).lower()
    return ALGORITHMS.get(word)
