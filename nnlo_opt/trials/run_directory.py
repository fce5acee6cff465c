"""Directory of a run: its name, its lock, its journal.

A relaunch after a kill waits until the old coordinator has ended before it reads the journal.
"""

import json
import os
import re
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError, JournalError
from nnlo_opt.files import atomic_write, make_directory
from nnlo_opt.trials import deaths
from nnlo_opt.trials.journal import Journal, load_events, without_collection
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_lock import RunLock, not_writable
from nnlo_opt.trials.sync_mark import MARK_NAME

JOURNAL_NAME = "journal.jsonl"
#: seconds to wait for the lock: ranks of a killed mpirun live on for 1.5-3.5 s
LOCK_TIMEOUT_S = 15.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Request of a command for a run: a new one, or one to resume or replace."""

    root: Path
    #: --checkpoint, else --trial-name; None: `<model>-001`, …
    name: str | None
    restore: bool = False
    overwrite: bool = False
    #: option of the command that resumes a run, for messages
    restore_option: str = "--opt-restore"
    #: training options that may differ on resume, as they change no figure of a trial that has ended
    may_change: frozenset[str] = frozenset({"checkpoint_interval"})
    #: True if the name is a folder that a user's script has chosen freely
    is_folder: bool = False
    #: working folder of the command, which code of a user may change later
    start: Path = field(default_factory=Path.cwd, compare=False)

    def __post_init__(self) -> None:
        if self.name is not None and not self.is_folder and not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                "The name of a run (`--checkpoint`, `--trial-name`) must be a plain file name of at most 255 letters, "
                f"digits, `.`, `_`, `+` and `-`; `--checkpoint` may name its folder in front. Received: {self.name!r}."
            )
        if self.restore and self.overwrite:
            raise ConfigurationError(
                f"`{self.restore_option}` resumes a run and `--overwrite` replaces it. Received: both; give one."
            )

    @property
    def place(self) -> Path:
        """Absolute path of `root`."""
        return self.start / self.root


class RunDirectory:
    """Open run directory, held by one process."""

    def __init__(self, path: Path, shown: Path, lock: RunLock, journal: Journal) -> None:
        #: absolute path, and the path as the command has it, for messages
        self.path, self.shown = path, shown
        self._lock = lock
        self.journal = journal
        with without_collection():
            #: the trials of the run, after all events of earlier sessions
            self.ledger = Ledger(journal.events)
        journal.events.clear()  # the ledger has all of them

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json` for people to read; a resume only relies on the journal."""
        atomic_write(self.path / "config.json", json.dumps(config, indent=2, default=str) + "\n")

    def close(self) -> None:
        """Close the journal, then release the lock."""
        for close in (self.journal.close, self._lock.release):
            with suppress(OSError):  # code of a user may have closed the file
                close()


def refuse_existing(request: RunRequest) -> None:
    """Raise ConfigurationError if the run exists, but the command neither resumes nor replaces it."""
    if request.name is None or request.restore or request.overwrite:
        return
    if os.path.exists(request.place / request.name / JOURNAL_NAME):
        raise ConfigurationError(
            f"The run `{request.root / request.name}` already exists. Resume it with `{request.restore_option}`, "
            "choose another name with `--checkpoint NAME`, or replace it with `--overwrite`."
        )


def choose_name(request: RunRequest, model: str, program: str) -> tuple[str, str]:
    """Return (name of the run, one sentence for the log or "").

    A run without a given name is `<model>-001`, `-002`, …; with `restore` it is the newest run of the model that is not
    complete.
    """
    if request.name is not None:
        return request.name, ""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", model).lstrip("._-") or "run"
    pattern = re.compile(re.escape(safe) + r"-(\d{3,})")
    numbers = []
    if request.place.is_dir():
        numbers = sorted(int(match[1]) for path in request.place.iterdir() if (match := pattern.fullmatch(path.name)))
    fresh = f"{safe}-{max(numbers, default=0) + 1:03d}"
    if not request.restore:
        return fresh, ""
    for number in reversed(numbers):
        path = request.place / f"{safe}-{number:03d}"
        if (path / JOURNAL_NAME).exists() and _is_unfinished(path, program):
            shown = request.root / path.name
            return path.name, f"Resuming `{shown}`, the newest unfinished run of {model}."
    return fresh, f"No unfinished run of {model} in `{request.root}`: starting a new run, {fresh}."


def open_run(
    request: RunRequest, name: str, lock_timeout_s: float = LOCK_TIMEOUT_S, *, syncs: bool = True
) -> RunDirectory:
    """Open or create the run `name`, locked for this process; wait while another process holds the lock."""
    path = request.place / name
    with ExitStack() as on_error:
        try:
            make_directory(path)
            lock = RunLock(path, lock_timeout_s)
            on_error.callback(lock.release)
            if request.overwrite:
                _remove_run(path)
            journal = Journal(path / JOURNAL_NAME, syncs=syncs, may_write=lock.check)
        except OSError as error:
            raise not_writable(path, error) from None
        run = RunDirectory(path, request.root / name, lock, journal)
        on_error.pop_all()
    return run


def _remove_run(path: Path) -> None:
    """Remove the files of a run and nothing else: a wrong name must not cost a user's own files.

    A directory without a journal is no run. So the journal is removed last: an interrupted removal can be repeated.
    """
    if not (path / JOURNAL_NAME).exists():
        return
    for name in ("trials", "logs", "timeline", deaths.FOLDER):
        shutil.rmtree(path / name, ignore_errors=True)
    for pattern in ("best_model.*", "*_history.json"):
        for file in path.glob(pattern):
            file.unlink()
    for name in ("config.json", "results.csv", "summary.json", "timeline.json", MARK_NAME, JOURNAL_NAME):
        (path / name).unlink(missing_ok=True)


def _is_unfinished(path: Path, program: str) -> bool:
    """Return True if `path` is a run of `program` that is not complete."""
    try:
        ledger = Ledger(load_events(path / JOURNAL_NAME))
    except (OSError, JournalError):
        return True  # the error is shown when the run is opened
    command_line = ledger.settings.get("command_line") or [program]
    return not ledger.complete and command_line[0] == program
