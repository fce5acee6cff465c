"""Objectives by their signature: a user's function gets the arguments that it names."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Self, TypeAlias

from nnlo_opt.errors import ConfigurationError, did_you_mean
from nnlo_opt.files import make_directory
from nnlo_opt.safe_path import SafePath
from nnlo_opt.space.space import Point

#: arguments that an objective may name besides parameters; all but the last are attributes of a `RunningTrial`
RESERVED = ("parameters", "comm", "report", "trial")


@dataclass(frozen=True, eq=False, kw_only=True)
class RunningTrial:
    """Trial under way, as the code that computes its value sees it."""

    number: int
    #: value of every parameter by name
    parameters: Point
    #: communicator of the ranks that work on the trial; None without MPI
    comm: Any = field(default=None, repr=False)
    _run: Path = field(repr=False)
    _report: Callable[[int, float], bool] = field(repr=False)
    #: answers of the reports so far
    _answers: list[bool] = field(default_factory=list, init=False, repr=False)

    def report(self, epoch: int, value: float) -> bool:
        """Report a value after an epoch, counted from 1, for `pruner`; return False if the trial is to stop.

        Collective: every rank of the block, if the trial runs on several.

        Raises:
            TrialError: the epoch is no whole number from 1, or the value no finite number; nothing is recorded.
        """
        self._answers.append(self._report(epoch, value))
        return self._answers[-1]

    def reporting_by(self, wrapped: Callable[[Callable[[int, float], bool]], Callable[[int, float], bool]]) -> Self:
        """Return the same trial with another way to report."""
        return replace(self, _report=wrapped(self._report))

    def should_prune(self) -> bool:
        """Return True if the trial is to stop, as the last report has answered: return any value then."""
        return False in self._answers[-1:]

    @cached_property
    def directory(self) -> Path:
        """The trial's own folder in the run directory, which is temporary without `checkpoint`; it exists."""
        folder = SafePath(self._run) / f"trials/{self.number:04d}"
        make_directory(folder)
        return Path(str(folder))

    def __getattr__(self, name: str) -> NoReturn:
        hint = ': its parameters are in `trial.parameters["name"]`, as the search space has them' * ("suggest" in name)
        raise AttributeError(f"a trial has no {name!r}{hint}", name=name, obj=self)


Objective: TypeAlias = Callable[[RunningTrial], Any]


def objective_of(function: Callable[..., Any], source: str, names: Collection[str]) -> Objective:
    """Return a function of a running trial that calls the user's `function` with the arguments it names.

    An argument is one of `RESERVED`, or else a parameter of the search space. A single positional argument of any other
    name gets the parameters; three of other names get parameters, communicator and `report`, in this order. An argument
    that has a default keeps it unless it has one of these names.

    Args:
        source: where the function stands, for the refusal.
        names: of the parameters of the search space.

    Raises:
        ConfigurationError: the function takes something else, or not all parameters, or is a coroutine.
    """
    if not callable(function) or inspect.iscoroutinefunction(function):
        what = "a coroutine (`async def`)" if callable(function) else repr(function)
        raise ConfigurationError(
            f"An objective must be a function that returns a figure of merit. Received: {what} in {source}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda trial: function(trial.parameters)  # written in C
    title = f"{getattr(function, '__name__', 'a function')}{signature} in {source}"
    taken = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wanted = {p.name: p.name for p in taken if p.name in RESERVED}
    own = [p.name for p in taken if p.name in names]
    if both := [name for name in own if name in wanted]:
        raise ConfigurationError(
            f"An argument must have one meaning. Received: `{both[0]}` of {title}, which every trial has, and which is "
            "also a parameter of the search space. Rename the parameter."
        )
    others = [p.name for p in taken if p.name not in {*wanted, *own} and p.default is p.empty]
    is_positional = not own and all(p.kind is not p.KEYWORD_ONLY for p in taken if p.name in others)
    if len(others) == 1 and not {"parameters", "trial"} & wanted.keys() and is_positional:
        wanted[others[0]] = "parameters"
    elif len(others) == 3 and not wanted and is_positional:
        wanted = dict(zip(others, RESERVED, strict=False))
    elif others or not (wanted or own):
        hint = did_you_mean(others[0], {*names} - {*own}) if others else ""
        raise ConfigurationError(
            "An objective must take `parameters`, or every parameter by its name, and may take `trial`, `comm` and "
            f"`report`. Received: {title}, for the parameters {', '.join(names)}.{hint} Write it as "
            "`def objective(parameters)`."
        )
    left = [name for name in names if name not in own]
    if own and left and not {"parameters", "trial"} & wanted.keys():
        raise ConfigurationError(
            f"An objective that takes parameters by their names must take all. Received: {title}, without `{left[0]}`. "
            "Add it, or name the argument `parameters` to get a dictionary."
        )

    def call(trial: RunningTrial) -> Any:
        given = {argument: trial if name == "trial" else getattr(trial, name) for argument, name in wanted.items()}
        given |= {name: trial.parameters[name] for name in own if name in trial.parameters}
        bound = inspect.BoundArguments(signature, OrderedDict(given))
        return function(*bound.args, **bound.kwargs)

    return call
