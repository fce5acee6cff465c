"""Settings of a manager, and the options derived from them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nnlo_opt.ancestors.manager.algo import Algo
from nnlo_opt.ancestors.manager.data import Data, H5Data
from nnlo_opt.ancestors.manager.model import ModelBuilder
from nnlo_opt.app.run.options.checks import check_teams
from nnlo_opt.app.run.options.space_checks import check_training
from nnlo_opt.app.run.options.values import DataOptions, Options
from nnlo_opt.core.base.errors import ConfigurationError, check_whole
from nnlo_opt.core.comm.topology import Team, Topology, plan_single_block
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials.run_directory import RunRequest
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.engine.data.lists import located, read_list

# fmt: off
#: argument of a manager -> option of another name
ALIASES = {
    "NFolds": "n_fold", "num_epochs": "epochs", "num_masters": "n_masters", "num_process": "n_processes",
    "num_processes": "n_processes",
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Arguments of a manager, under the names of options; with `n_fold` 1 the lists are used as given."""

    data: Data
    algo: Algo
    model_builder: ModelBuilder
    epochs: int
    train_list: tuple[str, ...]
    val_list: tuple[str, ...]
    n_masters: int
    n_processes: int
    synchronous: bool
    verbose: bool
    custom_objects: Mapping[str, Any] | None
    early_stopping: str | None
    target_metric: str | None
    monitor: bool
    checkpoint: str | Path | None
    checkpoint_interval: int
    seed: int
    callbacks: Sequence[Any] = ()
    n_fold: int = 1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Settings":
        """Return the settings from `locals()` of a constructor."""
        named = {ALIASES.get(name, name): value for name, value in given.items()}
        lists = {name: _files(given[name]) for name in ("train_list", "val_list")}
        return cls(**{f.name: named[f.name] for f in fields(cls) if f.name in named} | lists)

    @property
    def files_to_validate(self) -> tuple[str, ...]:
        """Files to validate on; with folds none, as they are pooled with `train_list`."""
        return self.val_list if self.algo.validates or self.n_fold > 1 else ()

    def topology(self, n_ranks: int) -> Topology:
        """Return the topology of a world of `n_ranks`; ConfigurationError if roles cannot be assigned."""
        n_masters, n_processes, names = self.n_masters, self.n_processes, ("num_masters", "num_processes")
        for name in names:
            check_whole(name, getattr(self, ALIASES[name]))
        check_teams(plan_single_block(n_ranks, n_fold=self.n_fold), n_masters, n_processes, names)
        has_masters = not RULES[self.algo.mode].averages_every_batch
        if n_processes > 1 and not has_masters:
            raise ConfigurationError(
                "`num_processes` above 1 needs a master with ranks beside it. Received: "
                f"{n_processes} with {n_ranks} ranks in mode {self.algo.mode}; leave it out."
            )
        if n_masters > 1 and not has_masters:
            raise ConfigurationError(
                f"`num_masters` must be 1 in mode allreduce, which has no masters. Received: {n_masters}."
            )
        return plan_single_block(
            n_ranks,
            self.n_fold,
            n_masters=n_masters,
            ranks_per_worker=n_processes,
            every_rank_trains=not has_masters,
        )

    def options(self, team: Team) -> Options:
        """Return the options of a rank of `team`; ConfigurationError for contradictory options."""
        if not isinstance(self.data, Data):
            raise ConfigurationError(
                f"`data` must be of a class derived from Data. Received: {type(self.data).__name__}."
            )
        n_workers = min(team.n_children)  # the top master treats a sub-master as one worker
        training = self.algo.options(
            n_workers=n_workers,
            batch=self.data.batch_size,
            epochs=self.epochs,
            synchronous=self.synchronous or None,
            early_stopping=self.early_stopping,
            target_metric=self.target_metric,
            checkpoint_interval=self.checkpoint_interval,
        )
        check_training(training)
        training.rule.check_workers(training.of_rules, n_workers)
        name = type(self.model_builder).__name__
        folder = Path(self.checkpoint or name).resolve()
        run = RunRequest(
            root=folder.parent,
            name=folder.name,
            restore=True,
            restore_option="checkpoint",
            may_change=frozenset(training.to_json()),  # a training in a user's folder resumes with any options
            is_folder=True,
        )
        return Options(
            model=name,
            training=training,
            run=run,
            data=DataOptions(n_ahead=max(1, self.data.preloading)) if isinstance(self.data, H5Data) else DataOptions(),
            seed=self.seed,
            monitor=self.monitor,
            n_processes=self.n_processes,
            n_masters=self.n_masters,
            plan=SearchPlan(num_iterations=1, n_fold=self.n_fold),
        )


def _files(given: Iterable[str | Path] | str | Path) -> tuple[str, ...]:
    """Return the names in a list; a single path is that of a list file."""
    if isinstance(given, str | Path):
        return tuple(map(str, read_list(given)))
    return tuple(located(str(name)) for name in given)
