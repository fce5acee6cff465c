"""What `search.py` compares: our algorithms and others' own optimizers, all asked and told in the same way."""

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from search_peers import OF_SEVERAL, PEERS, Recorded, Setup, active, filled
from search_scores import Told

from nnlo_opt.core.space.space import parents_first
from nnlo_opt.engine.search.handler import SearchHandler
from nnlo_opt.engine.search.registry import search_names
from nnlo_opt.space import Categorical, Integer, Parameter, Point, Real

#: what an engine needs, where it is not ours
PACKAGES = {
    "optuna-tpe": ("optuna",),
    "optuna-gp": ("optuna", "torch"),
    "skopt": ("skopt",),
    "deephyper": ("deephyper",),
    **{name: packages for name, (_, packages) in PEERS.items()},
}


class Engine(Protocol):
    """Asked for a point while others are pending, told of their results; trials have numbers from 0."""

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        """Begin with trials that others have suggested; they take the first numbers."""
        ...

    def ask(self) -> Point: ...

    def tell(self, trial: int, told: Told | None) -> None:
        """Say how a trial has ended; None: it failed."""
        ...


class _Ours:
    """A search as it serves a run: likely values, failures, errors of folds and several losses reach it as there."""

    def __init__(self, name: str, setup: Setup) -> None:
        options: dict[str, Any] = {"likely_first": True}
        if setup.n_losses > 1:
            options["n_objectives"] = setup.n_losses
        self._session = SearchHandler()
        self._points: list[Point] = []
        self._request("start", algorithm=name, space=setup.space.to_json(), seed=setup.seed, options=options)

    def _request(self, op: str, **given: Any) -> dict[str, Any]:
        answer = self._session.handle({"op": op, **given}) or {}
        if refusal := answer.get("error") or answer.get("refused"):
            raise RuntimeError(refusal)
        return answer

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        for trial, (point, its) in enumerate(zip(points, told, strict=True)):
            self._points.append(point)
            self.tell(trial, its)

    def ask(self) -> Point:
        point: Point | None = self._request("suggest", request=len(self._points))["point"]
        assert point is not None
        self._record(len(self._points), point, "pending")
        self._points.append(point)
        return point

    def tell(self, trial: int, told: Told | None) -> None:
        if told is None:
            self._record(trial, self._points[trial], "failed")
            return
        several = {"losses": [*told.losses]} if len(told.losses) > 1 else {}
        self._record(trial, self._points[trial], "complete", value=told.losses[0], std=told.std, **several)

    def _record(self, trial: int, point: Point, state: str, **more: Any) -> None:
        self._request("record", trials=[{"trial": trial, "point": point, "state": state, **more}])


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
    """Optuna's sampler with its defaults, and its own study.

    TPE is asked as a script asks: for the parameters that a trial has. GPSampler would draw those with conditions at
    random, so it is asked for all of them.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        self._space = setup.plain_space
        self._is_flat = name == "optuna-gp"
        sampler = optuna.samplers.GPSampler if self._is_flat else optuna.samplers.TPESampler
        self._study = optuna.create_study(sampler=sampler(seed=setup.seed), directions=["minimize"] * setup.n_losses)
        self._trials: list[Any] = []

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        from optuna.trial import TrialState, create_trial

        for point, its in zip(points, told, strict=True):
            trial = create_trial(
                state=TrialState.COMPLETE if its else TrialState.FAIL,
                params=dict(point),
                distributions={name: optuna_distribution(self._space[name]) for name in point},
                values=its.losses if its else None,
            )
            self._study.add_trial(trial)
            self._trials.append(trial)

    def ask(self) -> Point:
        if self._is_flat:
            self._trials.append(self._study.ask({p.name: optuna_distribution(p) for p in self._space.parameters}))
            return active(self._space, self._trials[-1].params)
        self._trials.append(self._study.ask())
        point: dict[str, Any] = {}
        for index in parents_first(self._space.parameters):
            parameter = self._space.parameters[index]
            condition = parameter.condition
            if condition is None or (condition.parent in point and point[condition.parent] in condition.values):
                point[parameter.name] = self._suggested(parameter)
        return {name: point[name] for name in self._space.names if name in point}

    def _suggested(self, parameter: Parameter) -> Any:
        trial = self._trials[-1]
        if isinstance(parameter, Categorical):
            return trial.suggest_categorical(parameter.name, parameter.categories)
        assert isinstance(parameter, Real | Integer)
        suggest = trial.suggest_int if isinstance(parameter, Integer) else trial.suggest_float
        return suggest(parameter.name, parameter.low, parameter.high, log=parameter.prior == "log-uniform")

    def tell(self, trial: int, told: Told | None) -> None:
        from optuna.trial import TrialState

        if told is None:
            self._study.tell(self._trials[trial], state=TrialState.FAIL)
        else:
            self._study.tell(self._trials[trial], [*told.losses])


class _Skopt(Recorded):
    """scikit-optimize's `Optimizer` with its defaults. Asked twice it gives the same point: so in lots of four."""

    _N_LOT = 4

    def __init__(self, name: str, setup: Setup) -> None:
        import skopt

        def dimension(parameter: Parameter) -> Any:
            match parameter:
                case Categorical():
                    return skopt.space.Categorical(list(parameter.categories), name=parameter.name)
                case Integer():
                    return skopt.space.Integer(parameter.low, parameter.high, parameter.prior, name=parameter.name)
            assert isinstance(parameter, Real)
            return skopt.space.Real(parameter.low, parameter.high, parameter.prior, name=parameter.name)

        super().__init__(setup)
        warnings.simplefilter("ignore")
        self._optimizer = skopt.Optimizer([dimension(p) for p in self.space.parameters], random_state=setup.seed)
        self._lot: list[list[Any]] = []
        self._known: set[int] = set()

    def suggestion(self) -> Point:
        if not self._lot:
            values = self.values()
            if new := [trial for trial in values if trial not in self._known]:
                rows = [[*filled(self.space, self.points[trial]).values()] for trial in new]
                self._optimizer.tell(rows, [values[trial][0] for trial in new])
                self._known.update(new)
            self._lot = self._optimizer.ask(n_points=self._N_LOT)
        values = [getattr(value, "item", lambda value=value: value)() for value in self._lot.pop(0)]
        return dict(zip(self.space.names, values, strict=True))


