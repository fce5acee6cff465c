"""Run directory: name, lock and journal.

A relaunch after a kill waits for the old coordinator to end before it reads the journal.
"""

import errno
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from nnlo_opt.core.base.errors import NOTHING_BEGUN, ConfigurationError, JournalError, NnloError
from nnlo_opt.core.base.files import atomic_write, make_directory
from nnlo_opt.core.base.records import without_collection
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.trials import deaths, sharing, unrecorded
from nnlo_opt.core.trials.events import RunStarted
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.journal import Journal, JournalWriter, load_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import OWNER_NAME
from nnlo_opt.core.trials.run_lock import LAUNCH_LOCK_NAME, LAUNCH_OWNER_NAME, LOCK_NAME, RunLock, not_writable
from nnlo_opt.core.trials.sync_mark import MARK_NAME

JOURNAL_NAME = "journal.jsonl"
#: folder of all runs
RUNS = "checkpoints"
#: folder for requests of commands to the running search
INBOX_NAME = "inbox"
#: seconds to wait for the lock: ranks of a killed mpirun survive for 1.5-3.5 s
LOCK_TIMEOUT_S = 15.0
#: empty file that marks a run whose last start was interrupted by a signal
INTERRUPTED_NAME = "run.interrupted"
#: folders and files of a run directory; the journal comes last
_FOLDERS = (
    "trials", "logs", "timeline", "figures", "tensorboard", INBOX_NAME, deaths.FOLDER, unrecorded.FOLDER, sharing.FOLDER
)  # fmt: skip
_FILES = (
    "config.json", "results.csv", "summary.json", "report.html", "timeline.json", "optuna.log", INTERRUPTED_NAME,
    MARK_NAME, JOURNAL_NAME,
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A command's request for a run: create, resume or replace."""

    root: Path
    #: --checkpoint, else --trial-name; None: `<model>-001`, …
    name: str | None
    restore: bool = False
    overwrite: bool = False
    #: option of the command that resumes a run, for messages
    restore_option: str = field(default_factory=partial(spelled, "opt_restore", True))
    #: number of trials, or of epochs of a training, that the command requests
    n_asked: int = 0
    unit: Literal["trial", "epoch"] = "trial"
    #: training options that may change on resume, because they do not affect ended trials
    may_change: frozenset[str] = frozenset({"checkpoint_interval"})
    #: True if the name is a folder chosen by a user's script
    is_folder: bool = False
    #: True if the run is removed when its program has the results: it is not synced, and has no reports
    is_temporary: bool = False
    #: working folder of the command; user code may change it later
    start: Path = field(default_factory=Path.cwd, compare=False)

    def __post_init__(self) -> None:
        if self.name is not None and not self.is_folder and not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"The name of a run (`{spelled('checkpoint')}`, `{spelled('trial_name')}`) must be a plain file name "
                f"of at most 255 letters, digits, `.`, `_`, `+` and `-`; `{spelled('checkpoint')}` may name its folder "
                f"in front. Received: {self.name!r}."
            )
        if self.restore and self.overwrite:
            raise ConfigurationError(
                f"`{self.restore_option}` resumes a run and `{spelled('overwrite', True)}` replaces it. Received: "
                "both; give one."
            )

    @property
    def place(self) -> Path:
        """Absolute path of `root`."""
        return self.start / self.root

    def resuming(self, words: Sequence[str]) -> list[str]:
        """Return the command that resumes this run, given the `words` of the original command."""
        # A shorter prefix is ambiguous: --ove could be --overlap.
        kept = [word for word in words if not ("--overwrite".startswith(word) and len(word) >= len("--overw"))]
        return kept if self.restore else [*kept, self.restore_option]

    def n_done(self, ledger: Ledger) -> int:
        """Return the number of trials that have ended, or of epochs of the training."""
        if self.unit == "trial":
            return ledger.n_ended
        return max((a.epoch for trial in ledger.trials[-1:] for a in trial.assignments), default=0)

    def interrupted_text(self, ledger: Ledger, words: Sequence[str]) -> str:
        """Return the progress of an interrupted run and, on a separate line, the command that resumes it.

        Args:
            words: interrupted command.
        """
        if not ledger.trials:
            return NOTHING_BEGUN
        n_open = len(ledger.trials) - ledger.n_ended - ledger.n_by_state()["paused"]
        state = f", {n_open} in progress" * (self.unit == "trial" and n_open > 0)
        command = shlex.join(self.resuming(words))
        done = f"{self.n_done(ledger)} of {self.n_asked} {self.unit}s done{state}"
        return f"Interrupted: {done}. Resume with:\n    {command}"


