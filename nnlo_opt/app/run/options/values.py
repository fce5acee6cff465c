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
#: options of some search algorithms only: name in `make_search` -> name on the command line
SEARCH_OPTIONS = {
    "surrogate": "--surrogate", "acquisition": "--acquisition",
    "population": "--ga-populations", "grid_points": "--grid-points",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Source of the samples; None stands for what the model module says."""

    train_data: Path | None = None
    val_data: Path | None = None
    #: the saved model is measured on it at the end
    test_data: Path | None = None
    #: True to train on the validation data, too, and validate nothing
    pooled: bool = False
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = BY_NAME["fold_by"].default
    #: compare the data files with the checksums beside their lists before anything trains
    verify_data: bool = False
    #: True if data files may lead to other files; files are not copied then, as a copy would lead to none
    external_data: bool = False
    #: folder for copies of data files; None to read them in place
    cache: Path | None = None
    #: words of the command that copies a file, two with `{}`; None if this process copies
    copy_command: tuple[str, ...] | None = None
    #: bytes of samples that a rank may hold; None for a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows of samples read ahead if samples are not held in memory
    n_ahead: int = BY_NAME["preload_data"].default
    class_weights: ClassWeights | None = None
    #: data set with a weight for each sample
    sample_weights_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Search algorithm with its options; None stands for the default of the algorithm."""

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
    #: runs, studies and tables whose trials the search learns from; a text is the URL of a storage of Optuna
    warm_start: tuple[Path | str | Earlier, ...] = ()

    def __post_init__(self) -> None:
        for name, option in SEARCH_OPTIONS.items():
            if getattr(self, name) is not None and name not in options_of(self.algorithm):
                owner = next(owner for owner in search_names() if name in options_of(owner))
                raise ConfigurationError(
                    f"`{option}` is an option of `--hyper-opt {owner}`. Received: `--hyper-opt "
                    f"{custom_name(self.algorithm)}`; drop `{option}`, or choose {owner}."
                )
        if self.population == 1:
            raise ConfigurationError(
                "`--ga-populations` must be at least 2, as a child has two parents. Received: 1; leave it out for "
                f"{DEFAULT_POPULATION}."
            )

    def to_json(self) -> dict[str, object]:
        """Return everything that was given besides the algorithm, as plain data."""
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
    #: write only errors and the end to the terminal
    quiet: bool = False
    log_file: Path | None = None
    #: tools whose files are kept up to date while the run goes on
    mirror: tuple[str, ...] = ()
    #: command for a shell that the end of the run starts
    on_end: str | None = None
    command_line: tuple[str, ...] = ()
    #: name of the command, if it is not the driver's own
    program: str = ""
    gpus: GpuRequest = GpuRequest()  # noqa: RUF009  (frozen)
    #: record the load of each worker on its machine
    monitor: bool = False
    #: write the activity of every rank over time
    timeline: bool = False
    #: seconds after SIGUSR1 in which the start must have ended
    grace_s: float = GRACE.default
    #: seconds without progress after which a rank is ended; 0 if it is not watched
    hang_timeout_s: float = BY_NAME["hang_timeout"].default
    #: sentences for the user about options that were given
    remarks: tuple[str, ...] = ()
    #: library the model is made with; None to read it from its module
    backend: str | None = None
    #: library Keras computes with; None to take it from the environment
    keras_backend: str | None = None
    #: begin a saved Keras model with weights of its own
    fresh_weights: bool = False
    #: pruner of one's own (`engine.search.custom`), which `plan` has the name of
    custom_pruner: str | Pruner | None = None
    #: SHA-256 of a model that only an earlier run names (`engine.models.builders.open_model`); None if the user names
    #: it
    model_sha256: str | None = None
    #: False in a run begun by a version that took nothing from the `compile` of a model
    follows_compile: bool = True
    #: ranks of each worker
    n_processes: int = 1
    #: masters of a block: the top master and its sub-masters
    n_masters: int = 1
    #: ranks of a block; this and all below are for OptimizationDriver
    block_size: int = 1
    search: SearchOptions = SearchOptions()
    search_space: str | None = None
    #: scripts that are the objective; None: there is a model
    command: Command | None = None
    #: parameters with a fixed value: name -> value as text
    fix: Mapping[str, str] = field(default_factory=dict)
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: number of the best trials whose weights are kept; None: all trials
    keep_weights: int | None = None
    #: seconds that this start may take; None without a limit
    walltime_s: float | None = None
    #: reason for the algorithm of the search, if `auto` has chosen it; else empty
    hyper_opt_because: str = ""

    @property
    def names_objective(self) -> bool:
        """True if a trial is a command, or a call of an objective, as far as the text of the module tells."""
        return self.command is not None or names_objective(self.model)

    @property
    def of_teams(self) -> TeamOptions:
        """Options by which ranks are dealt out within every team."""
        return {
            "n_masters": self.n_masters,
            "ranks_per_worker": self.n_processes,
            "every_rank_trains": self.training.rule.averages_every_batch,
        }


def budget_text(budget: Budget, walltime_s: float | None) -> str:
    """Return the limits of time and patience in words; empty if there are none."""
    limits = (
        ("{:g} s of searching", budget.timeout_s),
        ("{:g} s of walltime", walltime_s),
        ("{} trials without improvement", budget.n_without_improvement),
    )
    return ", or ".join(text.format(limit) for text, limit in limits if limit is not None)
