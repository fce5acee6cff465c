"""Hyperparameter search from Python: `optimize(objective, space, num_iterations=20).best_point`."""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from nnlo_opt.analysis.frames import trials_frame
from nnlo_opt.api.arguments import SearchArguments, with_own
from nnlo_opt.api.run import Results
from nnlo_opt.errors import ConfigurationError, did_you_mean
from nnlo_opt.models.builders import FUNCTIONS, ModelDefinition, open_model
from nnlo_opt.objective.signature import objective_of
from nnlo_opt.run.options.table import OPTIMIZATION_OPTIONS
from nnlo_opt.run.options.values import Options, optimization_options
from nnlo_opt.run.start.embedded import run_search
from nnlo_opt.runtime.environment import is_rank
from nnlo_opt.space.constraint import CONSTRAINT_NAME, fingerprint
from nnlo_opt.space.loading import finish_space, load_space, space_from_dimensions
from nnlo_opt.space.parameters import Parameter, parameter_from_json
from nnlo_opt.space.space import Space
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.user_files import EXECUTING

if TYPE_CHECKING:
    from nnlo_opt.analysis.frames import Frame
    from nnlo_opt.comm.mpi.world import Communicator

#: a search space: parameters in a list or by name, a `Space`, or the file or dotted name of its module
SpaceLike: TypeAlias = Space | Sequence[Parameter] | Mapping[str, Parameter] | str | os.PathLike[str]
_NAMES = {option.name for option in OPTIMIZATION_OPTIONS if option.python}


@dataclass(frozen=True, slots=True)
class SearchResult(Results):
    """Trials of a search with the best of them; equal on every rank.

    >>> result = nnlo_opt.optimize(lambda p: p["n"] ** 2, {"n": Integer(1, 3)}, num_iterations=3)
    >>> result
    <SearchResult: 3 trials, best 1 at {'n': 1}>
    >>> result.best.number in (0, 1, 2), len(result.trials)
    (True, 3)
    """

    #: state that the journal of the run leads to
    ledger: Ledger = field(repr=False)
    #: run directory, with journal, `results.csv` and the best model; None if the search had no `checkpoint`
    directory: Path | None

    def frame(self) -> "Frame":
        """Return one row for each trial, with the columns of `results.csv`."""
        return trials_frame(self.ledger)

    def __repr__(self) -> str:
        return f"<SearchResult: {self._found}>"


def optimize(
    target: Callable[..., object] | ModuleType | str | os.PathLike[str],
    /,
    space: SpaceLike | None = None,
    *,
    catch: bool = True,
    comm: "Communicator | None" = None,
    **options: Unpack[SearchArguments],
) -> SearchResult:
    """Search hyperparameters in this process; under `mpirun` every rank calls it, and all get the result.

    >>> result = nnlo_opt.optimize(lambda p: (p["x"] - 2) ** 2, {"x": Real(-5, 5)}, num_iterations=30)
    >>> print(result.best_point, result.figure_of_merit)
    {'x': 2.00...} ...

    Collective: every rank of the communicator, with the same arguments.

    Args:
        target: an objective, which is a function that returns a number, or a dict of numbers with several objectives;
            or a model, which is a function called `get_model` that returns a Keras model or a torch module; or a module
            or file with one of them; or the name of a builtin model. An objective gets the arguments it names of
            `parameters` (a dict), `comm` (mpi4py communicator of its block; None without mpirun) and `report`
            (`report(epoch, value)` returns False if the trial is to stop). One argument of another name gets the
            parameters.
        space: a list of parameters, a dict of parameters by name, a `Space`, or a file or module that defines one;
            by default `parameter_range` of the target.
        catch: if True, a trial whose objective raises has failed, and the search continues; if False, the search ends
            and the exception is raised here.
        comm: communicator of mpi4py; by default all ranks under mpirun, and none otherwise.
        options: options of OptimizationDriver with their names, for example `num_iterations`, `hyper_opt`, `seed`,
            `batch`, `train_data` or `checkpoint`; docs/reference/options.md lists them. Without `checkpoint` nothing is
            left on disk. With it the run can be resumed by `opt_restore=True`.

    Raises:
        ConfigurationError: the arguments are wrong; no trial has begun.
    """
    if EXECUTING:
        raise ConfigurationError(
            "`nnlo_opt.optimize` must not be called while a module is imported by a search. Received: a call in "
            f"{EXECUTING[-1]}. Put it under `if __name__ == '__main__':`."
        )
    definition = definition_of(target)
    checked = search_options(options, str(definition.source))
    full_space, keeps_files = space_of(space, definition, checked.fix), options.get("checkpoint") is not None
    ledger, directory = run_search(
        checked, full_space, definition, comm or job_communicator(), keeps_files=keeps_files, catch=catch
    )
    return SearchResult(ledger, directory)


