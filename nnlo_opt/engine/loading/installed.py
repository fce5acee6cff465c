"""Components from other installed packages, found by entry points.

A user writes NAME or NAME@PACKAGE; inside, a component is always NAME@PACKAGE. Entry points are searched only for names
that are not ours, and loaded only where the component is created.
"""

import hashlib
from collections.abc import Collection
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.user_code import reason_of
from nnlo_opt.engine.runtime.process import code_of_user

SEARCH_ALGORITHMS = "nnlo_opt.search_algorithms"
PRUNERS = "nnlo_opt.pruners"
UPDATE_RULES = "nnlo_opt.update_rules"
FRAMEWORKS = "nnlo_opt.frameworks"
EXPORTERS = "nnlo_opt.exporters"
GROUPS = (SEARCH_ALGORITHMS, PRUNERS, UPDATE_RULES, FRAMEWORKS, EXPORTERS)
#: characters of a fingerprint to show
_SHOWN = 12


def is_installed(part: object) -> bool:
    """Return True for NAME@PACKAGE; False for a path such as FILE.py:CLASS."""
    return isinstance(part, str) and "@" in part and ".py:" not in part and "/" not in part


def found(group: str, name: str) -> str:
    """Return NAME@PACKAGE for a user's NAME or NAME@PACKAGE; "" if no package provides it.

    Raises:
        ConfigurationError: two packages provide components of this name.
    """
    name, _, package = name.partition("@")
    brought = {_package(point) for point in _points(group, name)}
    packages = sorted(brought & {_plain(package)} if package else brought)
    if len(packages) > 1:
        raise ConfigurationError(
            f"The name of a component must be unique. Received: {name}, which {' and '.join(packages)} provide as "
            f"`{group}`. Write {name}@{packages[0]}, for example, or uninstall one of them."
        )
    return f"{name}@{packages[0]}" if packages else ""


def names(group: str) -> list[str]:
    """Return the names that installed packages provide, for suggestions."""
    return sorted(entry_points(group=group).names)


def nearest(name: object, group: str, ours: Collection[str]) -> str:
    """Return " Did you mean ...?" with the closest name of this package or another, "" without one."""
    return did_you_mean(str(name).partition("@")[0], [*ours, *names(group)])


def load(group: str, part: str) -> Any:
    """Import the module of NAME@PACKAGE and return the object.

    Raises:
        ConfigurationError: the package is not installed in this environment, or it cannot be imported.
    """
    name, _, package = part.partition("@")
    point = next((point for point in _points(group, name) if _package(point) == package), None)
    if point is None:
        raise ConfigurationError(
            f"A component of another package must be installed on every host. Received: {name} of {package}, which has "
            f"no such entry point of `{group}` here. Install the package, or choose another component."
        )
    try:
        with code_of_user():
            return point.load()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"A package that provides a component must import without an error. Received: {package} for {name} "
            f"(`{point.value}`), with {reason_of(error)}. Correct or reinstall it, or choose another component."
        ) from error


def described(part: str) -> str:
    """Return NAME@PACKAGE for the journal, with version and fingerprint of the package's modules."""
    name, _, package = part.partition("@")
    try:
        of = distribution(package)
    except PackageNotFoundError:  # the error comes when the component is created
        return part
    return f"{name} of {package} {of.version} ({_fingerprint(of)})"


def _points(group: str, name: str) -> list[EntryPoint]:
    return list(entry_points(group=group, name=name))


def _package(point: EntryPoint) -> str:
    return _plain(point.dist.name) if point.dist is not None else "an unknown package"


def _plain(package: str) -> str:
    return package.lower().replace("_", "-")


def _fingerprint(of: Distribution) -> str:
    """Return a hash of the Python files of all top-level modules with entry points for us, without importing them."""
    modules = {point.module.partition(".")[0] for point in of.entry_points if point.group in GROUPS}
    digest = hashlib.sha256()
    for name in sorted(modules):
        spec = find_spec(name)
        folders = sorted(spec.submodule_search_locations or ()) if spec is not None else []
        files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py"))]
        if spec is not None and not folders and spec.origin and Path(spec.origin).is_file():
            files = [Path(spec.origin)]
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:_SHOWN]
