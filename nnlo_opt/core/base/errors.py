"""Errors by their cause.

    NnloError
    ├── ConfigurationError   the request is wrong: one sentence, exit code 2, nothing was trained
    ├── TrialError           this trial is wrong: contained in its block, recorded in the journal as a failed trial
    ├── JournalError         the journal of a run cannot be trusted: exit code 2, the file is not changed
    │   └── UnreadableEventError   one event of it has a value that no event has
    ├── CheckpointError      a checkpoint cannot be trusted: an older checkpoint or a fresh start is used
    ├── OutOfTimeError       a preempted job has no time left: it ends at once, exit code 75
    ├── BrokenProcessError   code of a user has closed our files: the process ends at once
    └── ProtocolError        a bug of this package: the job aborts at once

A message states the rule, the value received and the remedy, in one sentence. What it quotes may come from a file that
anybody has written, so no message holds a character on which a terminal would act.
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
#: last line of a command that Ctrl-C ends before its run has begun
NOTHING_BEGUN = "Interrupted: no trial had begun."
#: controls (C0, DEL, C1) but for tabs and ends of lines, overrides of the direction of text, halves of surrogate pairs
_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text for people, with an escape for each character on which a terminal would act.

    JSON has the same escapes, so that printed JSON keeps its values.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


#: most characters of a value that a message quotes
_MOST_SHOWN = 200


def shown(value: object) -> str:
    """Return a value as a message quotes it: a table or an array by its shape, a long one without its middle."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and not isinstance(value, type):
        return f"a {type(value).__name__} of {' x '.join(map(str, shape))}"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 4 :]}"


class NnloError(Exception):
    """Base class of all errors that this package raises on purpose.

    >>> issubclass(nnlo_opt.TrialError, nnlo_opt.NnloError)
    True
    """

    #: exit code of a command that ends with the error
    exit_code: ClassVar[int] = EXIT_FAILURE

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigurationError(NnloError):
    """Error for a request that cannot be fulfilled; its message is shown to the user, exit code 2.

    >>> try:
    ...     nnlo_opt.optimize(lambda p: 1.0, {"x": (0, 1)}, num_iterations=1)
    ... except nnlo_opt.ConfigurationError as error:
    ...     print(error)
    Every value of a search space must be a parameter. Received: (0, 1) for 'x'. Write it as `{'x': ...`.
    """

    exit_code = EXIT_WRONG_REQUEST


class TrialError(NnloError):
    """Error for a trial that cannot be trained; its message is the reason in the journal, and the search continues.

    >>> try:
    ...     nnlo_opt.optimize(lambda p: None, {"x": Real(0, 1)}, num_iterations=1)
    ... except nnlo_opt.TrialError as error:
    ...     print(error)
    trial 0 has failed: the objective must return a finite number; received: None, ...
    """


class SearchWarning(UserWarning):
    """Warning of a search in a script: a trial that has failed, an argument that does not do what it seems to.

    >>> import warnings
    >>> warnings.simplefilter("ignore", nnlo_opt.SearchWarning)
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class MisuseError(TrialError):
    """Error for code of a user that breaks a rule at any point: to try another point would not help."""


class LostAttemptError(TrialError):
    """Error for an attempt at a trial that ended by chance: the trial is tried again, up to `--max-attempts` times."""


class JournalError(NnloError):
    """Error for a journal that is damaged or foreign; exit code 2, the file is not changed.

    >>> nnlo_opt.JournalError.exit_code
    2
    """

    exit_code = EXIT_WRONG_REQUEST


class UnreadableEventError(JournalError):
    """Error for an event of this version with a value that it never writes; `nnlo-opt repair` drops the event."""


class CheckpointError(NnloError):
    """Error for a checkpoint that is incomplete or damaged."""


class OutOfTimeError(NnloError):
    """Error for a preempted job without time for an orderly end; it ends at once, and the files on disk suffice."""

    exit_code = EXIT_PREEMPTED


class BrokenProcessError(NnloError):
    """Error for a process whose file descriptors were closed by code of a user; it ends at once, without MPI."""

    def __init__(self) -> None:
        super().__init__(
            "A model or an objective must close only file descriptors that it has opened. Received: a process whose "
            "journal, messages or MPI were closed, so that it cannot continue. Correct the code, then add "
            f"`{spelled('opt_restore', True)}` to resume: finished trials are in the journal."
        )


class ProtocolError(NnloError):
    """Error for a message or transition that breaks the protocol: always a bug, never a mistake of the user."""


def require_package(asked: str, package: str, extra: str, remedy: str) -> None:
    """Raise ConfigurationError unless a package is installed.

    Args:
        asked: request that needs the package; it begins the sentence.
        package: name by which Python imports it.
        extra: extra of this package that installs it.
        remedy: what to do without the package.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(
            f"{asked} needs the package {package}. It is not installed: `pip install 'nnlo_opt[{extra}]'`, or {remedy}."
        )


def require_known(what: str, name: object, known: Iterable[str]) -> None:
    """Raise ConfigurationError unless `name` is one of the `known` names; `what` begins the sentence."""
    names = [*known]
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigurationError(f"{what} must be one of {', '.join(names) or 'none'}. Received: {name!r}.{hint}")


#: names of other things, although they are close to names of ours
_OTHER_THINGS = {"adamw", "adamax", "nadam", "n_iter", "n_random_starts", "resources", "validation_split"}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence, after a space, that proposes the `known` name closest to `name`; empty if none is close."""
    text = str(name)
    if text.lower().lstrip("-").replace("-", "_") in _OTHER_THINGS:
        return ""
    names = [*known]
    close = get_close_matches(text, names, n=1) or get_close_matches(text.lower(), names, n=1)
    return f" Did you mean `{close[0]}`?" if close and close[0] != name else ""


def refuse_forked(pid: int, what: str, remedy: str) -> None:
    """Raise ConfigurationError unless this is process `pid`, which has opened `what`."""
    if os.getpid() != pid:
        raise ConfigurationError(
            f"{what} belongs to the process that has opened it. Received: a call in process {os.getpid()}, which was "
            f"forked from process {pid}. {remedy}"
        )


for _public in (NnloError, ConfigurationError, TrialError, JournalError, SearchWarning):
    _public.__module__ = "nnlo_opt"  # by which a traceback names it, and from which it is imported
