"""Reads a model module without importing its framework, which would take seconds.

A module without a framework import at its top is executed normally. Of any other module only a part is executed: the
statements needed for the signature of its model, its search space and its functions about data, if all of these only
import packages, define functions and assign values, and need no framework. Any other statement stops the attempt.
"""

import ast
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.files import regular
from nnlo_opt.engine.loading.modules import importing
from nnlo_opt.engine.models.builders import FUNCTIONS, TrialDefinition, model_file, open_model
from nnlo_opt.engine.models.framework import PACKAGES, packages_of

#: functions of which only the signature is needed
_HOLLOW = {*FUNCTIONS, "get_loss", "get_optimizer", "get_scheduler"}
#: names needed from a module; * stands for all names of another module
_WANTED = (*_HOLLOW, "parameter_range", "feasible", "get_train", "get_val", "get_features", "get_labels", "*")
#: statements that only bind names
_PLAIN = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Assign | ast.AnnAssign
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class FrameworkWantedError(BaseException):
    """Raised when code imports a framework; not an `Exception`, so that users' code does not catch it."""


class without_framework:
    """Context that ends at the first import of a new framework, and then suppresses any error.

    It is an import finder that never finds anything.
    """

    #: True if the code tried to import a framework: then discard all results of the context
    was_needed = False

    def __enter__(self) -> "without_framework":
        sys.meta_path.insert(0, self)
        return self

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in PACKAGES:
            self.was_needed = True
            raise FrameworkWantedError(name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        sys.meta_path.remove(self)
        if self.was_needed:
            # Remove submodules of partly imported packages, so that the next import starts again.
            for name in [name for name in sys.modules if name.partition(".")[0] not in sys.modules]:
                del sys.modules[name]
        return self.was_needed and isinstance(error, Exception | FrameworkWantedError)


def read_early(spec: str, sha256: str | None = None, *, fresh: bool = False) -> TrialDefinition | None:
    """Return what can be known of the model `--model`; None if nothing. Call it inside `without_framework`.

    Args:
        spec: value of the option; for `sha256` and `fresh` see `open_model`.

    Raises:
        ConfigurationError: the text is not Python, imports a package that is not installed, or as in `open_model`.
    """
    path = model_file(spec)
    if path.suffix != ".py" or not os.path.isfile(path) or sha256 is not None:
        return open_model(spec, sha256, fresh=fresh)
    with importing(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the execution of the module repeats them
        tree = ast.parse(regular(path).read_bytes(), str(path.resolve()))
        compile(tree, str(path.resolve()), "exec", dont_inherit=True)
    executed = (node for statement in tree.body if not isinstance(statement, _FUNCTION) for node in ast.walk(statement))
    if any(PACKAGES & packages_of(node) for node in executed):
        return _read_part(tree, path)
    definition = open_model(spec)
    functions = [node for node in tree.body if isinstance(node, _FUNCTION) and node.name in FUNCTIONS]
    for statement in (statement for function in functions for statement in _first_imports(function)):
        with importing(path):
            for package in packages_of(statement) - PACKAGES:
                if package not in sys.modules and importlib.util.find_spec(package) is None:
                    raise ModuleNotFoundError(f"No module named {package!r} (line {statement.lineno})")
    return definition


def _first_imports(tree: ast.Module | _FUNCTION) -> Iterable[ast.stmt]:
    """Return the imports at the beginning of a module or function."""
    return takewhile(packages_of, tree.body[ast.get_docstring(tree) is not None :])


def _read_part(tree: ast.Module, path: Path) -> TrialDefinition | None:
    """Return the model defined by part of its module; None if that part may have side effects or needs a framework."""
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTION):
            node.returns = None
            node.body = [ast.copy_location(ast.Pass(), node)] if node.name in _HOLLOW else node.body
        elif isinstance(node, ast.arg):
            node.annotation = None
    #: name -> statements that bind it or may change its value
    changes: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__name__" in _names(statement.test):
            continue  # `if __name__ == "__main__"`
        for name in [statement.name] if isinstance(statement, _FUNCTION | ast.ClassDef) else _names(statement):
            changes.setdefault(name, []).append(statement)
    # Do execute the first imports, to notice packages that are not installed.
    needed = {statement for statement in _first_imports(tree) if not packages_of(statement) & PACKAGES}
    todo = [*_WANTED]
    while todo:
        for statement in changes.get(todo.pop(), ()):
            if not isinstance(statement, _PLAIN) or packages_of(statement) & PACKAGES:
                return None
            todo += [] if statement in needed else _names(statement)
            needed.add(statement)
    if not changes.keys() & FUNCTIONS:
        return None
    names: dict[str, Any] = {"__name__": "_model", "__file__": str(path)}
    with importing(path):
        part = ast.Module([statement for statement in tree.body if statement in needed], [])
        exec(compile(part, str(path.resolve()), "exec", dont_inherit=True), names)
    return replace(TrialDefinition.from_names(names, path), is_whole=False)


def _names(tree: ast.AST) -> list[str]:
    """Return all names in a part of a text."""
    attributes = ("id", "asname", "name")
    found = (next(filter(None, (getattr(node, key, None) for key in attributes)), "") for node in ast.walk(tree))
    return [name.partition(".")[0] for name in found if name]
