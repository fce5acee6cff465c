"""Options of a command as frozen values, validated when they are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnlo_opt.app.run.options.table import (
    BY_NAME,
    GRACE,
    SEED,
    TRIAL_NAME,
)
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.comm.topology import TeamOptions
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.data.weights import ClassWeights
from nnlo_opt.core.search.base import SearchAlgorithm
from nnlo_opt.core.search.genetic import DEFAULT_POPULATION
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.search.warm_start import Earlier
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.core.trials.run_directory import RunRequest
from nnlo_opt.engine.models.builders import names_objective
from nnlo_opt.engine.objective.command import Command
from nnlo_opt.engine.runtime.devices import GpuRequest
from nnlo_opt.engine.search.custom import custom_name
from nnlo_opt.engine.search.registry import options_of, search_names

# fmt: off
#: options of some search algorithms only: name in `make_search` -> name of the option
SEARCH_OPTIONS = {
    "surrogate": "surrogate", "acquisition": "acquisition",
    "population": "ga_populations", "grid_points": "grid_points",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Source of the samples; None for what the model module defines."""

    train_data: Path | None = None
    val_data: Path | None = None
    #: the saved model is evaluated on it at the end
    test_data: Path | None = None
    #: True to train on the validation data, too, without validation
    pooled: bool = False
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = BY_NAME["fold_by"].default
    #: True to compare the data files with the checksums beside their lists before training
    verify_data: bool = False
    #: True if data files may refer to other files; then they are not copied, because references would break
    external_data: bool = False
    #: folder for copies of data files; None to read them in place
    cache: Path | None = None
    #: words of the command that copies a file, two with `{}`; None if this process copies
    copy_command: tuple[str, ...] | None = None
    #: bytes of samples that a rank may keep in memory; None for a quarter of the node's free memory, divided among its
    #: ranks
    memory_bytes: int | None = None
    #: windows of samples read ahead if samples do not fit into memory
    n_ahead: int = BY_NAME["preload_data"].default
    class_weights: ClassWeights | None = None
    #: data set with a weight for each sample
    sample_weights_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Search algorithm and its options; None for the algorithm's default."""

    #: name, FILE.py:CLASS or an object (`engine.search.custom`)
    algorithm: str | SearchAlgorithm = BY_NAME["hyper_opt"].default
    surrogate: str | None = None
    acquisition: str | None = None
    #: trials of a generation of the genetic algorithm (`--ga-populations`)
    population: int | None = None
    #: values of a continuous parameter in a grid
    grid_points: int | None = None
    #: points to try first
    start_points: tuple[Point, ...] = ()
    #: runs, studies and tables whose trials the search learns from; a str is the URL of an Optuna storage
    warm_start: tuple[Path | str | Earlier, ...] = ()

    def __post_init__(self) -> None:
        for name, named in SEARCH_OPTIONS.items():
            if getattr(self, name) is not None and name not in options_of(self.algorithm):
                owner = next(owner for owner in search_names() if name in options_of(owner))
                option, asked = spelled(named), spelled("hyper_opt", custom_name(self.algorithm))
                raise ConfigurationError(
                    f"`{option}` is {either('an option', 'an argument')} of `{spelled('hyper_opt', owner)}`. Received: "
                    f"`{asked}`; drop `{option}`, or choose {owner}."
                )
        if self.population == 1:
            raise ConfigurationError(
                f"`{spelled('ga_populations')}` must be at least 2, because a child has two parents. Received: 1; "
                f"leave it out for {DEFAULT_POPULATION}."
            )

    def to_json(self) -> dict[str, object]:
        """Return all given options except the algorithm, as plain data."""
        given = {name: value for name in SEARCH_OPTIONS if (value := getattr(self, name)) is not None}
        return {**given, "start_points": list(self.start_points)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of a driver."""

    #: empty if there is a command
    model: str
    training: TrainingOptions
    run: RunRequest
    data: DataOptions = DataOptions()
    #: name in the history files
    trial_name: str = TRIAL_NAME
    #: parameters of the model in a training
    point: Point = field(default_factory=dict)
    #: JSON of the parameters of `point` that have tuples among their categories
    with_tuples: Sequence[dict[str, Any]] = ()
    seed: int = SEED.default
    log_level: str = "info"
    #: print only errors and the final summary
    quiet: bool = False
    log_file: Path | None = None
    #: tools whose files are updated during the run
    mirror: tuple[str, ...] = ()
    #: shell command to run at the end of the run
    on_end: str | None = None
    command_line: tuple[str, ...] = ()
    #: name of the command, if not the driver's own
    program: str = ""
    gpus: GpuRequest = GpuRequest()  # noqa: RUF009  (frozen)
    #: record the load of each worker
    monitor: bool = False
    #: write the activity of every rank over time
    timeline: bool = False
    #: seconds after SIGUSR1 within which the start must end
    grace_s: float = GRACE.default
    #: seconds without progress after which a rank is killed; 0 for never
    hang_timeout_s: float = BY_NAME["hang_timeout"].default
    #: remarks for the user about given options
    remarks: tuple[str, ...] = ()
    #: framework of the model; None to determine it from the module
    backend: str | None = None
    #: backend of Keras; None for that of the environment
    keras_backend: str | None = None
    #: re-initialise the weights of a saved Keras model
    fresh_weights: bool = False
    #: custom pruner (`engine.search.custom`), named in `plan`
    custom_pruner: str | Pruner | None = None
    #: SHA-256 of a model given only by an earlier run (`engine.models.builders.open_model`); None if given by the user
    model_sha256: str | None = None
    #: False in a run begun by a version that took nothing from the `compile` of a model
    follows_compile: bool = True
    #: False in a run begun by a version that took no metrics from a model
    follows_metrics: bool = True
    #: False in a run begun by a version that ran no optimizer of a framework
    follows_optimizer: bool = True
    #: ranks per worker
    n_processes: int = 1
    #: masters per block: the top master and its sub-masters
    n_masters: int = 1
    #: ranks of a block; this and all below are for OptimizationDriver
    block_size: int = 1
    search: SearchOptions = SearchOptions()
    search_space: str | None = None
    #: script that is the objective; None if there is a model
    command: Command | None = None
    #: parameters with a fixed value: name -> value as text
    fix: Mapping[str, str] = field(default_factory=dict)
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: number of best trials whose weights are kept; None for all
    keep_weights: int | None = None
    #: time limit of this start in seconds; None without one
    walltime_s: float | None = None
    #: seconds after which a silent job counts as gone in a run that other jobs may share; None for a run of its own
    join_s: float | None = None
    #: why `auto` chose the algorithm; empty if the user chose it
    hyper_opt_because: str = ""

    @property
    def names_objective(self) -> bool:
        """True if a trial is a command, or, judging from the module's text, a call of an objective."""
        return self.command is not None or names_objective(self.model)

    @property
    def joins(self) -> bool:
        """True if other jobs may share the run."""
        return self.join_s is not None

    @property
    def of_teams(self) -> TeamOptions:
        """Options for assigning roles within every team."""
        return {
            "n_masters": self.n_masters,
            "ranks_per_worker": self.n_processes,
            "every_rank_trains": self.training.rule.averages_every_batch,
        }


def budget_text(budget: Budget, walltime_s: float | None) -> str:
    """Describe the limits of time and patience; empty if there are none."""
    limits = (
        ("{:g} s of searching", budget.timeout_s),
        ("{:g} s of walltime", walltime_s),
        ("{} trials without improvement", budget.n_without_improvement),
    )
    return ", or ".join(text.format(limit) for text, limit in limits if limit is not None)
