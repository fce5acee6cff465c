"""Kinds of option values: each parses a value from text, or checks one given in Python.

The error for a wrong value consists of rule and value, "must be a whole number of samples, at least 1. Received: 0.";
the caller prepends the option's name.
"""

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean, shown
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.data.weights import ClassWeights, parse_class_weights
from nnlo_opt.core.search.start_points import parse_start_point
from nnlo_opt.core.search.warm_start import Earlier
from nnlo_opt.core.space.fixing import fixing
from nnlo_opt.core.trials.objectives import Objective, OutcomeConstraint
from nnlo_opt.engine.loading import installed
from nnlo_opt.engine.objective.other_names import part_named
from nnlo_opt.engine.search.custom import is_custom

_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")
#: last letter of a duration -> seconds
_UNITS = {"s": 1, "m": 60, "h": 3600}


class WrongValueError(ValueError):
    """Rule and wrong value, to be appended to the option's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of option value.

    Args:
        rule: completes "must be ...".
        type: type of the value in Python.
        convert: converts text, or a value given in Python; may raise like `int` and `len`.
        action: what the command line does with the option: store, store_true, switch (`--x` and `--no-x`), append (it
            may be repeated) or extend (the same, with one value or several at a time).
        names_code: returns True for a value that refers to code or a program to execute (`app.run.options.of_journal`).
        each: kind of the items of a list; None for a single value.
    """

    rule: str
    type: Any
    convert: Callable[[Any], Any]
    action: str = "store"
    names_code: Callable[[object], bool] = lambda _: False
    each: "Kind | None" = None

    def __call__(self, value: object) -> Any:
        """Return the converted value; WrongValueError if `value` is invalid."""
        try:
            return self.convert(value)
        except WrongValueError:
            raise
        except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError):
            text = value if isinstance(value, str) else shown(value)
            raise WrongValueError(f"must be {self.rule}. Received: {text}.") from None


def whole(low: int = 1, unit: str = "") -> Kind:
    """Return the kind of whole numbers of at least `low`, counted in `unit`."""

    def convert(value: Any) -> int:
        return _within(int(value) if isinstance(value, str) else operator.index(_no_flag(value)), low)

    return Kind(rule=f"a whole number{f' of {unit}' * bool(unit)}, at least {low}", type=int, convert=convert)


def finite(low: float | None = None, unit: str = "") -> Kind:
    """Return the kind of finite numbers, of at least `low` if given, measured in `unit`."""
    least = "" if low is None else f", at least {low:g}"
    return Kind(
        rule=f"a finite number{f' of {unit}' * bool(unit)}{least}",
        type=float,
        convert=lambda value: _within(_finite(value), low),
    )


def duration(low_s: float = math.ulp(0.0)) -> Kind:
    """Return the kind of durations of at least `low_s` seconds; they are read as seconds."""

    def convert(value: Any) -> float:
        text = value.strip() if isinstance(value, str) else ""
        if clock := _CLOCK.fullmatch(text):
            value = 3600.0 * int(clock[1]) + 60 * int(clock[2]) + int(clock[3])
        elif unit := _UNITS.get(text[-1:]):
            value = unit * _finite(text[:-1])
        return float(_within(_finite(value), low_s))

    least = f"of at least {low_s:g} s" if low_s >= 1 or not low_s else "above 0"
    return Kind(rule=f"a time {least}, in seconds or as 90m, 2h or 1:30:00", type=float | str, convert=convert)


def _epochs_or_share(value: Any) -> float | str:
    if isinstance(value, str) and value.strip().endswith("%"):
        return f"{_within(_finite(value.strip()[:-1]), 0, 100):g}%"
    return float(_within(_finite(value), 0))


def one_of(*choices: str, other: str = "") -> Kind:
    """Return the kind of names out of `choices`; `other` is appended to the rule."""
    rule = f"one of {', '.join(choices)}{other}"

    def convert(value: Any) -> str:
        if value not in choices:
            text = value if isinstance(value, str) else shown(value)
            raise WrongValueError(f"must be {rule}. Received: {text}.{did_you_mean(value, choices)}")
        return choices[choices.index(value)]

    return Kind(rule=rule, type=Literal[choices], convert=convert)


def or_installed(choices: Sequence[str], group: str, other: str = "") -> Kind:
    """Return the kind of `choices` and names from installed packages; `other` is appended to the rule.

    Args:
        group: group of entry points, only searched for names that are not in `choices`.
    """
    names = one_of(*choices, other=other)

    def convert(value: Any) -> str:
        if not isinstance(value, str) or value in choices or not value or ".py" in value or "/" in value:
            return str(names(value))
        if part := installed.found(group, value):
            return part
        wrong = f"must be {names.rule}. Received: {value}.{installed.nearest(value, group, choices)}"
        raise WrongValueError(wrong)

    return Kind(rule=names.rule, type=names.type, convert=convert, names_code=lambda value: value not in choices)


def or_own(choices: Sequence[str], check: Callable[[object], None], group: str) -> Kind:
    """Return the kind of `choices`, FILE.py:CLASS, classes and objects that pass `check`, and installed ones."""
    names = or_installed(choices, group, ", or FILE.py:CLASS")

    def convert(value: Any) -> Any:
        if (ours := part_named(value)) in choices and value not in choices:
            text = value if isinstance(value, str) else shown(value)
            raise WrongValueError(f"must be {names.rule}. Received: {text}. Did you mean `{ours}`?")
        if (
            not is_custom(value)
            or installed.is_installed(value)
            or isinstance(value, bool | int | float | list | tuple | dict)
        ):
            return names(value)
        if not isinstance(value, str):
            check(value)
            return value
        if not os.path.isfile(value.rpartition(":")[0]):
            raise WrongValueError(f"must be {names.rule}. Received: {value}, and there is no such file.")
        return os.path.abspath(value)  # the model module may change the working folder

    return Kind(rule=names.rule, type=names.type, convert=convert, names_code=names.names_code)


