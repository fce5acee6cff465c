"""What `search.py` compares: our algorithms and others' own optimizers, all asked and told in the same way."""

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnlo_opt.search.base import History
from nnlo_opt.search.registry import make_search, search_names
from nnlo_opt.space import Categorical, Integer, Parameter, Point, Real, Space

#: what an engine needs, where it is not ours
PACKAGES = {
    "optuna-tpe": ("optuna",),
    "optuna-gp": ("optuna", "torch"),
    "skopt": ("skopt",),
    "deephyper": ("deephyper",),
}


class Engine(Protocol):
    """Asked for a point while others are pending, told of their values; trials have numbers from 0."""

    def preload(self, points: Sequence[Point], values: Sequence[float]) -> None:
        """Begin with trials that others have suggested; they take the first numbers."""
        ...

    def ask(self) -> Point: ...

    def tell(self, trial: int, value: float) -> None: ...


class _Ours:
    def __init__(self, name: str, space: Space, seed: int) -> None:
        self._algorithm = make_search(name, space, seed, {})
        self._history = History(space)

    def preload(self, points: Sequence[Point], values: Sequence[float]) -> None:
        for trial, (point, value) in enumerate(zip(points, values, strict=True)):
            self._history.record(trial, point, "complete", value)

    def ask(self) -> Point:
        point = self._algorithm.suggest(self._history)
        assert point is not None
        self._history.record(self._history.n_suggested, point, "pending")
        return point

    def tell(self, trial: int, value: float) -> None:
        self._history.record(trial, self._history.points[trial], "complete", value)


def optuna_distribution(parameter: Parameter) -> Any:
    """The parameter as Optuna describes it."""
    import optuna

    match parameter:
        case Categorical():
            return optuna.distributions.CategoricalDistribution(parameter.categories)
        case Integer():
            kind: Any = optuna.distributions.IntDistribution
        case _:
            kind = optuna.distributions.FloatDistribution
    assert isinstance(parameter, Real | Integer)
    return kind(parameter.low, parameter.high, log=parameter.prior == "log-uniform")


class _Optuna:
    """Optuna's sampler with its defaults, and its own study."""

    def __init__(self, name: str, space: Space, seed: int) -> None:
        import optuna
        from optuna.trial import create_trial

        self._make_trial = create_trial

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler if name == "optuna-tpe" else optuna.samplers.GPSampler
        self._study = optuna.create_study(sampler=sampler(seed=seed))
        self._distributions = {parameter.name: optuna_distribution(parameter) for parameter in space.parameters}
        self._trials: list[Any] = []

    def preload(self, points: Sequence[Point], values: Sequence[float]) -> None:
        for point, value in zip(points, values, strict=True):
            trial = self._make_trial(params=point, distributions=self._distributions, value=value)
            self._study.add_trial(trial)
            self._trials.append(trial)

    def ask(self) -> Point:
        self._trials.append(self._study.ask(self._distributions))
        return dict(self._trials[-1].params)

    def tell(self, trial: int, value: float) -> None:
        self._study.tell(self._trials[trial], value)


class _Skopt:
    """scikit-optimize's `Optimizer` with its defaults. Asked twice it gives the same point: so in lots of four."""

    _N_LOT = 4

    def __init__(self, name: str, space: Space, seed: int) -> None:
        import skopt

        def dimension(parameter: Parameter) -> Any:
            match parameter:
                case Categorical():
                    return skopt.space.Categorical(list(parameter.categories), name=parameter.name)
                case Integer():
                    return skopt.space.Integer(parameter.low, parameter.high, parameter.prior, name=parameter.name)
            assert isinstance(parameter, Real)
            return skopt.space.Real(parameter.low, parameter.high, parameter.prior, name=parameter.name)

        warnings.simplefilter("ignore")
        self._optimizer = skopt.Optimizer([dimension(p) for p in space.parameters], random_state=seed)
        self._space = space
        self._lot: list[list[Any]] = []
        self._asked: list[list[Any]] = []
        self._told: list[tuple[list[Any], float]] = []

    def preload(self, points: Sequence[Point], values: Sequence[float]) -> None:
        self._asked += [[point[name] for name in self._space.names] for point in points]
        self._told += list(zip(self._asked, values, strict=True))

    def ask(self) -> Point:
        if not self._lot:
            if self._told:
                self._optimizer.tell([x for x, _ in self._told], [value for _, value in self._told])
                self._told.clear()
            self._lot = self._optimizer.ask(n_points=self._N_LOT)
        self._asked.append(self._lot.pop(0))
        values = [getattr(value, "item", lambda value=value: value)() for value in self._asked[-1]]
        return dict(zip(self._space.names, values, strict=True))

    def tell(self, trial: int, value: float) -> None:
        self._told.append((self._asked[trial], value))


class _DeepHyper:
    """DeepHyper's centralised Bayesian optimization with its defaults; it maximises."""

    def __init__(self, name: str, space: Space, seed: int) -> None:
        from deephyper.hpo import CBO, HpProblem

        def values(parameter: Parameter) -> Any:
            if isinstance(parameter, Categorical):
                return list(parameter.categories)
            assert isinstance(parameter, Real | Integer)
            return (parameter.low, parameter.high, parameter.prior)

        warnings.simplefilter("ignore")
        problem = HpProblem()
        for parameter in space.parameters:
            problem.add_hyperparameter(values(parameter), parameter.name)
        self._folder = tempfile.TemporaryDirectory()
        self._search = CBO(problem, random_state=seed, log_dir=self._folder.name, checkpoint_history_to_csv=False)
        self._asked: list[Point] = []

    def preload(self, points: Sequence[Point], values: Sequence[float]) -> None:
        self._asked += [dict(point) for point in points]
        self._search.tell([(point, -value) for point, value in zip(self._asked, values, strict=True)])

    def ask(self) -> Point:
        (point,) = self._search.ask(1)
        self._asked.append({name: getattr(value, "item", lambda value=value: value)() for name, value in point.items()})
        return self._asked[-1]

    def tell(self, trial: int, value: float) -> None:
        self._search.tell([(self._asked[trial], -value)])


def why_not(name: str) -> str:
    """Why an engine cannot be had here; empty where it can."""
    if name not in (*search_names(), *PACKAGES):
        return f"{name} is no engine; there are {', '.join((*search_names(), *PACKAGES))}"
    absent = [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
    return f"{name} needs {', '.join(absent)}, which is not installed" if absent else ""


def make_engine(name: str, space: Space, seed: int) -> Engine:
    """One of our search algorithms by its name, or one of `PACKAGES`."""
    makers: dict[str, Callable[[str, Space, int], Engine]] = {
        "optuna-tpe": _Optuna,
        "optuna-gp": _Optuna,
        "skopt": _Skopt,
        "deephyper": _DeepHyper,
    }
    return makers.get(name, _Ours)(name, space, seed)
