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


class Hidden:
    """Loader of a module that is not to be imported, although it may be asked whether it is there, as torch does."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        raise ModuleNotFoundError(f"{spec.name} is hidden from Keras", name=spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Never called."""


class SparesKeras:
    """Hides what is optional while Keras is imported."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        keras = sys.modules.get("keras")
        is_hidden = name in OPTIONAL and keras is not None and getattr(keras.__spec__, "_initializing", False)
        return ModuleSpec(name, Hidden) if is_hidden else None


sys.meta_path[:0] = [AddsDense, SparesKeras]
