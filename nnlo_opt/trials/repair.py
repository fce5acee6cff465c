"""`nnlo-opt repair`: a run directory whose journal is damaged becomes one that can be gone on with.

Nothing is thrown away: the damaged journal stays as `journal.jsonl.damaged-N`, and files of trials that are lost as
`trials.damaged-N`. The new journal takes its place last; a repair that was cut short is done again from the start.
"""

from pathlib import Path

from nnlo_opt.errors import JournalError
from nnlo_opt.files import atomic_write, sync_directory
from nnlo_opt.trials.journal import encode_line, read_events
from nnlo_opt.trials.run_directory import JOURNAL_NAME
from nnlo_opt.trials.run_lock import hold
from nnlo_opt.trials.salvage import Salvage, salvage


def repair(run: Path) -> tuple[Salvage, Path] | None:
    """Repair the journal of `run`: what was kept, and where the damaged one is; None where it was sound.

    Raises ConfigurationError where a coordinator holds the run, JournalError where nothing can be kept.
    """
    with hold(run):
        path = run / JOURNAL_NAME
        data = path.read_bytes()
        try:
            read_events(data, str(path))
        except JournalError:
            found = salvage(data, str(path))
        else:
            return None
        damaged = _place_for(data, run)
        atomic_write(damaged, data)
        if found.renumbers:
            _move_files(run / "trials", run / damaged.name.replace(JOURNAL_NAME, "trials"), found.moved)
        atomic_write(path, b"".join(encode_line(seq, event) for seq, event in enumerate(found.events)))
        return found, damaged


def _place_for(data: bytes, run: Path) -> Path:
    """Where the damaged journal goes: where a repair that was cut short has put it, or a name that is not used."""
    number = 1
    while (path := run / f"{JOURNAL_NAME}.damaged-{number}").exists() and path.read_bytes() != data:
        number += 1
    return path


def _move_files(trials: Path, aside: Path, moved: dict[int, int]) -> None:
    """Put the folders of trials where their new numbers say; what is left in `aside` belongs to none."""
    if not aside.exists():
        if not trials.exists():
            return
        trials.rename(aside)
    trials.mkdir(exist_ok=True)
    for old, new in moved.items():
        source, target = aside / f"{old:04d}", trials / f"{new:04d}"
        if source.exists() and not target.exists():
            source.rename(target)
    sync_directory(trials)
    sync_directory(trials.parent)
