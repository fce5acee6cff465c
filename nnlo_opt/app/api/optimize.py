"""Hyperparameter search from Python: `optimize(objective, space, num_iterations=20).best_parameters`."""

import hashlib
import inspect
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from nnlo_opt.app.api.argument_checks import check_callbacks, check_flags, check_meaning, check_names
from nnlo_opt.app.api.arguments import SearchArguments
from nnlo_opt.app.api.door import in_python
from nnlo_opt.app.api.run import FrozenTrial, Results, SearchResult
from nnlo_opt.app.api.steering import Callback, SearchView, Steering
from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.kinds import FLAG, whole
from nnlo_opt.app.run.options.making import optimization_options
from nnlo_opt.app.run.options.table import BY_NAME, OPTIMIZATION_OPTIONS, Option
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.start.coordinate import INTERRUPTED, LONG_S
from nnlo_opt.app.run.start.earlier import earlier_of_frame, earlier_of_ledger
from nnlo_opt.app.run.start.embedded import run_search
from nnlo_opt.app.run.start.host import ScriptHost
from nnlo_opt.core.base.errors import ConfigurationError, NnloError, SearchWarning, shown
from nnlo_opt.core.base.user_code import of_user
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME, fingerprint
from nnlo_opt.core.space.parameters import Parameter
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.objectives import direction_named
from nnlo_opt.engine.loading.modules import EXECUTING
from nnlo_opt.engine.loading.spaces import finish_space, load_space, space_from_dimensions
from nnlo_opt.engine.models.builders import FUNCTIONS, TrialDefinition, open_model
from nnlo_opt.engine.objective.forked import refuse_threads
from nnlo_opt.engine.objective.makeup import makeup_of
from nnlo_opt.engine.objective.signature import takes
from nnlo_opt.engine.runtime.launched import is_rank, warn_of_split_world

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator

#: a search space: a list of parameters, a dict by name, a `Space`, or the file or dotted name of a module with one
SpaceLike: TypeAlias = Space | Sequence[Parameter] | Mapping[str, Parameter] | str | os.PathLike[str]
#: arguments of a search
_NAMES = {option.name for option in OPTIMIZATION_OPTIONS if option.python} - {"no_shuffle"} | {"shuffle"}
_SHUFFLE = Option("shuffle", "", FLAG, "")


