"""Words of the command line in a sentence as words of Python."""

import re
from contextlib import ContextDecorator

from nnlo_opt.app.run.options.table import BY_NAME
from nnlo_opt.core.base.errors import ConfigurationError, NnloError

#: an option, with its value if it has one, and the beginning of a rule about it
_OPTION = re.compile(r"`--([a-z-]+)(?:[ =]([^`]+))?`( must| differs)?")
_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")
#: options that are arguments of other names
_ARGUMENTS = {"search_space": "space", "shuffle": "shuffle", "model": "target"}
#: a command of `nnlo-opt` that is a method here
_COMMANDS = {"`nnlo-opt enqueue`": "`study.enqueue`", "`nnlo-opt stop`": "`study.stop`"}
#: what was received, or code, whose words stay; or the word for what stands in a command line
_WORD = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\boption(s?)\b")


class in_python(ContextDecorator):
    """Context whose errors name arguments of Python instead of options, without lines of this package before theirs.

    A decorator, too.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NnloError):
            said = python_words(str(error))
            if isinstance(error, ConfigurationError):  # other errors quote code of the user
                said = _WORD.sub(lambda found: found[0] if found[1] is None else f"argument{found[1]}", said)
            error.args = (said, *error.args[1:])
            raise error.with_traceback(None)


def python_words(text: str) -> str:
    """Return a sentence with arguments of Python: `--opt-restore` becomes `opt_restore=True`.

    Options that a search from Python does not have stay as they are.
    """
    for command, method in _COMMANDS.items():
        text = text.replace(command, method)
    return _OPTION.sub(_argument, text)


def argument_names(text: str) -> str:
    """Return the help of an option with the names of arguments: `--early-stopping` becomes early_stopping."""
    return _FLAG.sub(lambda found: found[1].replace("-", "_"), text)


def _argument(found: re.Match[str]) -> str:
    name, value, rule = found[1].replace("-", "_"), found[2], found[3] or ""
    option = BY_NAME.get(name) or BY_NAME.get(name.removeprefix("no_"))
    if name in _ARGUMENTS:
        return f"`{_ARGUMENTS[name]}`{rule}"
    if option is None or not option.python:
        return found[0]
    if name.startswith("no_"):
        name, value = name.removeprefix("no_"), "False"
    elif name == "fix" and value is not None:
        value = _in_mapping(value)
    elif value is not None:
        value = value if _NUMBER.fullmatch(value) else f'"{value}"'
    elif option.kind.type is bool:
        value = "True"
    return f"`{name}`{rule}" if value is None or rule else f"`{name}={value}`"


def _in_mapping(value: str) -> str:
    """Return `NAME=VALUE` as code."""
    name, _, fixed = value.partition("=")
    return f'{{"{name}": {fixed or "..."}}}'
