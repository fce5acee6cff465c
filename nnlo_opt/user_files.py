"""Execution of users' Python files as modules, always from their source.

Python's own cache of compiled files distinguishes two versions of a file by the second of its time and by its length: a
file that is edited quickly is not read again. All ranks would also write the cache at once, next to the user's file.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from nnlo_opt.errors import ConfigurationError


class _FromSource(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


#: folders of Python's own code and of this package
_FOREIGN = (os.path.join(os.path.dirname(os.__file__), ""), os.path.join(os.path.dirname(__file__), ""))
#: files that are being executed, outermost first
EXECUTING: list[Path] = []


def spec_of(name: str, path: Path) -> ModuleSpec | None:
    """Return the spec for executing the file `path` as the module `name`; None unless it is a `.py` file."""
    if path.suffix != ".py":
        return None
    return importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))


def execute(path: Path, prefix: str) -> ModuleType | None:
    """Execute the file `path` and return its module; None unless it is a `.py` file. Its exceptions are passed on.

    The name of the module begins with `prefix` and is unique: a user's `keras.py` must not be confused with Keras, nor
    two files of the same name with each other.
    """
    path = path.resolve()
    name = f"{prefix}_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_of(name, path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    EXECUTING.append(path)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        EXECUTING.pop()
    return module


def execute_file(path: Path) -> ModuleType:
    """Execute a model module, whose folder joins `sys.path`; to be called in a process that may import a framework.

    Raises:
        ConfigurationError: with file, line and error, if the file cannot be executed.
    """
    with importing(path):
        module = execute(path, "_model")
    if module is None:
        raise ConfigurationError(f"A model module must be a Python file. Received: {path}. Give a file ending in .py.")
    return module


@contextmanager
def importing(path: Path) -> Iterator[None]:
    """Execute a model module, or a part of it, inside the context: errors become a ConfigurationError, with the line.

    The folder of the module joins `sys.path`, and stays there: `get_model` may import neighbours at any time.
    """
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        yield
    except ConfigurationError as error:  # raised by our own classes, in words for the user
        raise ConfigurationError(f"{path}{line_in(path, error)}: {error}") from error
    except (Exception, SystemExit) as error:
        remedy = "Install" if isinstance(error, ModuleNotFoundError) else "Correct"
        raise ConfigurationError(
            f"A model module must import without an error. Received: {path}{line_in(path, error)}, "
            f"{describe(error)}. {remedy} it, or name another file."
        ) from error


def load_module(source: str, rule: str) -> ModuleType:
    """Return the module FILE.py or MODULE; to be called in a process that may import a framework.

    Args:
        source: a file, or a module that Python finds, in the working folder as well.
        rule: what the user has to name, for the error.

    Raises:
        ConfigurationError: there is no such file or module, or it cannot be executed.
    """
    if source.endswith(".py"):
        if not os.path.isfile(source):
            raise ConfigurationError(f"{rule}. Received: {source!r}, which is no file; check the path.")
        return execute_file(Path(source))
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # unlike `python`, a console script does not search the working folder
    importlib.invalidate_caches()
    try:
        return importlib.import_module(source)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and source.split(".", maxsplit=1)[0] == str(error.name).split(".")[0]:
            raise ConfigurationError(
                f"{rule}. Received: {source!r}, which cannot be found ({describe(error)})."
            ) from error
        raise ConfigurationError(
            f"The module {source!r} must import without an error. Received: {describe(error)}. Correct it."
        ) from error


def takes_arguments(function: Any, n: int = 1) -> bool:
    """Return True if `function` can be called with `n` arguments; a function in C without a signature is trusted."""
    try:
        inspect.signature(function).bind(*[{}] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


#: most characters of a message in a sentence, the journal and the results; the log of the rank has all of them
LONGEST = 2000


def shortened(text: str, most: int = LONGEST) -> str:
    """Return `text` without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most:,} characters left out] {text[-(most // 2) :]}"


def message_of(error: BaseException) -> str:
    """Return the message of an exception on one line, shortened; code of a user, which may raise, makes the message."""
    try:
        text = str(error)
    except BaseException as raised:
        text = f"its message raises {type(raised).__name__}"
    return " ".join(shortened(text).split())


def describe(error: BaseException) -> str:
    """Return an exception on one line: its type, and its message without a final dot."""
    text = str(error.msg) if isinstance(error, SyntaxError) and error.msg else message_of(error)
    text = " ".join(text.split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_in(path: Path, error: BaseException) -> str:
    """Return the innermost line of users' code that raised `error`, as ", line 12"; empty if there is none.

    A file other than `path` is named: ", `layers.py`, line 3".
    """
    own = str(path.resolve())
    file, line = _place(error, own)
    return "" if not line else f", line {line}" if file == own else f", `{_shown(file)}`, line {line}"


def place_of(error: BaseException) -> str:
    """Return the innermost line of users' code that raised `error`, as "`model.py`, line 12"; empty without one."""
    file, line = _place(error)
    return f"`{_shown(file)}`, line {line}" if line else ""


def _place(error: BaseException, own: str = "") -> tuple[str, int]:
    """Return file and line of users' code that raised `error`, line 0 if there is none; `own` is a file of the user."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    return next((place for place in reversed(places) if place[0] == own or _is_of_user(place[0])), ("", 0))


def _is_of_user(file: str) -> bool:
    """Return True if `file` is code that belongs neither to Python, nor to an installed package, nor to this one."""
    path = Path(file)
    is_installed = file.startswith(_FOREIGN) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not (is_installed or path.name.startswith("__autograph_generated")) and path.is_file()


def _shown(file: str) -> str:
    with suppress(OSError):
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    return file