def optimize(
    target: Callable[..., object] | ModuleType | str | os.PathLike[str],
    space: SpaceLike | None = None,
    *,
    feasible: Callable[[dict[str, Any]], bool] | None = None,
    catch: bool | None = None,
    n_parallel: int = 1,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    comm: "Communicator | None" = None,
    **options: Unpack[SearchArguments],
) -> SearchResult:
    """Search hyperparameters in this process. Under `mpirun` every rank calls it, and all get the result.

    >>> result = nnlo_opt.optimize(lambda p: (p["x"] - 2) ** 2, {"x": Real(-5, 5)}, num_iterations=30)
    >>> print(result.best_parameters, result.figure_of_merit)
    {'x': 2.00...} ...

    Collective: every rank of the communicator, with the same arguments.

    Args:
        target: an objective, a function that returns a number, or a dict of numbers with several objectives; or a
            model, a function called `get_model` that returns a Keras model or a torch module; or a module or file with
            one of them; or the name of a built-in model. The arguments of an objective are passed by name: parameters
            of the space, `parameters` (a dict of all), `trial` (a `RunningTrial`), `comm` (mpi4py communicator of its
            block; None without mpirun) and `report` (`report(epoch, value)` returns False if the trial should stop). A
            single argument with any other name gets the dict.
        space: a list of parameters, a dict of parameters by name, a `Space`, or a file or module that defines one;
            by default `parameter_range` of the target.
        feasible: function of the parameters (a dict) that returns False for points to skip; by default the attribute
            `feasible` of the target, if it has one.
        catch: what to do if an objective raises. True: the trial fails, and the search continues. False: the search
            ends, and the exception is raised here. None: like False until a trial has succeeded, then like True.
        n_parallel: number of processes that call the objective, without mpirun. Several are forked from this one, so
            any function works as objective; if one dies, that is a failed attempt of its trial.
        progress: True for a progress line, False for no output; by default there is a progress line in a notebook, and
            without mpirun on a terminal.
        callbacks: functions of (study, trial), called on rank 0 after each trial; `study.stop()` ends the search, and
            `study.enqueue({...})` makes it try these parameters next.
        comm: communicator of mpi4py; by default all ranks under mpirun, and none otherwise. With `MPI.COMM_SELF` each
            process started by mpirun or srun searches independently, without a warning.
        options: options of OptimizationDriver by name, for example `num_iterations`, `hyper_opt`, `seed`, `batch`,
            `train_data` or `checkpoint`. Without `checkpoint` nothing is left on disk. With it the run can be resumed
            by `opt_restore=True`.

    Ctrl-C, or a notebook's stop button, ends the search, and the result has the trials finished so far. A second one
    raises KeyboardInterrupt.

    Raises:
        ConfigurationError: the arguments are invalid; no trial has begun.
    """
    __tracebackhide__ = True  # in a notebook
    if EXECUTING:
        raise ConfigurationError(
            "`nnlo_opt.optimize` must not be called while a module is imported by a search. Received: a call in "
            f"{EXECUTING[-1]}. Put it under `if __name__ == '__main__':`."
        )
    if not (comm is None or hasattr(comm, "Get_rank")):
        raise ConfigurationError(
            f"`comm` must be a communicator of mpi4py. Received: {shown(comm)}. Leave it out for all ranks of `mpirun`."
        )
    # `n_parallel`, or a custom communicator, shows that this process is meant to search independently.
    is_meant = n_parallel != 1 or (comm is not None and comm.Get_name() != "MPI_COMM_WORLD")
    comm = comm or job_communicator()
    caller = sys._getframe(1)
    try:
        with in_python():
            check_flags(catch, progress)
            check_callbacks(callbacks)
            n_parallel = N_PARALLEL.read(n_parallel)
            definition = definition_of(target)
            checked = search_options(options, str(definition.source))
            if definition.kind == "objective" and "block_size" not in options:
                # Otherwise every rank of a block would compute the same.
                checked = replace(checked, block_size=2 if takes(definition.objective, "comm") else 1)
            full_space = space_of(space, definition, checked.fix, feasible)
            warn_of_defaults(options, comm, depth=3)
            if not is_meant:
                warn_of_split_world(1 if comm is None else comm.Get_size(), stacklevel=2)
            if n_parallel > 1:
                _check_parallel(n_parallel, options, definition, comm)
            run = checked.run
            kept = None if run.name is None else run.root / run.name
            study = Steering(full_space, grace_s=0.0 if comm is None else LONG_S, directory=kept)
            view = SearchView(study, callbacks, progress=progress, place=(caller.f_code.co_filename, caller.f_lineno))
            script = ScriptHost(
                program="nnlo_opt.optimize",
                space=full_space,
                catch=catch,
                observers=[view],
                warn=view.warn,
                waits_for=view.wait_for,
                requests=study._requests,
            )
            with closing(view):
                ledger, directory = run_search(checked, definition, comm, script, n_parallel=n_parallel)
    except (Exception, KeyboardInterrupt) as error:
        # Show only the user's own lines in the traceback.
        raise error.with_traceback(None if isinstance(error, NnloError) else of_user(error)) from None
    result = SearchResult(ledger, directory, is_root=comm is None or not comm.Get_rank())
    if ledger.ended_because == INTERRUPTED:
        how = "`opt_restore=True` resumes it." if directory else "Without `checkpoint` there is nothing to resume."
        sys.stderr.write(f"Interrupted: {result._found}. {how}\n")
    return result


def _help() -> str:
    """Return a line for each option, because a wheel does not contain the reference page."""
    texts = {option.name: option.help for option in OPTIMIZATION_OPTIONS}
    texts["shuffle"] = "False: samples keep their order"
    lines = [f"{name}: {texts[name].partition(';')[0]}" for name in SearchArguments.__annotations__]
    return "\n".join(["Options:", *(textwrap.fill(line, 112, subsequent_indent="    ") for line in lines)])


optimize.__doc__ = f"{inspect.cleandoc(optimize.__doc__ or '')}\n\n{textwrap.indent(_help(), '    ')[4:]}\n"

#: the argument `n_parallel`, for error messages
N_PARALLEL = Option("n_parallel", "", whole(unit="trials"), "")


