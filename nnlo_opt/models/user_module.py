"""A user's Python file, executed, with whatever is wrong in it said in one sentence."""

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.user_files import spec_of


def execute_file(path: Path) -> ModuleType:
    """Execute the Python file `path` as a module of its own name; its folder joins `sys.path`, as Python's own does.

    Raises `ConfigurationError` with the file, the line and the error if that fails. The file may import anything:
    to be called where a framework may be loaded.
    """
    path = path.resolve()
    # A name nobody else has: a user's `keras.py` must not be taken for Keras, nor one file for another of its name.
    name = f"_model_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_of(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"A model module must be a Python file. Received: {path}. Give a file ending in .py.")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        # For good: `get_model` may import neighbours as late as it likes.
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigurationError(
            f"A model module must import without an error. Received: {path}{line_in(path, error)}, "
            f"{describe(error)}. Mend it, or name another file."
        ) from error
    return module


def describe(error: BaseException) -> str:
    """An exception as one line: its type, and its message without a final dot."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(message.split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_in(path: Path, error: BaseException) -> str:
    """Where in the user's own file `path` it happened, as ", line 12"; empty if nowhere."""
    path = path.resolve()
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
