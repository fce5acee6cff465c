"""Errors by their cause.

    NnloError
    ├── ConfigurationError   invalid request: one sentence, exit code 2, nothing was trained
    ├── TrialError           this trial failed: recorded in the journal, and the search continues
    │   ├── MisuseError          user code breaks a rule at every point
    │   └── LostAttemptError     lost by chance: the trial is tried again
    ├── JournalError         damaged or foreign journal: exit code 2, the file is not changed
    │   └── UnreadableEventError   an event has a value that is never written
    ├── CheckpointError      damaged checkpoint: an older one is used, or training starts afresh
    ├── OutOfTimeError       a preempted job has no time left: exits at once, exit code 75
    ├── BrokenProcessError   user code has closed our files: the process exits at once
    └── ProtocolError        a bug of this package: the job aborts at once

A message states the rule, the value received and the remedy. Quoted values may come from untrusted files, so control
characters are escaped.
"""

import importlib.util
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

from nnlo_opt.core.base.spelling import spelled

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_WRONG_REQUEST = 2
EXIT_PREEMPTED = 75
#: last line of a command interrupted by Ctrl-C before its run began
NOTHING_BEGUN = "Interrupted: no trial had begun."
#: control characters (C0, DEL, C1) except tab and newline, bidirectional overrides, lone surrogates
_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Escape the characters in `text` that a terminal would interpret; for anything that is printed.

    The escapes are those of JSON, so printed JSON keeps its values.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


#: longest value that a message quotes, in characters
_MOST_SHOWN = 200


def shown(value: object) -> str:
    """Return a value as messages quote it: a table or array by its shape, a long value without its middle."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and not isinstance(value, type):
        return f"a {type(value).__name__} of {' x '.join(map(str, shape))}"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 4 :]}"


class NnloError(Exception):
    """Base class of all errors that this package raises on purpose; catch it to handle any of them.

    >>> try:
    ...     nnlo_opt.load_run("missing")
    ... except nnlo_opt.NnloError as error:
    ...     print(type(error).__name__)
    ConfigurationError
    """

    #: exit code of a command that fails with this error
    exit_code: ClassVar[int] = EXIT_FAILURE

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigurationError(NnloError):
    """The request is invalid: a command prints the message and exits with code 2; nothing was trained.

    >>> try:
    ...     nnlo_opt.optimize(lambda p: 1.0, {"x": (0, 1)}, num_iterations=1)
    ... except nnlo_opt.ConfigurationError as error:
    ...     print(error)
    Every value of a search space must be a parameter. Received: (0, 1) for 'x'. Write it as `{'x': ...`.
    """

    exit_code = EXIT_WRONG_REQUEST


class TrialError(NnloError):
    """A trial failed: the message is its reason in the journal, and the search continues with other trials.

    `optimize` raises it only if no trial has a result.

    >>> try:
    ...     nnlo_opt.optimize(lambda p: None, {"x": Real(0, 1)}, num_iterations=1)
    ... except nnlo_opt.TrialError as error:
    ...     print(error)
    trial 0 has failed: the objective must return a finite number; received: None, ...
    """


class SearchWarning(UserWarning):
    """Warning from a search in a script: a failed trial, or an argument without its usual effect.

    Silence these warnings if failed trials are expected:

    >>> import warnings
    >>> warnings.simplefilter("ignore", nnlo_opt.SearchWarning)
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class MisuseError(TrialError):
    """User code breaks a rule at every point: trying other points would not help."""


class LostAttemptError(TrialError):
    """An attempt at a trial was lost by chance: the trial is tried again, up to `--max-attempts` times."""


class JournalError(NnloError):
    """The journal of a run is damaged or is not ours; the file is not changed, and commands exit with code 2.

    >>> try:
    ...     run = nnlo_opt.load_run("checkpoints/CP")
    ... except nnlo_opt.JournalError:
    ...     print("damaged: see `nnlo-opt repair`")
    """

    exit_code = EXIT_WRONG_REQUEST


class UnreadableEventError(JournalError):
    """An event of this version has a value that is never written; `nnlo-opt repair` drops the event."""


class CheckpointError(NnloError):
    """A checkpoint is incomplete or damaged."""


class OutOfTimeError(NnloError):
    """A preempted job has no time for an orderly end: it exits at once, and resumes from the files on disk."""

    exit_code = EXIT_PREEMPTED


class BrokenProcessError(NnloError):
    """User code has closed file descriptors of this process, which exits at once, without finalizing MPI."""

    def __init__(self) -> None:
        super().__init__(
            "A model or an objective must close only file descriptors that it opened itself. Received: a process "
            "whose journal, messages or MPI were closed, so that it cannot continue. Correct the code, then add "
            f"`{spelled('opt_restore', True)}` to resume: finished trials are in the journal."
        )


class ProtocolError(NnloError):
    """A message or transition breaks the protocol: always a bug of this package, never a mistake of the user."""


def require_package(asked: str, package: str, extra: str, remedy: str) -> None:
    """Raise ConfigurationError unless a package is installed.

    Args:
        asked: request that needs the package, the beginning of the message.
        package: import name.
        extra: extra of nnlo_opt that installs it.
        remedy: what to do without the package.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(
            f"{asked} needs the package {package}. It is not installed: `pip install 'nnlo_opt[{extra}]'`, or {remedy}."
        )


def require_known(what: str, name: object, known: Iterable[str]) -> None:
    """Raise ConfigurationError unless `name` is one of the `known` names; `what` is the beginning of the message."""
    names = [*known]
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigurationError(f"{what} must be one of {', '.join(names) or 'none'}. Received: {name!r}.{hint}")


def check_whole(name: str, value: object, unit: str = "") -> None:
    """Raise ConfigurationError unless the option `name` is a whole number of at least 1, counted in `unit`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        counted = f"a whole number{f' of {unit}' * bool(unit)}, at least 1"
        raise ConfigurationError(f"`{name}` must be {counted}. Received: {value!r}.")


#: names of something else, although similar to names of ours
_OTHER_THINGS = {"adamw", "adamax", "nadam", "n_iter", "n_random_starts", "resources", "validation_split"}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" for the `known` name closest to `name`; empty if none is close."""
    text = str(name)
    if text.lower().lstrip("-").replace("-", "_") in _OTHER_THINGS:
        return ""
    names = [*known]
    close = get_close_matches(text, names, n=1) or get_close_matches(text.lower(), names, n=1)
    return f" Did you mean `{close[0]}`?" if close and close[0] != name else ""


def refuse_forked(pid: int, what: str, remedy: str) -> None:
    """Raise ConfigurationError in a forked child: unless this is process `pid`, which opened `what`."""
    if os.getpid() != pid:
        raise ConfigurationError(
            f"{what} belongs to the process that opened it. Received: a call in process {os.getpid()}, which was "
            f"forked from process {pid}. {remedy}"
        )


for _public in (NnloError, ConfigurationError, TrialError, JournalError, SearchWarning):
    _public.__module__ = "nnlo_opt"  # tracebacks show the public name
