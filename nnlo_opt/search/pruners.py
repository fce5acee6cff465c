"""Construction of pruners by name."""

from nnlo_opt.search.median_stopping import MedianStopping
from nnlo_opt.search.pruning import Pruner, PruningPlan
from nnlo_opt.search.successive_halving import Brackets, SuccessiveHalving


def make_pruner(plan: PruningPlan) -> Pruner:
    """Return the pruner that a plan describes."""
    if plan.name == "median":
        return MedianStopping(plan.min_epochs, plan.min_trials)
    brackets = Brackets.of_hyperband(plan) if plan.name == "hyperband" else Brackets.one(plan)
    return SuccessiveHalving(brackets, plan.eta, pauses=plan.pauses)
