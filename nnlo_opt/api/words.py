"""Options in a sentence as arguments of Python."""

import re
from contextlib import ContextDecorator

from nnlo_opt.errors import NnloError
from nnlo_opt.run.options.table import BY_NAME

#: an option, with its value if it has one, and the beginning of a rule about it
_OPTION = re.compile(r"`--([a-z-]+)(?:[ =]([^`]+))?`( must| differs)?")
_NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")


class in_python(ContextDecorator):
    """Context whose errors name arguments of Python instead of options, without lines of this package before theirs.

    A decorator, too.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NnloError):
            error.args = (python_words(str(error)), *error.args[1:])
            raise error.with_traceback(None)


def python_words(text: str) -> str:
    """Return a sentence with arguments of Python: `--opt-restore` becomes `opt_restore=True`.

    Options that a search from Python does not have stay as they are.
    """
    return _OPTION.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    name, value, rule = found[1].replace("-", "_"), found[2], found[3] or ""
    option = BY_NAME.get(name) or BY_NAME.get(name.removeprefix("no_"))
    if name in ("search_space", "shuffle"):
        return f"`{name.removeprefix('search_')}`{rule}"
    if option is None or not option.python:
        return found[0]
    if name.startswith("no_"):
        name, value = name.removeprefix("no_"), "False"
    elif value is not None:
        value = value if _NUMBER.fullmatch(value) else f'"{value}"'
    elif option.kind.type is bool:
        value = "True"
    return f"`{name}`{rule}" if value is None or rule else f"`{name}={value}`"
