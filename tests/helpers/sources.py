"""Modules of the package as they are written, with their imports."""

import ast
from functools import cache
from pathlib import Path

import nnlo_opt

ROOT = Path(nnlo_opt.__file__).parent


def name_of(path: Path) -> str:
    """`nnlo_opt/core/space/__init__.py` -> `space`, `nnlo_opt/core/block/task.py` -> `core.block.task`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Everything a file imports, absolute, wherever the import stands; `-m` programs are imports too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import():
                found.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{path} imports relatively"
                # `from package import module` imports the module.
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(text)) if text.startswith("nnlo_opt."):
                found.add(text)
    return frozenset(found)


@cache
def house_imports_of(name: str) -> frozenset[str]:
    """The modules of ours that a module of ours imports."""
    found = set()
    for imported in imports_of(SOURCES[name]):
        parts = imported.split(".")
        if parts[0] != "nnlo_opt":
            continue
        candidates = [".".join(parts[1:end]) for end in range(len(parts), 1, -1)]
        found.add(next((candidate for candidate in candidates if candidate in SOURCES), "__init__"))
    return frozenset(found - {name})
