"""Others' searches for `curves.py`: asked and told in virtual time, on the same tasks, with the same costs.

`OneEpoch` is a rule of others for our coordinator.

`curves.py --methods syne-asha` wants a Python that has `syne-tune` (0.16; for `syne-mobster` 0.13 with `gpsearchers`)
beside `onnxruntime`, and the methods of Optuna want `optuna`. Virtual environments of their own serve, with this
checkout in PYTHONPATH. All have their defaults. These searches stop trials rather than pause them. A search works on
one request after another, whose CPU time is charged: to the block that waits for a point, or for the word that its
trial is stopped.
"""

import heapq
import itertools
import logging
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from curve_tasks import N_EPOCHS, START_S, Reported, Run, Task

from nnlo_opt.core.search.curves import Reports
from nnlo_opt.core.search.pruners import Brackets, SuccessiveHalving
from nnlo_opt.core.search.pruning import Decision, Verdict
from nnlo_opt.space import Point


class OneEpoch(SuccessiveHalving):
    """One epoch for all, then the best few to the end (arXiv:2404.04111): `n_first` trials, and then as time allows."""

    def __init__(self, n_first: int) -> None:
        super().__init__(Brackets(epochs=((1,),), cycle=(0,)), eta=1)
        self._n_first = n_first

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        n_rungs = reports.n_rungs(trial)
        return Decision(Verdict.GO_ON if n_rungs else Verdict.PAUSE, n_rungs)

    def _passing(self, standing: list[tuple[float, int]]) -> set[int]:
        return {trial for _, trial in standing} if len(standing) >= self._n_first else set()


class Peer(Protocol):
    """Suggests points of the unit cube; trials have numbers from 0."""

    def ask(self, trial: int) -> list[float]: ...

    def goes_on(self, trial: int, epoch: int, value: float) -> bool:
        """Take the value of an epoch; False: the trial is stopped, or was complete."""
        ...


class _SyneTune:
    #: its name for what counts epochs
    attribute = "time_attr"

    def __init__(self, name: str, n_parameters: int, seed: int) -> None:
        from syne_tune.backend.trial_status import Trial
        from syne_tune.config_space import uniform
        from syne_tune.optimizer import baselines

        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        self._make_trial = Trial
        self._trials: list[Any] = []
        space = {f"x{i}": uniform(0.0, 1.0) for i in range(n_parameters)}
        kind = getattr(baselines, name)
        options = {"metric": "error", self.attribute: "epoch", "max_t": N_EPOCHS, "random_seed": seed}
        self._scheduler = kind(space, **options)

    def _suggest(self, trial: int) -> Any:
        return self._scheduler.suggest()

    def ask(self, trial: int) -> list[float]:
        config = self._suggest(trial).config
        self._trials.append(self._make_trial(trial_id=trial, config=config, creation_time=datetime.now()))
        self._scheduler.on_trial_add(self._trials[trial])
        return list(config.values())

    def goes_on(self, trial: int, epoch: int, value: float) -> bool:
        result = {"error": value, "epoch": epoch}
        if epoch == N_EPOCHS:
            self._scheduler.on_trial_complete(self._trials[trial], result)
            return False
        if self._scheduler.on_trial_result(self._trials[trial], result) == "STOP":
            self._scheduler.on_trial_remove(self._trials[trial])
            return False
        return True


class _OldSyneTune(_SyneTune):
    """Syne Tune up to 0.13, the last that has MOBSTER; it minimises, too."""

    attribute = "resource_attr"

    def _suggest(self, trial: int) -> Any:
        return self._scheduler.suggest(trial)


class _Optuna:
    def __init__(self, name: str, n_parameters: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.HyperbandPruner(1, N_EPOCHS, 3) if name == "hyperband" else optuna.pruners.NopPruner()
        # The name decides on the brackets of the trials.
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(study_name=f"seed {seed}", sampler=sampler, pruner=pruner)
        self._space = {f"x{i}": optuna.distributions.FloatDistribution(0.0, 1.0) for i in range(n_parameters)}
        self._trials: list[Any] = []
        self._pruned = optuna.trial.TrialState.PRUNED

    def ask(self, trial: int) -> list[float]:
        self._trials.append(self._study.ask(self._space))
        return list(self._trials[trial].params.values())

    def goes_on(self, trial: int, epoch: int, value: float) -> bool:
        self._trials[trial].report(value, epoch)
        if epoch == N_EPOCHS:
            self._study.tell(self._trials[trial], value)
        elif self._trials[trial].should_prune():
            self._study.tell(self._trials[trial], state=self._pruned)
        else:
            return True
        return False


METHODS: dict[str, tuple[Callable[[str, int, int], Peer], str]] = {
    "syne-asha": (_SyneTune, "ASHA"),
    "syne-asha-cqr": (_SyneTune, "ASHACQR"),
    "syne-mobster": (_OldSyneTune, "MOBSTER"),
    "optuna-tpe": (_Optuna, "none"),
    "optuna-tpe-hyperband": (_Optuna, "hyperband"),
}


def search(run: Run, task: Task, budget_s: float) -> Reported:
    """One search of a peer; the arguments and the result are those of `curves.search`."""
    warnings.simplefilter("ignore")
    make, name = METHODS[run.method]
    peer = make(name, len(task.space.names), run.seed)
    points: list[Point] = []
    reported: list[tuple[float, int, float]] = []
    free_at_s = 0.0  # the time at which the search has answered all requests
    order = itertools.count()
    #: (time, order, trial, epoch that ends then); epoch 0: a block is idle
    events = [(0.0, next(order), 0, 0) for _ in range(run.n_blocks)]
    while events[0][0] < budget_s:
        now_s, _, trial, epoch = heapq.heappop(events)
        began_s = time.process_time()
        if epoch == 0:
            trial = len(points)
            points.append(task.space.from_unit(peer.ask(trial)))
            goes_on = True
        else:
            value = task.observed(points[trial], run.noise_seed)[epoch - 1]
            reported.append((now_s, trial, value))
            began_s = time.process_time()
            goes_on = peer.goes_on(trial, epoch, value)
        free_at_s = max(free_at_s, now_s) + time.process_time() - began_s
        if goes_on:
            begins_s = now_s if epoch else free_at_s + START_S
            due_s, *what = begins_s + float(task.curve(points[trial])[1][epoch]), trial, epoch + 1
        else:
            due_s, *what = free_at_s, 0, 0
        heapq.heappush(events, (due_s, next(order), *what))
    return reported, points
