"""Reads the entries of a search space: our parameters, and scikit-optimize dimensions, which are converted.

For anything else (ranges, lists, Optuna and SciPy distributions, dictionaries of sweeps) the error shows the equivalent
parameter as code. These packages are not imported; their objects are recognised by their attributes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, shown
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import KINDS, Categorical, Integer, Parameter, Real, parameter_from_json
from nnlo_opt.core.space.values import is_number, plain

#: longest list that is quoted in full, in characters; a longer list of numbers becomes a range
_MOST_WRITTEN = 120
_KIND_NAMES = ", ".join(kind.__name__ for kind in KINDS)
#: names of a range's bounds in sweep dictionaries
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"))
#: names of the list of choices in sweep dictionaries
_CHOICES = ("values", "choices", "categories", "grid_search")


def parameters_of(given: Iterable[Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a list, or of a mapping by name.

    Raises:
        ConfigurationError: `given` is not a list or mapping, an entry is not a valid parameter, or it has two names.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(
            "A search space must be a list of parameters, or a dictionary of them by name. Received: "
            f"{given if _parameter(given) else shown(given)}. Write it as `{{'x': Real(0, 1)}}`."
        )
    if isinstance(given, Mapping):
        return tuple(_named(name, entry) for name, entry in given.items())
    return tuple(_entry(entry) for entry in given)


def _named(name: Any, entry: Any) -> Parameter:
    parameter = _parameter(entry)
    if parameter is None and isinstance(entry, Mapping) and any(map(_parameter, entry.values())):
        inner = next(key for key, value in entry.items() if _parameter(value))
        raise ConfigurationError(
            f"A search space must be flat. Received: a dictionary for {name!r}. Move {inner!r} to the top level; if it "
            f'is only used with one value of another parameter, add `condition=When("PARENT", {name!r})`.'
        )
    if parameter is None:
        remedy = " or ".join(f"`{{{name!r}: {code}}}`" for code in meant(entry))
        raise ConfigurationError(
            f"Every value of a search space must be a parameter. Received: {shown(entry)} for {name!r}. Write it as "
            f"{remedy}."
        )
    if parameter.name not in ("", name):
        raise ConfigurationError(
            f"A parameter must have one name. Received: {parameter.name!r} for {name!r}. Leave one of them out."
        )
    return parameter_from_json({**parameter.to_json(), "name": name})


def _entry(entry: Any) -> Parameter:
    if (parameter := _parameter(entry)) is not None:
        return parameter
    name, value = '"NAME"', entry
    if isinstance(entry, list | tuple) and len(entry) > 1 and isinstance(entry[0], str):  # a pair, or its bounds
        name, value = f'"{entry[0]}"', entry[1] if len(entry) == 2 else entry[1:]
        if (parameter := _parameter(value)) is not None:
            raise ConfigurationError(
                "Every entry of a search space must include its name. Received: a pair. Write it as "
                f"`{str(parameter)[:-1]}, name={name})`."
            )
    remedy = " or ".join(f"`{code[:-1]}, name={name})`" for code in meant(value))
    raise ConfigurationError(
        f"Every entry of a search space must be one of {_KIND_NAMES}, with a name. Received: {shown(entry)}. Write it "
        f"as {remedy}."
    )


def _parameter(entry: Any) -> Parameter | None:
    """Return a parameter as it is and a scikit-optimize dimension converted; None for anything else."""
    if isinstance(entry, type):
        return None
    if hasattr(entry, "from_unit"):
        parameter: Parameter = entry
        return parameter
    kind = kind_of_dimension(entry)
    if kind is None:
        return None
    name = entry.name or ""
    if kind == "Categorical":
        if getattr(entry, "prior", None) is not None:
            raise ConfigurationError(
                f"The categories of parameter `{name}` must be equally likely. Received: the weights "
                f"{entry.prior}. Leave `prior` out."
            )
        return Categorical(entry.categories, name=name)
    return (Integer if kind == "Integer" else Real)(entry.low, entry.high, entry.prior, name=name)


def kind_of_dimension(entry: Any) -> str | None:
    """Return the name of our class for a scikit-optimize dimension, recognised by its class names."""
    names = {base.__name__ for base in type(entry).__mro__}
    wanted = {"Real": ("low", "high", "prior"), "Integer": ("low", "high", "prior"), "Categorical": ("categories",)}
    for kind, attributes in wanted.items():
        if kind in names and all(hasattr(entry, attribute) for attribute in (*attributes, "name")):
            return kind
    return None


# ---------------------------------------------------------------- suggestions for values of other packages


def meant(given: Any) -> list[str]:
    """Return the parameters that a value may have been meant as, as code."""
    if isinstance(given, type) or callable(given):
        return [{bool: "Categorical([True, False])", int: "Integer(0, 9)"}.get(given, _example(given))]
    if isinstance(given, When):
        return [f"Real(0, 1, condition={given!r})"]
    if isinstance(given, range) and len(given) > 1:
        low, high = sorted((given[0], given[-1]))
        step = f", step={abs(given.step)}" * (abs(given.step) > 1)
        return [f"Integer({low}, {high}{step})"]
    if (code := _of_distribution(given)) is not None:
        return [code]
    if isinstance(given, Mapping):
        return _of_sweep(given)
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, str) and "uniform" in values:  # a prior
        return ['Real(0.001, 1, "log-uniform")' if "log" in values else "Real(0, 1)"]
    if given is None or isinstance(values, bool | int | float | str):
        return [f"Constant({shown(values)})"]
    if isinstance(values, set | frozenset):
        return [_choice(sorted(values, key=repr))]
    return _of_sequence(values) if isinstance(values, list | tuple) else ["Real(0, 1)"]


def _example(given: Any) -> str:
    kind = given.__name__ if given in KINDS else "Real"
    return {"Integer": "Integer(0, 9)", "Constant": "Constant(1)"}.get(
        kind, "Real(0, 1)" if kind == "Real" else f'{kind}(["a", "b"])'
    )


def _of_distribution(given: Any) -> str | None:
    """Return our parameter, as code, for an Optuna or frozen SciPy distribution; None for anything else."""
    if hasattr(given, "dist") and hasattr(given, "support"):
        name, (low, high) = str(given.dist.name), map(float, given.support())
        if not math.isfinite(high - low):
            return "Real(0, 1)"
        if name == "randint":
            return f"Integer({low:.0f}, {high:.0f})"
        return _range("Real", low, high, is_log=name in ("loguniform", "reciprocal"))
    if hasattr(given, "choices") and hasattr(given, "to_internal_repr"):
        return _choice([*given.choices])
    if all(hasattr(given, name) for name in ("low", "high", "log", "step")):
        kind = "Integer" if type(given).__name__.startswith("Int") else "Real"
        step = None if kind == "Integer" and given.step == 1 else given.step
        return _range(kind, given.low, given.high, is_log=given.log, step=step)
    return None


def _of_sweep(given: Mapping[Any, Any]) -> list[str]:
    """Return our parameters, as code, for a dictionary as in Weights & Biases, Ray Tune or settings files."""
    is_log = any("log" in str(value) for value in given.values() if isinstance(value, str))
    for low, high in _BOUNDS:
        if low in given and high in given:
            whole = all(isinstance(given[bound], int) for bound in (low, high)) and "float" not in given.values()
            return [_range("Integer" if whole else "Real", given[low], given[high], is_log=is_log)]
    found = next((given[name] for name in _CHOICES if isinstance(given.get(name), list | tuple)), None)
    if found is None and "value" in given:
        return [f"Constant({given['value']!r})"]
    return ["Real(0, 1)"] if found is None else [_choice([*found])]


def _of_sequence(values: list[Any] | tuple[Any, ...]) -> list[str]:
    bounds = [*values[:2]]
    if len(values) == 3 and isinstance(values[2], str) and all(map(is_number, bounds)):
        return [_range("Real", *bounds, is_log="log" in values[2])]
    if len(values) != 2 or not all(map(is_number, values)):
        return [_choice([*values])]
    low, high = sorted(bounds)
    if low == high:
        return [f"Constant({low!r})"]
    kinds = ["Integer", "Real"] if all(isinstance(value, int) for value in bounds) else ["Real"]
    between = [_range(kind, low, high) for kind in kinds]
    return between if isinstance(values, tuple) else [_choice(bounds), *between[:1]]


def _choice(values: list[Any]) -> str:
    """Return a Categorical of these values, as code; objects are replaced by their names."""
    values = [
        value if _is_plain(value) else str(getattr(value, "__name__", type(value).__name__))
        for value in map(plain, values)
    ]
    values = [*{repr(value): value for value in values}.values()]
    if len(values) < 2:
        return f"Constant({values[0]!r})" if values else 'Categorical(["a", "b"])'
    code = f"Categorical({values!r})"
    if len(code) > _MOST_WRITTEN and all(map(is_number, values)):
        low, high = min(values), max(values)
        is_log = low > 0 and high / low > 100 and sorted(values)[len(values) // 2] < (low + high) / 4
        return _range(
            "Integer" if all(isinstance(value, int) for value in values) else "Real", low, high, is_log=is_log
        )
    return f"Categorical({shown(values)})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | str) or is_number(value)


def _range(kind: str, low: Any, high: Any, *, is_log: bool = False, step: Any = None) -> str:
    more = ', "log-uniform"' * is_log + (f", step={step!r}" if step is not None else "")
    return f"{kind}({plain(low)!r}, {plain(high)!r}{more})"
