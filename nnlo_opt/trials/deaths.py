"""Which ranks died by themselves, as others saw it: notes in the run directory, read by the next start.

Without ULFM the death of a rank ends the whole job, and the coordinator with it before it hears why. Ranks of the same
node see who was first (`runtime.watchdog`), the launcher that a job has ended which nobody asked to. Each leaves a
file of its own, so that nobody needs a lock.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nnlo_opt.files import atomic_write
from nnlo_opt.records import checked

FOLDER = "deaths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What somebody saw."""

    #: the rank that died, and its team; None: the job did, and nobody knows why
    world_rank: int | None = None
    team: int | None = None
    #: of the rank
    host: str = ""
    how: str = ""

    def __str__(self) -> str:
        return f"rank {self.world_rank} on {self.host}: {self.how}"


def leave_note(run: Path, death: Death) -> None:
    """Write it down, as far as that is possible."""
    with suppress(OSError):
        (run / FOLDER).mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.json"
        atomic_write(run / FOLDER / name, json.dumps(asdict(death)) + "\n")


def read_notes(run: Path) -> list[Death]:
    """What was seen since the notes were removed last, the oldest first; what cannot be read is passed over."""
    found = []
    for path in sorted((run / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            found.append(checked(json.loads(path.read_text()), Death))
    return found


def remove_notes(run: Path) -> None:
    """When the journal has what follows from them."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)


def first_by_team(deaths: Sequence[Death]) -> dict[int, str]:
    """The first death in each team of which one is known, in words."""
    known: dict[int, str] = {}
    for death in deaths:
        if death.team is not None and death.world_rank is not None:
            known.setdefault(death.team, str(death))
    return known
