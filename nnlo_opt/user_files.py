"""Users' Python files as modules, always from their source.

Python's own cache of compiled files tells two versions of a file apart by the whole second and the length: one that is
edited quickly is not read again. And all ranks would write it at once, beside the user's file.
"""

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType


class _FromSource(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def spec_of(name: str, path: Path) -> ModuleSpec | None:
    """How the file `path` is executed as the module `name`; None unless it is a `.py` file."""
    if path.suffix != ".py":
        return None
    return importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