def many(each: Kind, action: str = "append") -> Kind:
    """Return the kind of lists of `each`; a single item counts as a list of one."""

    def convert(value: Any) -> list[Any]:
        return [each(item) for item in ([value] if isinstance(value, str | os.PathLike | Mapping) else value)]

    kind: Any = each.type | Sequence[each.type]  # type: ignore[name-defined]
    return Kind(
        rule=f"{each.rule}, or several in a list",
        type=kind,
        convert=convert,
        action=action,
        names_code=lambda value: any(map(each.names_code, value if isinstance(value, list | tuple) else [value])),
        each=each,
    )


def _within(value: Any, low: float | None, high: float | None = None) -> Any:
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(value)
    return value


def _finite(value: Any) -> float:
    number = float(_no_flag(value))
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError(value)
    return value


def _only(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


_text, _flag = partial(_only, str), partial(_only, bool)


def _path(value: Any) -> str:
    return _text(os.fspath(value))


def _run_path(value: Any) -> str:
    """Return the path of a run; ConfigurationError for the URL of an Optuna storage."""
    path = _path(value)
    if "://" in path:
        raise ValueError(value)
    return path


def _dictionary(value: Any) -> dict[str, Any]:
    value = ast.literal_eval(value) if isinstance(value, str) else value
    return {_text(name): item for name, item in _only(Mapping, value).items()}


def _fixed(value: Any) -> dict[str, str]:
    """Return name -> value of parameters from texts NAME=VALUE or a mapping; ConfigurationError for anything else."""
    if isinstance(value, Mapping):
        return {_text(name): str(item) for name, item in value.items()}
    fixed: dict[str, str] = {}
    for text in map(_text, value):
        name, equals, item = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ConfigurationError(
                f"`{spelled('fix')}` must be given as NAME=VALUE. Received: {text!r}. Write it as "
                f"`{fixing('dropout', '0.5')}`."
            )
        if name in fixed:
            raise ConfigurationError(
                f"`{spelled('fix')}` must give a parameter one value. Received: {fixed[name]!r} and {item!r} for "
                f"{name!r}. Leave one of them out."
            )
        fixed[name] = item
    return fixed


def _kept(value: Any) -> int | None:
    """Return N of best:N, or None for all."""
    which, colon, number = _text(value).partition(":")
    if which != ("best" if colon else "all"):
        raise ValueError(value)
    return _within(int(number), 1) if colon else None


def _top_name(value: Any) -> str:
    name = _text(value).removesuffix("/")  # shells complete folders with a slash
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(value)
    return name


TEXT = Kind(rule="text", type=str, convert=_text)
#: a module, a function or a command
CODE = Kind(rule="text", type=str, convert=_text, names_code=lambda _: True)
TOP_NAME = Kind(rule="a name at the top of the folder in which the search is started", type=str, convert=_top_name)
PATH = Kind(rule="a path", type=str | os.PathLike[str], convert=_path)
RUN_PATH = Kind(rule="a name in `checkpoints`, or a path", type=str | os.PathLike[str], convert=_run_path)
EARLIER = Kind(
    rule="a run, a study or a table",
    type=str | os.PathLike[str] | Earlier,
    convert=lambda value: value if isinstance(value, Earlier) else _path(value),
)
#: True if given; has no value on the command line
FLAG = Kind(rule="True or False", type=bool, convert=_flag, action="store_true")
#: `--option` or `--no-option`
SWITCH = Kind(rule="True or False", type=bool, convert=_flag, action="switch")
POSITIVE = Kind(
    rule="a finite number above 0", type=float, convert=lambda value: _within(_finite(value), math.ulp(0.0))
)
SHARE = Kind(rule="a number from 0 to 1", type=float, convert=lambda value: _within(_finite(value), 0, 1))
EPOCHS_OR_SHARE = Kind(
    rule="a finite number of epochs, at least 0, or a share of the training such as 10%",
    type=float | str,
    convert=_epochs_or_share,
)
TIME = duration()
DICTIONARY = Kind(rule="a dictionary such as \"{'momentum': 0.9}\"", type=Mapping[str, Any], convert=_dictionary)
CLASS_WEIGHTS = Kind(
    rule="balanced, or a dictionary", type=ClassWeights, convert=lambda value: parse_class_weights(str(value))
)
OBJECTIVE = Kind(
    rule="a metric and its direction, such as val_loss:min", type=str, convert=lambda text: Objective.parse(_text(text))
)
OUTCOME = Kind(rule="a metric and its bound", type=str, convert=lambda text: OutcomeConstraint.parse(_text(text)))
START_POINT = Kind(
    rule="written as name=value,name=value",
    type=str | Mapping[str, Any],
    convert=lambda value: parse_start_point(value) if isinstance(value, str) else _dictionary(value),
)
KEPT = Kind(rule="all, or best:N with a whole number N of at least 1", type=str, convert=_kept)
FIXED = Kind(rule="a mapping of names and values", type=Mapping[str, Any], convert=_fixed, action="append")
