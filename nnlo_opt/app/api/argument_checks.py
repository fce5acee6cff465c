"""Arguments of `optimize` and `Study`: checked before anything begins, with our names for those of other packages."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nnlo_opt.app.run.options.table import BY_NAME
from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean, shown
from nnlo_opt.core.base.user_code import takes_arguments
from nnlo_opt.core.trials.objectives import direction_named
from nnlo_opt.engine.objective.other_names import ARGUMENTS


def check_flags(catch: object, progress: object) -> None:
    """Raise ConfigurationError unless these arguments are True, False or None."""
    for name, value in (("catch", catch), ("progress", progress)):
        if value is not None and not isinstance(value, bool):
            raise ConfigurationError(f"`{name}` must be True, False or None. Received: {shown(value)}.")


def check_callbacks(callbacks: Any) -> None:
    """Raise ConfigurationError unless it is a list of functions of two arguments."""
    rule = "`callbacks` must be a list of functions of (study, trial)"
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        remedy = f"Write it as `callbacks=[{_name(callbacks)}]`" if callable(callbacks) else "Put them into a list"
        raise ConfigurationError(f"{rule}. Received: {shown(callbacks)}. {remedy}.")
    for callback in callbacks:
        if isinstance(callback, type):
            raise ConfigurationError(f"{rule}. Received: a class. Write it as `callbacks=[{_name(callback)}()]`.")
        if not callable(callback) or not takes_arguments(callback, 2):
            raise ConfigurationError(
                f"{rule}. Received: {shown(callback)}. Write it as `def callback(study, trial): ...`, in which "
                "`study.result` has the results so far."
            )


def _name(part: Any) -> str:
    name = str(getattr(part, "__name__", "callback"))
    return name if name.isidentifier() else "callback"


def check_names(given: Mapping[str, Any], known: Collection[str], of_optimize: Collection[str]) -> None:
    """Raise ConfigurationError, with all of them, if arguments have other names than the `known` ones.

    `of_optimize`: arguments of `optimize` alone, which a `Study` does not have.
    """
    if not (unknown := [name for name in given if name not in known]):
        return
    if (name := unknown[0]) not in ARGUMENTS and hasattr(given[name], "from_unit"):
        raise ConfigurationError(
            f"A parameter must be in the search space. Received: `{name}` as an argument. Write it as "
            f"`space={{{name!r}: {given[name]}}}`."
        )
    what = ", ".join(f"`{name}`, which {_meaning(name, of_optimize)}" for name in unknown)
    hints = "".join(did_you_mean(name, known) for name in unknown if _meaning(name, of_optimize) == _NONE)
    raise ConfigurationError(
        f"An argument must be one of a search. Received: {what}.{hints} `help(nnlo_opt.optimize)` lists them."
    )


_NONE = "is unknown"


def _meaning(name: str, of_optimize: Collection[str]) -> str:
    if name in ARGUMENTS:
        return f"is `{ARGUMENTS[name]}` here"
    if name in of_optimize:
        return "is for `nnlo_opt.optimize`: a study leaves the trials to you"
    return "only the command OptimizationDriver has" if name in BY_NAME else _NONE


def check_meaning(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a value that is one of another option: a direction, directions, no name."""
    for name in ("mode", "objective"):
        if isinstance(value := given.get(name), str) and (direction := direction_named(value)):
            raise ConfigurationError(
                f'`{name}` is not a direction. Received: {value!r}. Write it as `direction="{direction}"`.'
            )
    for name in ("direction", "objective"):
        value = given.get(name)
        words = [*value] if isinstance(value, list | tuple) else []
        if words and all(isinstance(word, str) and direction_named(word) for word in words):
            names = ", ".join(f"'value_{n}': '{direction_named(word)}'" for n, word in enumerate(words))
            raise ConfigurationError(
                f"Several directions must have the names of the values that the objective returns. Received: "
                f"`{name}={value!r}`. Write it as `objective={{{names}}}`, and return a dictionary of these names."
            )
    if given.get("checkpoint") == "":
        raise ConfigurationError("`checkpoint` must name a run. Received: ''. Leave it out to keep nothing on disk.")
