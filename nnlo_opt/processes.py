"""Processes of ours beside the MPI ranks: the search and the reporter."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: variables by which an MPI library would take the process for one of its ranks
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI", "HYDRA_")


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module`; `-P`: a file of the user's must not pass for one of the standard library."""
    return [sys.executable, "-P", "-m", module, *arguments]


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a process that is no rank, and that finds this very package."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_MPI_PREFIXES)}
    root = str(Path(__file__).resolve().parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept
