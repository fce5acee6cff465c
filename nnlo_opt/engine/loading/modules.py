"""Execution of users' Python files as modules, always from source.

Python's bytecode cache recognises a changed file by its time in seconds and its length, and may miss a quick edit. All
ranks would also write the cache at once, next to the user's file.

A process spawned by an objective, such as a worker of torch's `DataLoader`, imports the module of a function by name,
in a new interpreter that shares only `sys.path` with this one. So a file becomes a module of its own name, found in its
folder. If another module has that name, the file becomes a submodule of this one, which can find it.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import ClassVar

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.safe_path import own_bytes
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.user_code import describe, line_in, place_of


class _FromSource(SourceFileLoader):
    def __init__(self, name: str, path: str, text: bytes | None = None) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path) if self._text is None else self._text, path)
        return code


def own_files(files: Sequence[Path], sha256: str | None, model: Path | None = None) -> list[bytes | None]:
    """Return the content of code files named by a run; ConfigurationError if other users may have written them.

    Args:
        files: at least one. Execute the returned bytes: the files may change after this check.
        sha256: hexadecimal SHA-256 of their concatenated contents; empty if unknown; None for files that the user
            names, which are not read here.
        model: the file that a user can name to execute them anyway, for the error; the first one by default.
    """
    if sha256 is None:
        return [None for _ in files]
    shown = model or files[0]
    try:
        texts = [own_bytes(path) for path in files]
    except OSError as error:
        raise ConfigurationError(
            "Code that only a run names is executed only if nobody else can have written it. Received: "
            f"{error.strerror or error}. Look at the file, then name it by `{spelled('model', shown)}`."
        ) from None
    if sha256 and hashlib.sha256(b"".join(texts)).hexdigest() != sha256:
        raise ConfigurationError(
            f"The weights of a run must belong to its model. Received: `{shown}`, which has changed since. Restore "
            f"the file, or train the trial again by `--from-run` with `--model {shown}`."
        )
    return [*texts]


class _OwnNeighbours:
    """Finds modules in the folder of a model named only by a run; they must belong to this user, too."""

    #: folder -> its model file
    models: ClassVar[dict[Path, Path]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if cls.models else None
        file = Path(str(spec and spec.origin))
        model = next((model for folder, model in cls.models.items() if file.is_relative_to(folder)), None)
        if spec is None or model is None:
            return None
        (text,) = own_files([file], "", model)
        if file.suffix == ".py":
            spec.loader = _FromSource(name, str(file), text)
        return spec


#: makes this module a package without folders: `_ByPath` finds its submodules
__path__: list[str] = []
#: name of each module executed here -> its file
_named: dict[str, Path] = {}


class _ByPath:
    """Finds files in `sys.path` whose own name is taken by another module."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        files = (file.resolve() for entry in sys.path for file in Path(entry or ".").glob("*.py"))
        file = next((file for file in files if _name_by_path(file) == name), None)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(name, file, loader=_FromSource(name, str(file)))


if not any(getattr(finder, "__name__", "") == _ByPath.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_ByPath)


def name_of(file: Path) -> str:
    """Return the module name under which a new interpreter with the same `sys.path` can import `file` (absolute)."""
    before = next((name for name, other in _named.items() if other == file), None)
    return before or (file.stem if _has_name_alone(file) else _name_by_path(file))


def _name_by_path(file: Path) -> str:
    return f"{__name__}.{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{_digest(file)}"


def _digest(file: Path) -> str:
    return hashlib.sha256(os.fsencode(file)).hexdigest()[:12]


def _has_name_alone(file: Path) -> bool:
    """Return True if the name of `file`, in a folder of `sys.path`, is not taken by another module."""
    name, folder = file.stem, file.parent
    if "." in name or name.startswith("__") or name in sys.modules:
        return False
    importlib.invalidate_caches()
    beside = PathFinder.find_spec(name, [str(folder)])
    if beside is None or beside.origin is None or Path(beside.origin) != file:
        return False  # a package of that name
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]
    others = [finder for finder in sys.meta_path if finder not in (PathFinder, _ByPath, _OwnNeighbours)]
    specs = [PathFinder.find_spec(name, elsewhere), *(finder.find_spec(name, None) for finder in others)]
    return not any(spec is not None and spec.loader is not None for spec in specs)  # any folder has no loader


#: files being executed, outermost first
EXECUTING: list[Path] = []


def execute_file(path: Path, text: bytes | None = None) -> ModuleType:
    """Execute a model module, with its folder on the import path. Only for processes that may import a framework.

    The name of the module is unique (`name_of`): a user's `keras.py` must not be confused with Keras, nor two files of
    the same name with each other.

    Args:
        path: its file.
        text: its content from `own_files`; None for a file that a user has named.

    Raises:
        ConfigurationError: with file, line and error, if the file cannot be executed.
    """
    file = path.resolve()
    if file.suffix != ".py":
        raise ConfigurationError(f"A model module must be a Python file. Received: {path}. Give a file ending in .py.")
    # Models saved by Keras name the modules of their classes; earlier versions used the second or third name.
    names: list[str] = []
    EXECUTING.append(file)
    try:
        with importing(path, is_named=text is None):
            former = _name_by_path(file).replace(__name__, "nnlo_opt.user_files")
            names += [name_of(file), f"_model_{file.stem}_{_digest(file)}", former]
            loader = _FromSource(names[0], str(file), text)
            spec = importlib.util.spec_from_file_location(names[0], file, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            _named[names[0]] = file
            sys.modules.update(dict.fromkeys(names, module))
            loader.exec_module(module)
    except BaseException:
        for name in names:
            sys.modules.pop(name, None)
            _named.pop(name, None)
        raise
    finally:
        EXECUTING.pop()
    return module


@contextmanager
def importing(path: Path, *, is_named: bool = True) -> Iterator[None]:
    """Context for executing a model module or part of it: errors become a ConfigurationError with the line.

    The folder of the module is added to `sys.path` and stays there: `get_model` may import neighbours at any time. If
    no user has named the module, its neighbours must belong to this user.
    """
    path = path.resolve()
    if is_named:
        _OwnNeighbours.models.pop(path.parent, None)
    elif str(path.parent) not in sys.path:
        _OwnNeighbours.models[path.parent] = path
        if _OwnNeighbours not in sys.meta_path:
            sys.meta_path.insert(sys.meta_path.index(PathFinder), _OwnNeighbours)
    if str(path.parent) not in sys.path:
        # After the folder of an executed file of the same name, which owns that module name.
        same = [str(file.parent) for name, file in _named.items() if (path.parent / f"{name}.py").exists()]
        place = max((1 + sys.path.index(folder) for folder in same if folder in sys.path), default=0)
        sys.path.insert(place, str(path.parent))
    try:
        yield
    except ConfigurationError as error:  # raised by our own classes, already written for the user
        raise ConfigurationError(f"{path}{line_in(path, error)}: {error}") from error
    except (Exception, SystemExit) as error:
        remedy = "Install" if isinstance(error, ModuleNotFoundError) else "Correct"
        raise ConfigurationError(
            f"A module must import without an error. Received: {path}{line_in(path, error)}, "
            f"{describe(error)}. {remedy} it, or name another file."
        ) from error


def load_module(source: str, rule: str) -> ModuleType:
    """Return the module FILE.py or MODULE; call it only in a process that may import a framework.

    Args:
        source: a file, or the name of a module in `sys.path` or the working folder.
        rule: what the user has to provide, for the error.

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
            f"The module {source!r} must import without an error. Received: {describe(error)} "
            f"({place_of(error) or 'not in a file of yours'}). Correct it."
        ) from error
