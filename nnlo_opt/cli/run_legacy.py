"""`nnlo-opt run-legacy`: runs a script of NNLO or mpi_learn, or a driver with a model module of theirs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.cli.main import drive
from nnlo_opt.cli.tool import DRIVERS
from nnlo_opt.errors import EXIT_OK


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    if not argv or argv[0].startswith("-"):
        from nnlo_opt.cli.arguments import Parser  # a driver sets the number of threads before

        parser = Parser(
            prog="nnlo-opt run-legacy",
            usage="[mpirun -np RANKS] nnlo-opt run-legacy SCRIPT.py [word ...]",
            description="Run a script that was written for NNLO or mpi_learn unchanged, or a driver with such a model "
            "module (nnlo-opt run-legacy TrainingDriver --model their.py). This package provides `nnlo`, `mpi_learn` "
            "and `models` for import, and Keras gets the names of Keras 1 and 2.",
        )
        parser.given([*argv] or ["--help"])
        return EXIT_OK
    from nnlo_opt.legacy import names

    program, path = Path(argv[0]).stem, Path(argv[0])
    if program in DRIVERS and not path.is_file():
        names.install()
        sys.argv = [*argv]
        drive(program)
    return names.run_script(argv)
