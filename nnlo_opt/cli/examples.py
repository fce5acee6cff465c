"""`nnlo-opt examples`: writes the examples of the guide, or programs with the ancestors' names."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import nnlo_opt
from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.cli.tool import DRIVERS
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.builders import builtin_names, model_file

#: programs of NNLO and mpi_learn, each of them a copy of a file in `drivers/`, which are all the same
PROGRAMS = (
    *(*DRIVERS, "BuildModel", "models/BuildModel", "GetData"),
    *(f"models/get_{name}" for name in ("mnist", "cifar10", "topclass", "3d")),
)


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Write the examples and search spaces of the guide, so that its commands work in that folder."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to write to; no file is overwritten")
    parser.add_argument(
        "--legacy",
        action="store_true",
        help="write the programs and models of NNLO and mpi_learn instead, under the names in their documents",
    )
    values = parser.values(argv)
    files = {values.folder / path: text for path, text in (_legacy() if values.legacy else _shipped()).items()}
    if existing := next(filter(os.path.lexists, files), None):
        raise ConfigurationError(f"No file is overwritten. Received: `{existing}`, which exists; name another folder.")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o777 if text.startswith("#!") else 0o666
        with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
    print(f"Wrote {', '.join(map(str, files))}.")


def _legacy() -> dict[Path, str]:
    program = (_place() / "drivers" / "BuildModel.py").read_text()
    models = {Path("examples", f"example_{name}.py"): model_file(name).read_text() for name in builtin_names()}
    return {Path(f"{name}.py"): program for name in PROGRAMS} | models


def _shipped() -> dict[Path, str]:
    place = _place()
    files = sorted(path for folder in ("examples", "search_spaces") for path in (place / folder).rglob("*.*"))
    return {path.relative_to(place): path.read_text() for path in files if "__pycache__" not in path.parts}


def _place() -> Path:
    """Return where the shipped folders are: in an installation inside of the package, in a checkout beside it."""
    package = Path(nnlo_opt.__file__).parent
    return next(place for place in (package / "shipped", package.parent) if (place / "examples").is_dir())


def run_legacy(parser: Parser, argv: Sequence[str]) -> None:
    """Print the help of `run-legacy`, which `cli.main` runs itself."""
    parser.usage = "[mpirun -np RANKS] nnlo-opt run-legacy SCRIPT.py [word ...]"
    parser.description = (
        "Run a script that was written for NNLO or mpi_learn unchanged, or a driver with such a model module (nnlo-opt "
        "run-legacy TrainingDriver --model their.py). This package provides `nnlo`, `mpi_learn` and `models` for "
        "import, and Keras gets the names of Keras 1 and 2."
    )
    parser.values([*argv] or ["--help"])
