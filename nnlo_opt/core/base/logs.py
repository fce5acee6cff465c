"""Log levels, names and paths common to all ranks."""

import logging
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath

#: level of messages between ranks
TRACE = 5
logging.addLevelName(TRACE, "TRACE")
#: logger for texts that are shortened everywhere else; without a run, only active if a script configures it
WHOLE = logging.getLogger("nnlo_opt.whole")


def log_path(run_directory: Path, world_rank: int) -> SafePath:
    """Return the path of the log file of a rank."""
    return SafePath(run_directory) / f"logs/rank-{world_rank:05d}.log"