class RunDirectory:
    """Open run directory.

    Args:
        syncs: as for `Journal`.
    """

    def __init__(self, path: Path, shown: Path, *, syncs: bool = True) -> None:
        #: absolute path, and the path as given, for messages
        self.path, self.shown = path, shown
        self._syncs = syncs
        self._closing = ExitStack()
        #: the trials of the run, after all events of earlier sessions
        self.ledger = Ledger()
        #: journal that the coordinator writes; set before a coordinator works
        self.journal: JournalWriter
        #: bytes of a torn end that were cut off the journal when it was opened
        self.n_cut = 0

    def describe(self, started: RunStarted, say: Callable[[str, TextIO], None]) -> None:
        """Write `config.json` about a start."""
        space = RunIdentity.of(started.identity).search_space
        text = json.dumps(None if space is None else space.plain, sort_keys=True)
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        try:
            self.write_config({**started.settings, "search_space_fingerprint": fingerprint, **started.identity})
        except OSError as error:
            say(
                f"config.json could not be written ({error.strerror or error}); the journal holds the same data.",
                sys.stderr,
            )

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json` for human readers; a resume uses only the journal."""
        text = json.dumps(config, indent=2, default=str) + "\n"
        atomic_write(self.path / "config.json", text, durable=self._syncs)

    def note_interruption(self) -> None:
        """Mark the run as interrupted by a signal, as there may be no time to end it cleanly."""
        with suppress(OSError):
            (SafePath(self.path) / INTERRUPTED_NAME).write_bytes(b"")

    def close(self) -> None:
        """Close the journal, then release the lock."""
        with suppress(OSError):  # user code may have closed the file
            self._closing.close()


class OwnRun(RunDirectory):
    """Open run directory, held by one process.

    Args:
        syncs: as for `Journal`.
        replaces: keep an existing run untouched until `begin_anew`; before that, there is no `journal`.
    """

    journal: Journal

    def __init__(self, path: Path, shown: Path, lock: RunLock, *, syncs: bool, replaces: bool) -> None:
        super().__init__(path, shown, syncs=syncs)
        self._closing.callback(lock.close)
        self._open = partial(Journal, path / JOURNAL_NAME, syncs=syncs, may_write=lock.check)
        if not replaces:
            self._open_journal()
            with without_collection():
                self.ledger = Ledger(self.journal.events)
            self.journal.events.clear()  # the ledger has them

    def _open_journal(self) -> None:
        self.journal = self._open()
        self.n_cut = self.journal.n_cut
        self._closing.callback(self.journal.close)

    def begin_anew(self) -> None:
        """Remove the run that `--overwrite` replaces; call when the request can no longer be refused."""
        try:
            _remove_run(self.path)
            self._open_journal()
        except OSError as error:
            raise not_writable(self.path, error) from None

    def record(self, started: RunStarted, say: Callable[[str, TextIO], None]) -> None:
        """Record a start in the journal, then write `config.json`; NnloError if the journal cannot be written."""
        self.ledger.apply(started)
        try:
            (SafePath(self.path) / INTERRUPTED_NAME).unlink(missing_ok=True)
            self.journal.append([started])
        except OSError as error:
            raise NnloError(f"`{self.journal.path}` cannot be written ({error.strerror or error}).") from error
        self.describe(started, say)

    def abandon(self) -> None:
        """Close the directory of a refused request, and remove it unless it contains a run or other files."""
        files = SafePath(self.path)
        with suppress(OSError):
            if not (files / JOURNAL_NAME).exists() or not (files / JOURNAL_NAME).stat().st_size:
                # Remove the lock file while the lock is held; a process that waits for it then creates a new one.
                for name in (MARK_NAME, JOURNAL_NAME, LOCK_NAME):
                    (files / name).unlink(missing_ok=True)
        self.close()
        with suppress(OSError):
            self.path.rmdir()


def run_named(name: str | os.PathLike[str]) -> Path:
    """Return the directory of a run, given a path or a name as for `--checkpoint`."""
    path, inside = Path(name), Path(RUNS, name)
    is_path = os.sep in os.fspath(name) or (path / JOURNAL_NAME).exists()
    return path if is_path or (path.exists() and not (inside / JOURNAL_NAME).exists()) else inside


def existing_run(name: str | os.PathLike[str]) -> Path:
    """Like `run_named`, but a name without a run is taken as a path."""
    run = run_named(name)
    return run if run.is_dir() else Path(name)


def checked_run(run: Path, remedy: str) -> Path:
    """Return `run` if it is a run directory; else ConfigurationError, with the `remedy` if it contains no runs."""
    if not os.path.isfile(run / JOURNAL_NAME):
        inside = sorted(path.parent for path in run.glob(f"*/{JOURNAL_NAME}"))
        remedy = f"name a run in it, such as `{inside[-1]}`" if inside else remedy
        raise ConfigurationError(
            f"A run directory must hold a {JOURNAL_NAME}. Received: `{run}`, which does not; {remedy}."
        )
    return run


def refuse_existing(request: RunRequest) -> None:
    """Raise ConfigurationError if the run cannot be created, or exists and is neither resumed nor replaced."""
    path = wanted = request.place / (request.name or "")
    while not os.path.exists(path):
        path = path.parent
    if not os.access(path, os.W_OK) or not path.is_dir():
        raise not_writable(wanted, OSError(errno.EACCES, f"`{path}` is not a folder that you can write to"))
    if request.name is None or request.restore or request.overwrite:
        return
    if os.path.exists(request.place / request.name / JOURNAL_NAME):
        raise ConfigurationError(
            f"The run `{request.root / request.name}` already exists. Resume it with `{request.restore_option}`, "
            f"choose another name with `{spelled('checkpoint', 'NAME')}`, or replace it with "
            f"`{spelled('overwrite', True)}`."
        )


def is_shared(request: RunRequest) -> bool:
    """Return True if jobs share the run, or have shared it (`core.jobs`)."""
    return request.name is not None and (request.place / request.name / sharing.FOLDER).is_dir()


def choose_name(request: RunRequest, model: str, program: str) -> tuple[str, str]:
    """Return (name of the run, one sentence for the log or "").

    Without a given name it is `<model>-001`, `-002`, etc.; with `restore` the newest incomplete run of the model, or
    the newest run if the command requests more than it has done.

    Raises:
        ConfigurationError: all runs of the model are complete, and the command requests nothing more.
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
    complete: tuple[str, Ledger] | None = None
    for number in reversed(numbers):
        name = f"{safe}-{number:03d}"
        if not (request.place / name / JOURNAL_NAME).exists():
            continue
        ledger = Ledger()
        with suppress(OSError, JournalError):  # the error is shown when the run is opened
            ledger = Ledger(load_events(request.place / name / JOURNAL_NAME))
        if (ledger.settings.command_line or [program])[0] != program:
            continue
        if not ledger.complete:
            return name, f"Resuming `{request.root / name}`, the newest unfinished run of {model}."
        complete = complete or (name, ledger)
    if complete is None:
        return fresh, f"No run of {model} in `{request.root}`: starting a new run, {fresh}."
    name, ledger = complete
    n_done = request.n_done(ledger)
    if n_done < request.n_asked:
        return name, f"Resuming `{request.root / name}`, the newest run of {model}, for more {request.unit}s."
    more = spelled("num_iterations" if request.unit == "trial" else "epochs") + either(" N", "=N")
    raise ConfigurationError(
        f"`{request.restore_option}` without a name resumes a run that is not complete. Received: "
        f"`{request.root / name}`, the newest run of {model}, complete with {n_done} "
        f"{request.unit}{'s' * (n_done != 1)}. Ask for more by `{more}`, name another run by "
        f"`{spelled('checkpoint', 'NAME')}`, or leave `{request.restore_option}` out for a new run."
    )


def open_run(request: RunRequest, name: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> OwnRun:
    """Open or create the run `name`, locked for this process; wait while another process holds the lock."""
    path = request.place / name
    with ExitStack() as on_error:
        try:
            make_directory(path)
            check_files(path)
            sharing.refuse_shared(path)
            lock = RunLock(path, lock_timeout_s)
            on_error.callback(lock.close)
            shown, syncs = request.root / name, not request.is_temporary
            run = OwnRun(path, shown, lock, syncs=syncs, replaces=request.overwrite)
        except OSError as error:
            raise not_writable(path, error) from None
        on_error.pop_all()
    return run


def _files_of(run: SafePath, *others: str) -> list[SafePath]:
    """Return the files and folders of a run, and `others`, the journal last."""
    patterns = (*others, *_FOLDERS, "best_model.*", "ensemble.*", "*_history.json", *_FILES)
    return [path for pattern in patterns for path in run.glob(pattern)]


def check_files(run: Path) -> None:
    """Raise ConfigurationError if a file or folder of a run is a link."""
    for path in _files_of(SafePath(run), LOCK_NAME, OWNER_NAME, LAUNCH_LOCK_NAME, LAUNCH_OWNER_NAME):
        if path.is_link():
            raise ConfigurationError(
                "A run directory must contain files and not links, which others may have put there. Received: "
                f"`{path}`, a link. Remove the link, replace it by its target, or choose another name by "
                f"`{spelled('checkpoint', 'NAME')}`; the run directory itself may be a link."
            )


def _remove_run(path: Path) -> None:
    """Remove the files of a run and nothing else, so that a wrong name does not delete other files.

    A directory without a journal is not a run, so the journal is removed last: an interrupted removal can be repeated.
    """
    if (SafePath(path) / JOURNAL_NAME).exists():
        for file in _files_of(SafePath(path)):
            file.remove() if file.name in _FOLDERS else file.unlink()
