"""`nnlo-opt examples`: writes the programs of NNLO or mpi_learn, with their models, under their former names."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nnlo_opt.cli.arguments import Parser
from nnlo_opt.cli.tool import DRIVERS
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.builders import builtin_names, model_file

#: programs of NNLO and mpi_learn, which are copies of `program.py`
PROGRAMS = (
    *(*DRIVERS, "BuildModel", "models/BuildModel", "GetData"),
    *(f"models/get_{name}" for name in ("mnist", "cifar10", "topclass", "3d")),
)


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Write the programs and models of NNLO and mpi_learn under the names in their documents, so that their command
    lines run in that folder.
    """
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to write to; no file is overwritten")
    folder = parser.values(argv).folder
    program = Path(__file__).with_name("program.py").read_text()
    paths = {folder / f"{name}.py": program for name in PROGRAMS}
    paths |= {folder / "examples" / f"example_{name}.py": model_file(name).read_text() for name in builtin_names()}
    if existing := next(filter(os.path.lexists, paths), None):
        raise ConfigurationError(f"No file is overwritten. Received: `{existing}`, which exists; name another folder.")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o777 if text.startswith("#!") else 0o666
        with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
    print(f"Wrote {', '.join(map(str, paths))}.")


def run_legacy(parser: Parser, argv: Sequence[str]) -> None:
    """Print the help of a command that `cli.main` runs itself, before anything heavy is imported."""
    parser.usage = "[mpirun -np RANKS] nnlo-opt run-legacy SCRIPT.py [word ...]"
    parser.description = (
        "Run a script that was written for NNLO or mpi_learn unchanged, or a driver with such a model module (nnlo-opt "
        "run-legacy TrainingDriver --model their.py). This package provides `nnlo`, `mpi_learn` and `models` for "
        "import, and Keras gets the names of Keras 1 and 2."
    )
    parser.values([*argv] or ["--help"])
