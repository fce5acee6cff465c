"""For every Python process that has this folder in PYTHONPATH, as the ranks of tests do.

`dense` is a framework. Nothing is imported for it: two tables have one more line when the module that holds them is
imported. And Keras does not import what it only wraps or draws with, a third of its start.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

FRAMEWORK_TABLES = "nnlo_opt.engine.models.framework"
#: what Keras does without if it is not installed
OPTIONAL = ("matplotlib", "pandas", "sklearn")


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


class SparesKeras:
    """Finds nothing of what is optional while Keras is imported."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, target: ModuleType | None = None) -> None:
        keras = sys.modules.get("keras")
        if name in OPTIONAL and keras is not None and getattr(keras.__spec__, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is hidden from Keras", name=name)


sys.meta_path[:0] = [AddsDense, SparesKeras]
