"""What a command was asked for, as frozen values, validated where they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnlo_opt.coordinator.instructions import Budget, SearchPlan, end_of
from nnlo_opt.data.weights import ClassWeights
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.findings import Findings
from nnlo_opt.runtime.devices import GpuRequest
from nnlo_opt.search.pruning import PruningPlan
from nnlo_opt.search.registry import ACQUISITIONS, SURROGATES, options_of, search_names
from nnlo_opt.space.space import Point
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.objectives import DEFAULT, MEASURED, Comparison
from nnlo_opt.trials.run_directory import RunRequest

#: options that belong to some search algorithms: what `make_search` calls them, and what the command line does
SEARCH_OPTIONS = {"surrogate": "--surrogate", "acquisition": "--acquisition", "population": "--ga-populations"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Where samples come from; None: from the model module."""

    train_data: Path | None = None
    val_data: Path | None = None
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = "samples"
    #: compare the data files with the checksums beside their lists before anything trains
    verify_data: bool = False
    #: folder for copies of data files; None: they are read where they are
    cache: Path | None = None
    #: words of the command that copies, two with `{}`; None: we copy
    copy_command: tuple[str, ...] | None = None
    #: bytes of samples that a rank may hold; None: a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows of samples read ahead where they are not held in memory
    n_ahead: int = 1
    class_weights: ClassWeights | None = None
    #: data set with a weight for each sample
    sample_weights_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How points are found; None: as the algorithm has it."""

    algorithm: str = "bayesian"
    surrogate: str | None = None
    acquisition: str | None = None
    #: --ga-populations
    population: int | None = None
    #: points to be tried first
    start_points: tuple[Point, ...] = ()
    #: run directories whose trials the search begins with
    warm_start: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in search_names():
            raise ConfigurationError(
                f"`--hyper-opt` must be one of {', '.join(search_names())}. Received: {self.algorithm}; choose one."
            )
        for name, option in SEARCH_OPTIONS.items():
            if getattr(self, name) is not None and name not in options_of(self.algorithm):
                owner = next(owner for owner in search_names() if name in options_of(owner))
                raise ConfigurationError(
                    f"`{option}` is an option of `--hyper-opt {owner}`. Received: it with {self.algorithm}; leave it "
                    f"out, or choose {owner}."
                )
        for name, choices in (("surrogate", SURROGATES), ("acquisition", ACQUISITIONS)):
            if getattr(self, name) not in (None, *choices):
                raise ConfigurationError(
                    f"`--{name}` must be one of {', '.join(choices)}. Received: {getattr(self, name)}; choose one."
                )
        if self.population == 1:
            raise ConfigurationError(
                "`--ga-populations` must be at least 2, as a child has two parents. Received: 1; leave it out for 10."
            )

    def given(self) -> dict[str, Any]:
        """The options of the algorithm that were given, by the names that `make_search` has for them."""
        return {name: value for name in SEARCH_OPTIONS if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """What was given besides the algorithm, as plain data."""
        return {**self.given(), "start_points": list(self.start_points)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything a driver was asked for."""

    model: str
    data: DataOptions
    training: TrainingOptions
    run: RunRequest
    #: name for history files
    trial_name: str
    seed: int
    log_level: str
    log_file: Path | None
    command_line: tuple[str, ...]
    gpus: GpuRequest = GpuRequest()  # noqa: RUF009  (frozen)
    #: measure what each worker takes of its machine
    monitor: bool = False
    #: write what every rank did when
    timeline: bool = False
    #: seconds to end in after SIGUSR1
    grace_s: float = 60.0
    #: seconds in which a rank must have got something done, else it is ended; 0: it is not watched
    hang_timeout_s: float = 600.0
    #: what to say about options that were given
    remarks: tuple[str, ...] = ()
    #: what the model is made with; None: as its module tells
    backend: str | None = None
    #: what Keras computes with; None: as the environment says
    keras_backend: str | None = None
    #: ranks of a worker
    n_processes: int = 1
    #: masters of a block: the top one and its sub-masters
    n_masters: int = 1
    #: the rest belongs to OptimizationDriver
    block_size: int = 1
    search: SearchOptions = SearchOptions()
    search_space: str | None = None
    #: values of parameters that are not to vary, by name, as they were written
    fix: Mapping[str, str] = field(default_factory=dict)
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: seconds that this start may take; None: any
    walltime_s: float | None = None


def pruning_for(
    plan: PruningPlan, comparison: Comparison, epochs: int, n_ranks: int, findings: Findings
) -> PruningPlan:
    """The plan for the model or objective of these findings; ConfigurationError where its epochs cannot be compared."""
    is_objective = findings.is_objective
    if is_objective and n_ranks == 1:
        raise ConfigurationError(
            f"`--pruner` needs a coordinator beside an objective, which answers its reports. Received: `--pruner "
            f"{plan.name}` on one rank; start two (`mpirun -np 2`) or leave it out."
        )
    if not comparison.is_of_epochs:
        raise ConfigurationError(
            f"`--pruner` needs a figure of merit that is measured after every epoch. Received: `--pruner {plan.name}` "
            f"with {findings.figure}; compare trials by a metric (`--objective val_loss:min`), or leave it out."
        )
    if findings.figure == "loss" and comparison.objectives == (DEFAULT,):
        raise ConfigurationError(
            f"`--pruner` compares what trials show in validation after each epoch. Received: `--pruner {plan.name}` "
            "without validation data; give `--val-data`, or leave it out."
        )
    if not is_objective and "train.epochs" not in findings.search_space.names:
        plan = replace(plan, max_epochs=plan.max_epochs or epochs)
    if plan.name == "hyperband" and plan.max_epochs is None:
        raise ConfigurationError(
            f"`--pruner hyperband` must know the epochs of a whole training. Received: "
            f"{'an objective' if is_objective else 'a search space with train.epochs'}; give `--pruner-max-epochs`."
        )
    halves = plan.name != "median"
    least = plan.min_epochs * plan.eta if halves else plan.min_epochs + 1
    if plan.max_epochs is not None and plan.max_epochs < least:
        raise ConfigurationError(
            f"`--pruner {plan.name}` needs {least} epochs at least to give up a trial before its last one. Received: "
            f"{plan.max_epochs}; raise `--epochs`, or lower `--pruner-min-epochs`{' or `--pruner-eta`' * halves}."
        )
    return replace(plan, pauses=not is_objective)


def with_walltime(budget: Budget, walltime_s: float | None, began_at_s: float) -> Budget:
    """The budget of a start that began at `began_at_s` (seconds since the first start) with this walltime, if any."""
    if walltime_s is None:
        return budget
    return replace(budget, deadline_s=began_at_s + walltime_s, end_s=end_of(walltime_s))


def check_objectives(comparison: Comparison, metrics: tuple[str, ...]) -> None:
    """ConfigurationError for an objective that a fold with these metrics does not have."""
    for objective in comparison.objectives:
        if objective.name not in metrics and objective.name not in MEASURED:
            raise ConfigurationError(
                f"`--objective` must name one of {', '.join((*metrics, *MEASURED))}. Received: {objective.name!r}."
            )


def budget_text(budget: Budget, walltime_s: float | None) -> str:
    """What ends the search besides its trials, in words; empty where nothing does."""
    parts = []
    if budget.timeout_s is not None:
        parts.append(f"{budget.timeout_s:g} s of searching")
    if walltime_s is not None:
        parts.append(f"{walltime_s:g} s of walltime")
    if budget.n_without_improvement is not None:
        parts.append(f"{budget.n_without_improvement} trials without improvement")
    return ", or ".join(parts)
