"""Search engines of others that want environments of their own: see `search.py --engine-python`."""

import random
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from search_scores import Told

from nnlo_opt.space import Categorical, Integer, Parameter, Point, Real, Space


@dataclass(frozen=True)
class Setup:
    """What an engine is made for."""

    space: Space
    seed: int
    n_losses: int = 1
    #: evaluations of the whole search
    n_evaluations: int = 60
    #: trials that are pending at the same time
    n_pending: int = 4

    @property
    def plain_space(self) -> Space:
        """The space without likely values, so that quantiles are positions on the scale of a parameter."""
        return Space(
            replace(parameter, likely=None) if isinstance(parameter, Real | Integer) else parameter
            for parameter in self.space.parameters
        )


def active(space: Space, values: Mapping[str, Any]) -> Point:
    """The point of an engine that knows no conditions, without the parameters that are absent from it."""
    return space.from_unit(space[name].to_unit(values[name]) for name in space.names)


def filled(space: Space, point: Point) -> Point:
    """The opposite: every parameter has a value, absent ones that in the middle."""
    return {p.name: point[p.name] if p.name in point else p.from_unit(0.5) for p in space.parameters}


class Recorded(ABC):
    """An engine that makes each suggestion from all trials so far."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.space = setup.plain_space
        self.points: list[Point] = []
        self.told: dict[int, Told | None] = {}

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        self.points += points
        self.told.update(enumerate(told))

    def ask(self) -> Point:
        self.points.append(active(self.space, self.suggestion()))
        return self.points[-1]

    def tell(self, trial: int, told: Told | None) -> None:
        self.told[trial] = told

    def values(self) -> dict[int, tuple[float, ...]]:
        """Losses of all ended trials; one that failed has the worst, or is left out where no other has ended yet."""
        known = [its.losses for its in self.told.values() if its is not None]
        worst = tuple(max(column) for column in zip(*known, strict=True))
        return {trial: its.losses if its else worst for trial, its in sorted(self.told.items()) if its or worst}

    @abstractmethod
    def suggestion(self) -> Mapping[str, Any]:
        """A value for each parameter, those that conditions make absent included."""


class BoTorch(Recorded):
    """Noisy expected improvement as BoTorch's users have it by Ax, with BoTorch's priors.

    A `SingleTaskGP` on positions and one column a category; `qLogNoisyExpectedImprovement`, of two losses
    `qLogNoisyExpectedHypervolumeImprovement` with an inferred reference; `optimize_acqf` with 128 raw samples and 4
    restarts, whose result is rounded to integers and categories. Ax's number of Sobol points come first. The errors of
    folds are told as the noise; absent parameters are in the middle.
    """

    _RAW_SAMPLES, _RESTARTS = 128, 4

    def __init__(self, name: str, setup: Setup) -> None:
        import torch

        super().__init__(setup)
        torch.set_num_threads(1)
        torch.manual_seed(setup.seed)
        warnings.simplefilter("ignore")
        n = len(self.space.parameters)
        n_initial = max(5, min(setup.n_evaluations // 5, 2 * n))
        engine = torch.quasirandom.SobolEngine(n, scramble=True, seed=setup.seed)
        self._design = engine.draw(n_initial).tolist()

    def suggestion(self) -> Mapping[str, Any]:
        values = self.values()
        if len(self.points) < len(self._design) or len(values) < 2:
            unit = self._design[len(self.points) % len(self._design)]
            return {p.name: p.from_unit(position) for p, position in zip(self.space.parameters, unit, strict=True)}
        numbers = iter(self._optimised(self._acquisition(values)))
        found = {}
        for p in self.space.parameters:
            if isinstance(p, Categorical):
                found[p.name] = max((next(numbers), -i, category) for i, category in enumerate(p.categories))[-1]
            else:
                found[p.name] = p.from_unit(min(max(next(numbers), 0.0), 1.0))
        return found

    def _rows(self, trials: Sequence[int]) -> Any:
        import torch

        points = [filled(self.space, self.points[trial]) for trial in trials]
        return torch.tensor([[*self._columns(point)] for point in points], dtype=torch.double)

    def _columns(self, point: Point) -> Iterator[float]:
        for p in self.space.parameters:
            if isinstance(p, Categorical):
                yield from (float(category == point[p.name]) for category in p.categories)
            else:
                yield p.to_unit(point[p.name])

    def _acquisition(self, values: Mapping[int, tuple[float, ...]]) -> Any:
        import torch
        from botorch import fit_gpytorch_mll
        from botorch.acquisition.logei import qLogNoisyExpectedImprovement
        from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
        from botorch.models import ModelListGP, SingleTaskGP
        from botorch.utils.multi_objective.hypervolume import infer_reference_point
        from botorch.utils.multi_objective.pareto import is_non_dominated
        from gpytorch.mlls import ExactMarginalLogLikelihood

        x = self._rows([*values])
        y = -torch.tensor([*values.values()], dtype=torch.double)
        stds = [its.std if (its := self.told[trial]) else None for trial in values]
        noise = None if None in stds else torch.tensor(stds, dtype=torch.double).unsqueeze(-1) ** 2
        models = [SingleTaskGP(x, losses.unsqueeze(-1), train_Yvar=noise) for losses in y.T]
        for model in models:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        running = [trial for trial in range(len(self.points)) if trial not in self.told]
        pending = self._rows(running) if running else None
        if len(models) == 1:
            return qLogNoisyExpectedImprovement(models[0], x, X_pending=pending, prune_baseline=True)
        reference = infer_reference_point(y[is_non_dominated(y)])
        return qLogNoisyExpectedHypervolumeImprovement(
            ModelListGP(*models), reference, x, X_pending=pending, prune_baseline=True
        )

    def _optimised(self, acquisition: Any) -> list[float]:
        import torch
        from botorch.optim import optimize_acqf

        n = len([*self._columns(filled(self.space, self.points[0]))])
        bounds = torch.tensor([[0.0] * n, [1.0] * n], dtype=torch.double)
        found, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=self._RESTARTS, raw_samples=self._RAW_SAMPLES)
        return [float(number) for number in found[0]]


class Propulate(Recorded):
    """A propagator of Propulate on all ended trials, as each of its workers applies it.

    The genetic algorithm is its default, with twice as many individuals as workers, as in its tutorials. CMA-ES takes
    floats only: integers are rounded, categories are parts of the interval, and what is outside comes to the edge.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        from propulate.propagators import BasicCMA, CMAPropagator
        from propulate.utils import get_default_propagator

        super().__init__(setup)
        rng = random.Random(setup.seed)
        self._is_cma = name == "propulate-cma"
        self._limits = {p.name: (0.0, 1.0) if self._is_cma else self._of_ga(p) for p in self.space.parameters}
        self._individuals: list[Any] = []
        if self._is_cma:
            self._propagator = CMAPropagator(BasicCMA(), self._limits, rng=rng)
        else:
            self._propagator = get_default_propagator(2 * setup.n_pending, self._limits, rng=rng)

    @staticmethod
    def _of_ga(parameter: Parameter) -> tuple[Any, ...]:
        """Limits of a trait; floats and logarithmic integers by their position."""
        if isinstance(parameter, Categorical):
            return tuple(map(str, range(len(parameter.categories))))
        if isinstance(parameter, Integer) and parameter.prior == "uniform":
            return (parameter.low, parameter.high)
        return (0.0, 1.0)

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        from propulate.population import Individual

        super().preload(points, told)
        for point in points:
            traits = {p.name: self._trait(p, filled(self.space, point)[p.name]) for p in self.space.parameters}
            self._individuals.append(Individual(traits, self._limits))

    def _trait(self, parameter: Parameter, value: Any) -> Any:
        first = self._limits[parameter.name][0]
        if isinstance(first, str):
            return str(parameter.index(value))
        return value if isinstance(first, int) else parameter.to_unit(value)

    def suggestion(self) -> Mapping[str, Any]:
        parents = []
        for trial, (loss,) in self.values().items():
            self._individuals[trial].loss = loss
            parents.append(self._individuals[trial])
        self._individuals.append(self._propagator(parents))
        values = {}
        for parameter in self.space.parameters:
            trait = self._individuals[-1][parameter.name]
            if isinstance(trait, str):
                values[parameter.name] = parameter.categories[int(trait)]
            elif isinstance(trait, int):
                values[parameter.name] = min(max(trait, parameter.low), parameter.high)
            else:
                values[parameter.name] = parameter.from_unit(min(max(trait, 0.0), 1.0))
        return values