class _DeepHyper:
    """DeepHyper's centralised Bayesian optimization with its defaults; it maximises."""

    def __init__(self, name: str, setup: Setup) -> None:
        from deephyper.hpo import CBO, HpProblem

        def values(parameter: Parameter) -> Any:
            if isinstance(parameter, Categorical):
                return list(parameter.categories)
            assert isinstance(parameter, Real | Integer)
            return (parameter.low, parameter.high, parameter.prior)

        warnings.simplefilter("ignore")
        problem = HpProblem()
        self._space = setup.plain_space
        for parameter in self._space.parameters:
            problem.add_hyperparameter(values(parameter), parameter.name)
        self._folder = tempfile.TemporaryDirectory()
        self._search = CBO(problem, random_state=setup.seed, log_dir=self._folder.name, checkpoint_history_to_csv=False)
        self._asked: list[Point] = []

    def preload(self, points: Sequence[Point], told: Sequence[Told | None]) -> None:
        for trial, (point, its) in enumerate(zip(points, told, strict=True)):
            self._asked.append(filled(self._space, point))
            self.tell(trial, its)

    def ask(self) -> Point:
        (point,) = self._search.ask(1)
        self._asked.append({name: getattr(value, "item", lambda value=value: value)() for name, value in point.items()})
        return active(self._space, self._asked[-1])

    def tell(self, trial: int, told: Told | None) -> None:
        self._search.tell([(self._asked[trial], "F" if told is None else -told.losses[0])])


def why_not(name: str) -> str:
    """Why an engine cannot be had here; empty where it can."""
    if name not in (*search_names(), *PACKAGES):
        return f"{name} is no engine; there are {', '.join((*search_names(), *PACKAGES))}"
    absent = [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
    return f"{name} needs {', '.join(absent)}, which is not installed" if absent else ""


def takes(name: str, n_losses: int) -> bool:
    """Whether an engine searches with so many losses here."""
    return n_losses == 1 or name not in PACKAGES or name in (*OF_SEVERAL, "optuna-tpe", "optuna-gp")


def make_engine(name: str, setup: Setup) -> Engine:
    """One of our search algorithms by its name, or one of `PACKAGES`."""
    makers: dict[str, Callable[[str, Setup], Engine]] = {
        "optuna-tpe": _Optuna,
        "optuna-gp": _Optuna,
        "skopt": _Skopt,
        "deephyper": _DeepHyper,
        **{peer: maker for peer, (maker, _) in PEERS.items()},
    }
    return makers.get(name, _Ours)(name, setup)
