"""Notes of dead ranks in the run directory, read by the next start.

Without ULFM the death of a rank ends the whole job, before the coordinator can learn the reason. Ranks on the same node
see which rank died first (`engine.runtime.watchdog`), and the launcher sees that a job ended unexpectedly. Each
observer writes a separate file, so no lock is needed.
"""

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nnlo_opt.core.base.files import atomic_write, make_directory, parse_json
from nnlo_opt.core.base.records import checked
from nnlo_opt.core.base.safe_path import SafePath

FOLDER = "deaths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Observed death of a rank, or of a job."""

    #: dead rank and its team; None if the job died for an unknown reason
    world_rank: int | None = None
    team: int | None = None
    #: host of the rank
    host: str = ""
    how: str = ""

    def __str__(self) -> str:
        return f"rank {self.world_rank} on {self.host}: {self.how}"


def leave_note(run: Path, death: Death) -> None:
    """Write `death` to a file of the run directory, if possible."""
    with suppress(OSError):
        make_directory(SafePath(run) / FOLDER)
        name = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.json"
        atomic_write(SafePath(run) / FOLDER / name, json.dumps(asdict(death)) + "\n")


def read_notes(run: Path) -> list[Death]:
    """Return all notes, the oldest first; a note that cannot be read is skipped."""
    found = []
    for path in (SafePath(run) / FOLDER).glob("[0-9]*.json"):  # skips temporary files, which begin with a dot
        with suppress(OSError, ValueError, TypeError):
            found.append(checked(parse_json(path.read_bytes()), Death))
    return found


def remove_notes(run: Path) -> None:
    """Remove all notes, once the journal has recorded the deaths."""
    (SafePath(run) / FOLDER).remove()


def first_by_team(deaths: Sequence[Death]) -> dict[int, str]:
    """Return team -> description of its first death, for teams in which a rank has died."""
    known: dict[int, str] = {}
    for death in deaths:
        if death.team is not None and death.world_rank is not None:
            known.setdefault(death.team, str(death))
    return known