def _check_parallel(n_parallel: int, given: Mapping[str, Any], definition: TrialDefinition, comm: object) -> None:
    """Raise ConfigurationError if the trials of this search cannot run in forked processes."""
    received = ""
    if comm is not None:
        received = "under mpirun, whose ranks run the trials. Leave it out"
    elif definition.kind != "objective":
        received = "for a model. Leave it out, and start the script with `mpirun`, which trains in blocks of ranks"
    elif "block_size" in given:
        received = f"with `block_size={given['block_size']}`. Leave one of them out"
    if received:
        raise ConfigurationError(
            "`n_parallel` forks processes of one rank each, which call an objective. Received: "
            f"`n_parallel={n_parallel}` {received}."
        )
    refuse_threads()


def search_options(given: Mapping[str, Any], model: str) -> Options:
    """Return validated options of a search with `model`; ConfigurationError for an unknown, invalid or missing one.

    The run has a name only if it is kept.
    """
    check_names(given, _NAMES, inspect.signature(optimize).parameters)
    check_meaning(given)
    if given.get("opt_restore") and given.get("checkpoint") is None:
        raise ConfigurationError("`opt_restore` resumes a run. Received: no run; name it by `checkpoint`.")
    direction, objective = given.get("direction"), given.get("objective")
    of_table: dict[str, Any] = {
        "no_shuffle": not _SHUFFLE.read(given.get("shuffle", True)),
        "direction": direction_named(str(direction)) or direction,
        "model": model,
    }
    if isinstance(objective, Mapping):
        of_table["objective"] = [f"{name}:{way}" for name, way in objective.items()]
    if "warm_start" in given:
        earlier = given["warm_start"]
        # Convert results and data frames to measurements; keep paths.
        of_table["warm_start"] = [*map(_measured, earlier if isinstance(earlier, list | tuple) else [earlier])]
    checked = optimization_options({**given, **of_table})
    if _has_time_alone(given):
        checked = replace(checked, plan=replace(checked.plan, num_iterations=0), run=replace(checked.run, n_asked=0))
    return checked if given.get("checkpoint") is not None else replace(checked, run=replace(checked.run, name=None))


def _has_time_alone(given: Mapping[str, Any]) -> bool:
    """Return True if only time limits a search, not a number of trials."""
    has_time = given.get("timeout") is not None or given.get("walltime") is not None
    return has_time and given.get("num_iterations") is None


def _measured(place: Any) -> Any:
    if hasattr(place, "to_csv"):
        return earlier_of_frame(place, f"a data frame of {' x '.join(map(str, place.shape))}")
    if isinstance(place, Results):
        return place.directory or earlier_of_ledger(place.ledger, f"a result of {counted(len(place), 'trial')}")
    if isinstance(place, str | os.PathLike):
        return place
    remedy = "Give the result itself" if isinstance(place, FrozenTrial) else _MEASUREMENTS
    raise ConfigurationError(
        f"`warm_start` must be a result, a run, a data frame, a study of Optuna by its storage, or a CSV. Received: "
        f"{shown(place)}. {remedy}."
    )


#: remedy for unsupported measurements
_MEASUREMENTS = "Write measurements as `pandas.DataFrame({'p:NAME': [...], 'figure_of_merit': [...]})`"


def warn_of_defaults(given: Mapping[str, Any], comm: "Communicator | None", depth: int) -> None:
    """Warn on rank 0 about defaults that users may not expect, and about arguments without effect.

    `depth`: stack level of the line to show, in the caller's code.
    """
    if comm is not None and comm.Get_rank():
        return
    words = []
    if given.get("num_iterations") is None and given.get("hyper_opt") != "grid" and not _has_time_alone(given):
        n_trials = BY_NAME["num_iterations"].default
        words.append(f"`num_iterations` is the number of trials. Received: none, so that the search has {n_trials}.")
    if comm is None and int(given.get("block_size") or 1) > 1:
        words.append(
            "`block_size` is the number of ranks of `mpirun` that work on a trial together. Received: "
            f"{given['block_size']} without `mpirun`, so that this process alone works on each."
        )
    for sentence in words:
        warnings.warn(sentence, SearchWarning, stacklevel=depth)


