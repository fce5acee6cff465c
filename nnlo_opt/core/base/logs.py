"""Logs that all ranks know: what they are called, and where they are."""

import logging
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath

#: level of messages between ranks
TRACE = 5
logging.addLevelName(TRACE, "TRACE")
#: takes what is shortened everywhere else; without a run, only if a script asks for it
WHOLE = logging.getLogger("nnlo_opt.whole")


def log_path(run_directory: Path, world_rank: int) -> SafePath:
    """Return the path of the log file of a rank."""
    return SafePath(run_directory) / f"logs/rank-{world_rank:05d}.log"