def search_options(given: Mapping[str, Any], model: str) -> Options:
    """Return checked options of a search of `model`; ConfigurationError for an unknown, wrong or missing one."""
    if unknown := [name for name in given if name not in _NAMES]:
        raise ConfigurationError(
            f"An argument must be an option of OptimizationDriver. Received: `{unknown[0]}`, which a search from "
            f"Python does not have.{did_you_mean(unknown[0], _NAMES)} docs/reference/options.md lists them."
        )
    if given.get("opt_restore") and given.get("checkpoint") is None:
        raise ConfigurationError("`opt_restore` resumes a run. Received: no run; name it by `checkpoint`.")
    return with_own(given, lambda names: optimization_options({**names, "model": model}))


def job_communicator() -> "Communicator | None":
    """Return the communicator of all ranks of the job; None if the process was not started as a rank."""
    if not is_rank():
        return None
    from nnlo_opt.comm.mpi.world import WORLD

    return WORLD


def definition_of(target: object) -> ModelDefinition:
    """Return the model or objective of a file, module or function; ConfigurationError for anything else."""
    if isinstance(target, str | os.PathLike):
        return open_model(os.fspath(target))
    if isinstance(target, ModuleType):
        return ModelDefinition.from_names(vars(target), _file_of(target))
    if not callable(target):
        raise ConfigurationError(
            "`optimize` takes a function, a module or a file. Received: "
            f"{target!r}. Give an objective, such as `def objective(parameters): ...`."
        )
    name = getattr(target, "__name__", type(target).__name__)
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and vars(module).get(name) is target and name in FUNCTIONS:
        # A command that is given the file of this module calls the same function.
        return ModelDefinition.from_names(vars(module), _file_of(module))
    kind = FUNCTIONS.get(name, "objective")
    own = target if kind == "model" else objective_of(target, "this script")
    around = getattr(target, "__globals__", {}) if kind == "model" else {}
    return ModelDefinition(
        name="objective" if name == "<lambda>" else name,
        kind=kind,
        source=Path(getattr(getattr(target, "__code__", None), "co_filename", "script")),
        functions={key: value for key, value in around.items() if callable(value)} | {_FUNCTION_OF[kind]: own},
        parameter_range=getattr(target, "parameter_range", None),
        function=name,
        fingerprint=_fingerprint(target),
    )


_FUNCTION_OF = {kind: name for name, kind in FUNCTIONS.items()}


def _file_of(module: ModuleType) -> Path:
    return Path(inspect.getsourcefile(module) or module.__name__)


def _fingerprint(function: object) -> str:
    """Return the SHA-256 of a function of a script."""
    if isinstance(function, FunctionType) and function.__name__ != "<lambda>":
        return fingerprint(function)
    code = getattr(function, "__code__", None)
    # The source of a lambda is the statement around it, with the other arguments of the call.
    text = type(function).__qualname__ if code is None else f"{code.co_code.hex()} {code.co_names} {code.co_consts}"
    return hashlib.sha256(text.encode()).hexdigest()


def space_of(
    given: SpaceLike | None, definition: ModelDefinition | None = None, fixed: Mapping[str, str] | None = None
) -> Space:
    """Return the search space; ConfigurationError if there is none, or it is wrong."""
    if isinstance(given, str | os.PathLike):
        return load_space(os.fspath(given), fixed)
    source, feasible = "the argument `space`", None
    if given is None and definition is not None:
        given, source = definition.parameter_range, f"`parameter_range` of {definition.source}"
        feasible = definition.functions.get(CONSTRAINT_NAME)
    if given is None:
        raise ConfigurationError(
            "A search needs a search space. Received: none. Give one, for example `{'x': Real(0, 1)}`."
        )
    if isinstance(given, Mapping):
        given = [_named(name, parameter) for name, parameter in given.items()]
    return finish_space(space_from_dimensions(given, source), feasible, source, fixed)


def _named(name: str, parameter: Parameter) -> Parameter:
    if not hasattr(parameter, "to_json"):
        raise ConfigurationError(
            f"Every value of a search space must be a parameter. Received: {parameter!r} for {name!r}. Write it as "
            f"`{{{name!r}: Real(0, 1)}}`."
        )
    if parameter.name not in ("", name):
        raise ConfigurationError(
            f"A parameter must have one name. Received: {parameter.name!r} for {name!r}. Leave one of them out."
        )
    return parameter_from_json({**parameter.to_json(), "name": name})