class Hebo(Recorded):
    """HEBO with its defaults; pending trials are unknown to it."""

    def __init__(self, name: str, setup: Setup) -> None:
        import torch
        from hebo.design_space.design_space import DesignSpace
        from hebo.optimizers.hebo import HEBO

        super().__init__(setup)
        torch.set_num_threads(1)
        torch.manual_seed(setup.seed)
        np.random.seed(setup.seed)  # what it draws from
        warnings.simplefilter("ignore")
        self._n_known = 0
        self._optimizer = HEBO(DesignSpace().parse([*map(self._described, self.space.parameters)]),
                               scramble_seed=setup.seed)  # fmt: skip

    @staticmethod
    def _described(parameter: Parameter) -> dict[str, Any]:
        if isinstance(parameter, Categorical):
            return {"name": parameter.name, "type": "cat", "categories": [*parameter.categories]}
        assert isinstance(parameter, Real | Integer)
        kind = {
            (False, False): "num",
            (False, True): "pow",
            (True, False): "int",
            (True, True): "pow_int",
        }[isinstance(parameter, Integer), parameter.prior == "log-uniform"]
        return {"name": parameter.name, "type": kind, "lb": parameter.low, "ub": parameter.high, "base": 10}

    def suggestion(self) -> Mapping[str, Any]:
        import pandas as pd

        values = self.values()
        if len(values) > self._n_known:  # known trials keep their values, but what failed has a worse one with time
            rows = pd.DataFrame([filled(self.space, self.points[trial]) for trial in values])
            self._optimizer.X = self._optimizer.X.iloc[:0]
            self._optimizer.y = np.zeros((0, 1))
            self._optimizer.observe(rows[self._optimizer.space.para_names], np.array([*values.values()]))
            self._n_known = len(values)
        row = self._optimizer.suggest(1).iloc[0].to_dict()
        return {p.name: _within(p, row[p.name]) for p in self.space.parameters}


