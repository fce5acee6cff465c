"""Calls objectives by their signature: a user's function gets the arguments it names."""

import ast
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from types import CodeType, MappingProxyType
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean

#: arguments of an objective besides parameters; all except the last are attributes of a `RunningTrial`
RESERVED = ("parameters", "comm", "report", "checkpoint", "fold", "trial")

#: True during a call of an objective
CALLED: ContextVar[bool] = ContextVar("CALLED", default=False)
_NONE: Mapping[str, str] = MappingProxyType({})
#: name of the callbacks in `integrations`, which save by their `trial`
_CALLBACK = "TrialCallback"


def takes(function: Callable[..., Any], what: str) -> bool:
    """Return True if an objective uses `what` of `RESERVED`: as an argument, by its `trial`, or by a callback."""
    try:
        arguments = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # written in C
    return _names(what, arguments, _attributes(function))


def text_takes(function: ast.FunctionDef | ast.AsyncFunctionDef, what: str) -> bool:
    """Like `takes`, from the source of an objective, without executing it or knowing its parameters.

    Three arguments with other names count as parameters, communicator and `report`.
    """
    of_kinds = (function.args.posonlyargs, function.args.args, function.args.kwonlyargs)
    nodes = [*ast.walk(function)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return _names(what, [argument.arg for arguments in of_kinds for argument in arguments], used)


def _names(what: str, arguments: Collection[str], used: set[str]) -> bool:
    """Return True if an objective with these arguments, which uses these attributes and globals, takes `what`."""
    by_place = len(arguments) == 3 and not {*RESERVED} & {*arguments} and what in RESERVED[:3]
    wanted = {what, _CALLBACK} if what == "checkpoint" else {what}
    return what in arguments or by_place or ("trial" in arguments and bool(wanted & used))


def _attributes(function: Any) -> set[str]:
    """Return the names of attributes and globals in a function, and in the functions within it."""
    code = getattr(function, "__code__", function)
    inner = (part for part in getattr(code, "co_consts", ()) if isinstance(part, CodeType))
    return {*getattr(code, "co_names", ())}.union(*map(_attributes, inner))


def objective_of(
    function: Callable[..., Any], source: str, names: Collection[str], conditions: Mapping[str, str] = _NONE
) -> Callable[[Any], Any]:
    """Return a function of a `RunningTrial` that calls the user's `function` with the arguments it names.

    An argument is one of `RESERVED`, or a parameter of the search space. A single positional argument with another name
    gets all parameters; three with other names get parameters, communicator and `report`, in this order. `**rest` gets
    the remaining parameters. Other arguments keep their defaults.

    Args:
        source: location of the function, for errors.
        names: names of the parameters of the search space.
        conditions: conditional parameter -> its condition, as text.

    Raises:
        ConfigurationError: unknown or missing arguments, a coroutine, or a conditional parameter without a default.
    """
    if (wrong := _no_objective(function)) is not None:
        received, remedy = wrong
        raise ConfigurationError(
            f"An objective must be a function that returns a figure of merit. Received: {received} in {source}.{remedy}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda trial: function(trial.parameters)  # written in C
    title = f"{getattr(function, '__name__', 'a function')}{signature} in {source}"
    taken = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    has_rest = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
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
        wanted = dict(zip(others, RESERVED[:3], strict=True))
    elif others or not (wanted or own or has_rest):
        hint = did_you_mean(others[0], {*names} - {*own}) if others else ""
        hint = " Give the method of an object, such as `Objective().method`." if others[:1] == ["self"] else hint
        raise ConfigurationError(
            "An objective must take `parameters`, or every parameter by its name, and may take `trial`, `comm`, "
            f"`report`, `checkpoint` and `fold`. Received: {title}, for the parameters {', '.join(names)}.{hint} "
            f"Write it as `def objective({', '.join(dict.fromkeys(['parameters', *wanted.values()]))})`."
        )
    if lacking := [p.name for p in taken if p.name in own and p.name in conditions and p.default is p.empty]:
        raise ConfigurationError(
            "An argument for a parameter that some trials do not have must have a default. Received: "
            f"{title}, where `{lacking[0]}` exists only if {conditions[lacking[0]]}. Write `{lacking[0]}=None`."
        )
    left = [name for name in names if name not in own]
    has_rest = has_rest and "parameters" not in wanted.values()
    if own and left and not (has_rest or {"parameters", "trial"} & wanted.keys()):
        raise ConfigurationError(
            f"An objective that takes parameters by name must take all of them. Received: {title}, without "
            f"`{left[0]}`. Add it, or name the argument `parameters` to get a dictionary."
        )

    _check_decorators(function, signature, {**wanted, **dict.fromkeys(own, "")}, title)
    in_one = next((argument for argument, name in wanted.items() if name == "parameters"), None)

    def call(trial: Any) -> Any:
        given = {argument: trial if name == "trial" else getattr(trial, name) for argument, name in wanted.items()}
        given |= {name: trial.parameters[name] for name in own if name in trial.parameters}
        rest = {name: trial.parameters[name] for name in left if has_rest and name in trial.parameters}
        bound = inspect.BoundArguments(signature, OrderedDict(given))
        token = CALLED.set(True)
        try:
            return function(*bound.args, **bound.kwargs, **rest)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            if in_one and names and _is_of(function, error):
                error.add_note(_about_dictionary(in_one, [*names], error))
            raise
        finally:
            CALLED.reset(token)

    return call


def _no_objective(function: Any) -> tuple[str, str] | None:
    """Describe why something is not an objective, with a remedy; None for an objective."""
    codes = (function, vars(type(function)).get("__call__"), getattr(function, "func", None))
    if not callable(function):
        return repr(function), ""
    if isinstance(function, type) and function.__module__ != "builtins":
        return f"the class {function.__name__}", " Write a function that uses it, or give an object that can be called."
    if any(map(inspect.iscoroutinefunction, codes)):
        return "a coroutine (`async def`)", " Write a function around it that ends with `return asyncio.run(...)`."
    if any(inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code) for code in codes):
        return "a generator (with `yield`)", " Pass values on the way to the argument `report`, and return the last."
    return None


def _check_decorators(
    function: Callable[..., Any], signature: inspect.Signature, given: Mapping[str, str], title: str
) -> None:
    """Raise ConfigurationError if a decorator, such as scikit-optimize's `use_named_args`, changes the arguments."""
    bound, outer = (
        inspect.BoundArguments(signature, OrderedDict(given)),
        inspect.signature(function, follow_wrapped=False),
    )
    try:
        outer.bind(*bound.args, **bound.kwargs)
    except TypeError:
        raise ConfigurationError(
            f"A decorator of an objective must pass on the arguments that it receives. Received: {title}, whose "
            f"decorator takes {outer}. Remove it: parameters are passed by name."
        ) from None


def _is_of(function: Callable[..., Any], error: Exception) -> bool:
    """Return True if an error of a call was raised by a line of the function itself."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    return (
        inside is not None and inside.tb_next is None and inside.tb_frame.f_code is getattr(function, "__code__", None)
    )


def _about_dictionary(argument: str, names: Sequence[str], error: Exception) -> str:
    """Return a hint if the code misuses the dictionary of parameters."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if key in names:
        return f"A trial has `{key}` only if its condition holds: take `{argument}.get({key!r})`."
    return (
        f"`{argument}` is a dictionary of the parameters {', f'.join(names)}: take `{argument}[{names[0]!r}]`, or "
        f"name them as arguments, as in `def objective({', '.join(names[:2])})`."
    )
