"""What `MPIManager` and `MPIKFoldManager` are both made of."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.api.recipe import FileTasks, GeneratedTasks, ModelMaker, Request, Tasks, count, cut_pools, reads_files
from nnlo_opt.api.settings import Settings
from nnlo_opt.api.team import Ranks, Team, abort_on_error, check_outcome
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm.messages import EpochReported
from nnlo_opt.data.generated import Pool
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.reporting.lines import metrics_text
from nnlo_opt.runtime.monitor import make_monitor
from nnlo_opt.training.history import in_reference_form
from nnlo_opt.update_rules.registry import RULES


class Manager:
    """The folds of a training on the ranks of a communicator, from its arguments to the trained model."""

    def __init__(self, comm: Any, settings: Settings) -> None:
        data, algo, model_builder = settings.data, settings.algo, settings.model_builder
        n_fold, num_processes = settings.n_fold, settings.num_processes
        self._settings = settings
        self.data, self.algo, self.model_builder = data, algo, model_builder
        self.num_epochs, self.num_masters, self.num_processes = settings.num_epochs, settings.num_masters, num_processes
        self.train_list = tuple(str(name) for name in settings.train_list)
        self.val_list = tuple(str(name) for name in settings.val_list)
        self.synchronous, self.verbose = settings.synchronous, settings.verbose
        self.callbacks = list(settings.callbacks)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        #: what came of every fold; None before the training is over
        self._outcomes: list[dict[str, Any]] | None = None
        #: of the best fold
        self._trained = np.empty(0, np.float32), np.empty(0, np.float32)
        self._best_fold = 0
        self._adapter: Any = None
        self._world = Ranks(comm)
        self._forgive: Callable[[], None] = lambda: None
        if self._world.comm is not None:
            self._forgive = abort_on_error(self._world.comm)
        self._n_fold = n_fold
        #: groups of ranks that train folds at the same time
        self._n_teams = n_fold if n_fold > 1 and self._world.size >= 2 * n_fold else 1
        self._team_number = self._world.rank * self._n_teams // self._world.size
        self._ranks = self._world if self._n_teams == 1 else self._world.split(self._team_number)
        #: whether this rank gives the orders
        self.is_master = self._ranks.rank == 0
        self.should_validate = self.is_master
        plan = self._world.attempt(lambda: settings.plan(self._ranks.size))
        trains_all = RULES[algo.mode].averages_every_batch
        trainers = set(plan.trainer_ranks(every_rank=trains_all))
        #: workers of this rank's team, and the number of this one from 1; -1 on a master
        self.num_workers = plan.n_workers(every_rank=trains_all)
        self.worker_id = -1 if self.is_master else plan.worker_of(self._ranks.rank)

        def make_request() -> Request:
            return Request(
                data=data,
                algo=algo,
                model_builder=model_builder,
                train_list=self.train_list,
                val_list=self.val_list if algo.validates or n_fold > 1 else (),
                options=settings.training_options(plan),
                n_fold=n_fold,
                custom_objects=dict(settings.custom_objects or {}) | getattr(model_builder, "custom_objects", {}),
                seed=settings.seed,
                n_shares=len(trainers),
            )

        self._request = self._world.attempt(make_request)
        masters = {plan.master_rank, *plan.sub_master_ranks}
        share = self._ranks.node_share(trainers, masters)
        share.take()
        self._maker = ModelMaker(self._request, share.n_threads)
        self._gathers_ahead = share.has_spare_core
        #: made when it is wanted on a rank that does not train
        self._tasks: Tasks | None = None
        self._make_tasks = self._world.attempt(lambda: self._prepare(sorted(trainers)))
        gauges = make_monitor(SystemClock(), share.gpu) if settings.monitor and self._ranks.rank in trainers else None
        self._team = Team(self._ranks, plan, self._request.options, self._get_tasks, gauges)
        if self.callbacks and self._ranks.rank == plan.first_trainer_rank:
            self._team.callbacks = self._make_callbacks()
        if self.is_master:
            self._open_directory()
        else:
            self._team.serve()
            self._conclude([])

    # ------------------------------------------------------------ the data

    def _prepare(self, trainers: list[int]) -> Callable[[], Tasks]:
        """Look at the data, together with the team; -> what makes this rank's tasks."""
        request, ranks = self._request, self._ranks
        if reads_files(request.data):

            def of_files() -> FileTasks:
                return FileTasks(request, self._maker, gathers_ahead=self._gathers_ahead)

            tasks = ranks.attempt(lambda: of_files() if ranks.rank in trainers else None)
            return lambda: tasks or of_files()
        train, validation = cut_pools(request)
        index = trainers.index(ranks.rank) if ranks.rank in trainers else None

        def count_mine() -> np.ndarray:
            if index is not None and train.by_files:
                return count(request.data, train, range(index, len(train.files), len(trainers)))
            if index == 0:
                return count(request.data, train)
            return np.zeros(len(train.files) if train.by_files else 0, np.int64)

        mine = ranks.attempt(count_mine)
        length = ranks.sum(np.array([0 if train.by_files else len(mine)], np.int64))[0] or len(mine)
        mine.resize(int(length), refcheck=False)
        train = replace(train, sizes=tuple(ranks.sum(mine).tolist()))
        ranks.attempt(lambda: _check_shares(request, train) if ranks.rank == 0 else None)
        return lambda: GeneratedTasks(request, self._maker, train, validation)

    def _get_tasks(self) -> Tasks:
        self._tasks = self._tasks or self._make_tasks()
        return self._tasks

    # ------------------------------------------------------------ the training

    def _train(self) -> list[dict[str, Any]]:
        """What came of every fold; on the master it is trained by the first call. TrialError if one has failed."""
        if self._outcomes is None:
            folds = list(range(self._team_number, self._n_fold, self._n_teams))
            self._conclude(self._team.train(folds, calls_back=bool(self.callbacks)))
        assert self._outcomes is not None
        for outcome in self._outcomes:
            check_outcome(outcome)
        return self._outcomes

    def _conclude(self, outcomes: list[dict[str, Any]]) -> None:
        """Tell all ranks what came of it, and let go of what training needs. Collective: every rank."""
        self._team.close()
        roots = [-(-number * self._world.size // self._n_teams) for number in range(self._n_teams)]
        of_teams = [self._world.share_json({"outcomes": outcomes, "root": root}, root) for root in roots]
        found = [(outcome, part["root"]) for part in of_teams for outcome in part["outcomes"]]
        self._outcomes = sorted((outcome for outcome, _ in found), key=lambda outcome: outcome["fold"])
        good = [(o["figure_of_merit"], o["fold"], root) for o, root in found if "error" not in o]
        if good:
            _, self._best_fold, root = min(good)
            weights, state = None, None
            if self._world.rank == root:
                weights, state = self._team.weights_of(self._best_fold)
            self._trained = self._world.share(weights, root), self._world.share(state, root)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _open_directory(self) -> None:
        self._team.on_epoch = self._tell
        if self._settings.checkpoint is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nnlo_opt-")
            self._team.directory = Path(self._temporary.name)
        else:
            self._team.directory = Path(self._settings.checkpoint).resolve()
            self._team.keeps_checkpoints = True

    def _make_callbacks(self) -> Any:
        from nnlo_opt.models.keras_callbacks import KerasCallbacks

        return KerasCallbacks(self.callbacks, self.num_epochs)

    def _tell(self, reported: EpochReported) -> None:
        if self.verbose:
            of_fold = f"fold {reported.assignment}, " if self._n_fold > 1 else ""
            print(f"{of_fold}epoch {reported.epoch}/{self.num_epochs}: {metrics_text(reported.metrics)}", flush=True)

    # ------------------------------------------------------------ what is left

    @property
    def model(self) -> Any:
        """The trained model, on any rank: built anew, with the trained weights. With folds, that of the best one."""
        return self._trained_adapter().synced_model()

    def save(self, path: str | Path) -> None:
        """Write the trained model: Keras's format for a path that ends in .keras. Rank 0 writes, others do nothing."""
        if self._world.rank == 0:
            adapter = self._trained_adapter()
            try:
                adapter.save(Path(path))
            except ValueError as error:
                reason = str(error).splitlines()[0]
                raise ConfigurationError(f"The model cannot be saved as {path}: {reason}") from error

    def close(self) -> None:
        """Let go of communicators and copied files; an untrained manager's workers are told to leave."""
        if self._outcomes is None:
            self._conclude(self._team.train([], calls_back=False))
        if self._adapter is not None:
            self._adapter.release()
            self._adapter = None
        self.data.finalize()
        if self._ranks is not self._world:
            self._ranks.close()
        self._world.close()
        self._forgive()

    def free_comms(self) -> None:
        """As `close`."""
        self.close()

    def _trained_adapter(self) -> Any:
        if self._adapter is None:
            if not len(self._trained[0]):
                raise ConfigurationError("There is no trained model yet. Call `train` first.")
            self._adapter = self._maker.build(*self._get_tasks().sample(), self._request.options, self._request.seed)
            self._adapter.write_weights(self._trained[0])
            self._adapter.write_state(self._trained[1])
        return self._adapter

    def _history_of(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**self._request.options.to_json(), **self.algo.get_config()}
        return {**in_reference_form(outcome["history"], self._ranks.size), "args": arguments}


def _check_shares(request: Request, train: Pool) -> None:
    """ConfigurationError where a worker would have nothing to train on."""
    n_fold = request.n_fold
    for fold in range(n_fold):
        pool = train if n_fold == 1 else train.deal(n_fold, set(range(n_fold)) - {fold})
        if not pool.n_samples or not all(
            pool.deal(request.n_shares, {share}).n_samples for share in range(request.n_shares)
        ):
            unit = "file with samples" if train.by_files else "batch"
            raise ConfigurationError(
                f"Every worker must have at least one {unit}. Received: {len(pool.sizes or ())} for {request.n_shares} "
                f"workers{' in a fold' * (n_fold > 1)}. Take fewer ranks, or give more data."
            )