class Smac:
    """SMAC3's facade for hyperparameters with its defaults, told that a second run of a point gives the same.

    It knows conditions. Of two losses it is ParEGO. A failed trial crashed, at the worst cost so far.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        from ConfigSpace import ConfigurationSpace, InCondition
        from smac import HyperparameterOptimizationFacade, Scenario
        from smac.multi_objective.parego import ParEGO

        warnings.simplefilter("ignore")
        self._space = setup.plain_space
        self._configurations = ConfigurationSpace(seed=setup.seed)
        self._configurations.add([*map(self._described, self._space.parameters)])
        for parameter in self._space.parameters:
            if parameter.condition is not None:
                child, parent = (self._configurations[name] for name in (parameter.name, parameter.condition.parent))
                self._configurations.add(InCondition(child, parent, [*parameter.condition.values]))
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            self._configurations,
            objectives=[f"loss{index}" for index in range(setup.n_losses)],
            deterministic=True,
            n_trials=setup.n_evaluations,
            seed=setup.seed,
            output_directory=self._folder.name,
        )
        of_several = {"multi_objective_algorithm": ParEGO(scenario)} if setup.n_losses > 1 else {}
        self._smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False, **of_several
        )
        self._asked: list[Any] = []
        self._worst: tuple[float, ...] = (0.0,) * setup.n_losses

    @staticmethod
    def _described(parameter: Parameter) -> Any:
        from ConfigSpace import CategoricalHyperparameter, UniformFloatHyperparameter, UniformIntegerHyperparameter

        if isinstance(parameter, Categorical):
            return CategoricalHyperparameter(parameter.name, [*parameter.categories])
        assert isinstance(parameter, Real | Integer)
        kind = UniformIntegerHyperparameter if isinstance(parameter, Integer) else UniformFloatHyperparameter
        return kind(parameter.name, parameter.low, parameter.high, log=parameter.prior == "log-uniform")

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        from ConfigSpace import Configuration
        from smac.runhistory import TrialInfo

        for trial, (point, its) in enumerate(zip(points, told, strict=True)):
            self._asked.append(TrialInfo(Configuration(self._configurations, values=dict(point)), seed=0))
            self.tell(trial, its)

    def ask(self) -> Point:
        self._asked.append(self._smac.ask())
        found = dict(self._asked[-1].config)
        return {p.name: _within(p, found[p.name]) for p in self._space.parameters if p.name in found}

    def tell(self, trial: int, told: Told | None) -> None:
        from smac.runhistory import StatusType, TrialValue

        losses = self._worst if told is None else told.losses
        self._worst = tuple(map(max, self._worst, losses))
        cost = [*losses] if len(losses) > 1 else losses[0]
        status = StatusType.CRASHED if told is None else StatusType.SUCCESS
        self._smac.tell(self._asked[trial], TrialValue(cost=cost, status=status), save=False)


class Vizier:
    """Vizier's Gaussian process bandit (GP-UCB-PE, the default of its service); what fails is infeasible."""

    def __init__(self, name: str, setup: Setup) -> None:
        import jax
        from vizier import pyvizier as vz
        from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit

        jax.config.update("jax_enable_x64", True)  # without, suggestions are NaN
        warnings.simplefilter("ignore")
        self._space = setup.plain_space
        problem = vz.ProblemStatement()
        for parameter in self._space.parameters:
            root = problem.search_space.root
            if isinstance(parameter, Categorical):
                root.add_categorical_param(parameter.name, [*map(str, range(len(parameter.categories)))])
                continue
            assert isinstance(parameter, Real | Integer)
            scale = vz.ScaleType.LOG if parameter.prior == "log-uniform" else vz.ScaleType.LINEAR
            add = root.add_int_param if isinstance(parameter, Integer) else root.add_float_param
            add(parameter.name, parameter.low, parameter.high, scale_type=scale)
        problem.metric_information.append(vz.MetricInformation("loss", goal=vz.ObjectiveMetricGoal.MINIMIZE))
        self._designer = VizierGPUCBPEBandit(problem, rng=jax.random.PRNGKey(setup.seed))
        self._trials: list[Any] = []
        self._running: dict[int, Any] = {}
        self._ended: list[Any] = []

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        from vizier import pyvizier as vz

        for trial, (point, its) in enumerate(zip(points, told, strict=True)):
            values = filled(self._space, point)
            named = {p.name: str(p.index(values[p.name])) if isinstance(p, Categorical) else values[p.name]
                     for p in self._space.parameters}  # fmt: skip
            self._running[trial] = vz.Trial(id=trial + 1, parameters=named)
            self._trials.append(self._running[trial])
            self.tell(trial, its)

    def ask(self) -> Point:
        from vizier.algorithms import ActiveTrials, CompletedTrials

        self._designer.update(CompletedTrials(self._ended), ActiveTrials([*self._running.values()]))
        self._ended = []
        (suggestion,) = self._designer.suggest(1)
        number = len(self._trials)
        self._trials.append(suggestion.to_trial(number + 1))
        self._running[number] = self._trials[-1]
        found = self._trials[-1].parameters.as_dict()
        return active(
            self._space,
            {
                p.name: p.categories[int(found[p.name])] if isinstance(p, Categorical) else _within(p, found[p.name])
                for p in self._space.parameters
            },
        )

    def tell(self, trial: int, told: Told | None) -> None:
        from vizier import pyvizier as vz

        ended = self._running.pop(trial)
        if told is None:
            ended.complete(vz.Measurement(), infeasibility_reason="failed")
        else:
            ended.complete(vz.Measurement(metrics={"loss": told.losses[0]}))
        self._ended.append(ended)


def _within(parameter: Parameter, value: Any) -> Any:
    """A plain value that the parameter contains, whatever rounding has done to it."""
    value = getattr(value, "item", lambda: value)()
    if isinstance(parameter, Real):
        return min(max(float(value), parameter.low), parameter.high)
    if isinstance(parameter, Integer):
        return min(max(round(value), parameter.low), parameter.high)
    return str(value) if isinstance(value, str) else value


#: engine -> its class, and the packages that it needs
PEERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "botorch": (BoTorch, ("botorch",)),
    "smac": (Smac, ("smac",)),
    "hebo": (Hebo, ("hebo",)),
    "vizier": (Vizier, ("vizier",)),
    "propulate-ga": (Propulate, ("propulate",)),
    "propulate-cma": (Propulate, ("propulate",)),
}
#: engines of several losses
OF_SEVERAL = ("botorch", "smac")
