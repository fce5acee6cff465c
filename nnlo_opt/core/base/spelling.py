"""How a message names an option: `--batch 8` on the command line, `batch=8` in Python.

A message says `spelled("batch", 8)`, and the door through which its reader came decides: a process speaks as the
command line does, and within `python_spelling` as Python does, in all threads and in processes that are forked then.
What has been said is plain text, the same in a journal, on another rank and in another process.
"""

from collections.abc import Mapping
from contextlib import ContextDecorator

#: one entry per running call from Python; a list, because threads append to it and pop without a lock
_CALLS: list[None] = []


class python_spelling(ContextDecorator):
    """Context, or decorator, in which messages name arguments of Python instead of options."""

    def __enter__(self) -> None:
        _CALLS.append(None)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _CALLS.pop()


def either(command_line: str, python: str) -> str:
    """Return the words of the command line, or those of Python."""
    return python if _CALLS else command_line


def spelled(name: str, value: object = None) -> str:
    """Return an option as its user writes it, alone or with a value.

    >>> spelled("num_iterations"), spelled("hyper_opt", "grid"), spelled("overlap", True), spelled("shuffle", False)
    ('--num-iterations', '--hyper-opt grid', '--overlap', '--no-shuffle')
    >>> with python_spelling():
    ...     spelled("num_iterations"), spelled("hyper_opt", "grid"), spelled("overlap", True), spelled("batch", 8)
    ('num_iterations', 'hyper_opt="grid"', 'overlap=True', 'batch=8')

    Args:
        name: in Python. A message writes the flag of an option that a search from Python does not have itself.
        value: True and False are the two forms of a flag; None: no value.
    """
    flag = name.replace("_", "-")
    if value is None:
        return either(f"--{flag}", name)
    if isinstance(value, bool):
        return either(f"--{flag}" if value else f"--no-{flag}", f"{name}={value}")
    is_code = isinstance(value, int | float | Mapping)
    return either(f"--{flag} {value}", f"{name}={value}" if is_code else f'{name}="{value}"')
