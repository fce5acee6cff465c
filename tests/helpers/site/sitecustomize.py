"""Makes `dense` a framework of every Python process that has this folder in PYTHONPATH, as the ranks of tests do.

Nothing is imported for it: two tables have one more line when the module that holds them is imported.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

FRAMEWORK_TABLES = "nnlo_opt.engine.models.framework"


class AddsDense:
    """Finds the module of the tables, and adds to these what it has defined."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == FRAMEWORK_TABLES else None
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_add(module: ModuleType) -> None:
                execute(module)
                module.FRAMEWORKS["dense"] = module._OF_PACKAGE["dense"] = "dense"

            spec.loader.exec_module = execute_and_add
        return spec


sys.meta_path.insert(0, AddsDense)