def job_communicator() -> "Communicator | None":
    """Return the communicator of all ranks of the job; None if this process is not a rank."""
    if not is_rank():
        return None
    from nnlo_opt.engine.comm.mpi.world import WORLD

    return WORLD


def definition_of(target: object) -> TrialDefinition:
    """Return the model or objective of a file, module or function; ConfigurationError for anything else."""
    if isinstance(target, str | os.PathLike):
        return open_model(os.fspath(target))
    if isinstance(target, ModuleType):
        return TrialDefinition.from_names(vars(target), _file_of(target))
    if not callable(target):
        is_space = isinstance(target, Space | Mapping | list | tuple)
        remedy = (
            "Write it as `optimize(objective, space)`"
            if is_space
            else "Give an objective, such as `def objective(parameters): ...`"
        )
        raise ConfigurationError(
            f"`optimize` takes a function, a module or a file. Received: {shown(target)}. {remedy}."
        )
    name = getattr(target, "__name__", type(target).__name__)
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and vars(module).get(name) is target and name in FUNCTIONS:
        # A command with the file of this module calls the same function.
        return TrialDefinition.from_names(vars(module), _file_of(module))
    kind = FUNCTIONS.get(name, "objective")
    around = getattr(target, "__globals__", {}) if kind == "model" else {}
    makeup = makeup_of(target) if kind == "objective" else None
    own = {_FUNCTION_OF[kind]: target}
    if other := next((each for each in ("constraint", "constraints") if each in getattr(target, "__dict__", {})), None):
        raise ConfigurationError(
            f"A constraint of an objective is its attribute `{CONSTRAINT_NAME}`. Received: `{name}.{other}`. Rename it."
        )
    if (feasible := getattr(target, CONSTRAINT_NAME, None)) is not None:
        own[CONSTRAINT_NAME] = feasible
    return TrialDefinition(
        name="objective" if name == "<lambda>" else name,
        kind=kind,
        source=Path(getattr(getattr(target, "__code__", None), "co_filename", "script")),
        functions={key: value for key, value in around.items() if callable(value)} | own,
        parameter_range=getattr(target, "parameter_range", None),
        function=name,
        fingerprint=_fingerprint(target),
        parts=makeup.parts if makeup else {},
        notes=makeup.notes if makeup else None,
    )


_FUNCTION_OF = {kind: name for name, kind in FUNCTIONS.items()}


def _file_of(module: ModuleType) -> Path:
    return Path(inspect.getsourcefile(module) or module.__name__)


def _fingerprint(function: object) -> str:
    """Return the SHA-256 of a function in a script; for an objective, the one that older versions compare."""
    if isinstance(function, FunctionType) and function.__name__ != "<lambda>":
        return fingerprint(function)
    code = getattr(function, "__code__", None)
    # The source of a lambda would be its whole statement, with the other arguments of the call.
    text = type(function).__qualname__ if code is None else f"{code.co_code.hex()} {code.co_names} {code.co_consts}"
    return hashlib.sha256(text.encode()).hexdigest()


def space_of(
    given: SpaceLike | None,
    definition: TrialDefinition | None = None,
    fixed: Mapping[str, str] | None = None,
    feasible: Any = None,
) -> Space:
    """Return the search space with the constraint `feasible`, or else the target's.

    Raises:
        ConfigurationError: there is no space, it is invalid, or there are two constraints.
    """
    of_target = None if definition is None else definition.functions.get(CONSTRAINT_NAME)
    if feasible is not None and of_target is not None and of_target is not feasible:
        raise ConfigurationError(
            "A search space has one constraint. Received: the argument `feasible`, and `feasible` of the target. Leave "
            "one of them out."
        )
    feasible = of_target if feasible is None else feasible
    if isinstance(given, str | os.PathLike):
        loaded = load_space(os.fspath(given), fixed)
        return loaded if feasible is None else finish_space(loaded, feasible, "the argument `feasible`")
    source = "the argument `space`"
    if given is None and definition is not None:
        given, source = definition.parameter_range, f"`parameter_range` of {definition.source}"
    if given is None:
        raise ConfigurationError(
            "A search needs a search space. Received: none. Give one, for example `{'x': Real(0, 1)}`."
        )
    if isinstance(given, Mapping):
        given = Space(given)
    return finish_space(space_from_dimensions(given, source), feasible, source, fixed)
