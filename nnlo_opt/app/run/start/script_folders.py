"""Decides the folder where scripts start: at the first start of a run, then kept in its journal."""

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.comm.run_messages import SharedFilesChanged
from nnlo_opt.core.trials.identity import ScriptFolders
from nnlo_opt.core.trials.run_directory import RunDirectory
from nnlo_opt.engine.objective.command import Command
from nnlo_opt.engine.objective.working_folder import killed, remove_stale_links

#: most top-level names of the starting folder to link
MOST_NAMES = 1000


def folders_of(options: Options, directory: RunDirectory, say: Callable[[str], None]) -> ScriptFolders:
    """Return where the scripts of a run start, and print it; meaningless for a run without a command.

    Raises:
        ConfigurationError: the starting folder cannot be linked, or the run began with a different choice.
    """
    command, request, ledger = options.command, options.run, directory.ledger
    if command is None:
        return ScriptFolders()
    start = str(request.start)
    if not ledger.sessions:
        folders = ScriptFolders(kind=command.folder or "links", start=start, own=[*command.own])
        if folders.kind == "links":
            folders = _listed(folders, directory.path, (request.place, options.log_file), say)
    else:
        folders = _resumed(command, directory, request.restore_option)
        if not options.joins:  # trials of other jobs may be running, with their links
            remove_stale_links(directory.path, ledger)
        folders = folders.replaced(start=start, own=[*dict.fromkeys((*folders.own, *command.own))])
        if gone := [name for name in folders.linked if not os.path.lexists(os.path.join(start, name))]:
            say(f"{_shown(gone)} {'are' if len(gone) > 1 else 'is'} no longer in `{start}`: no trial has a link to it.")
    say(_text(folders))
    for text in _begun(directory) if ledger.sessions and not options.joins else ():
        say(text)
    return folders


def _resumed(command: Command, directory: RunDirectory, option: str) -> ScriptFolders:
    known = directory.ledger.settings.scripts
    if command.folder not in (None, known.kind):
        raise ConfigurationError(
            f"`{option}` resumes the same run only. In `{directory.shown}` `--command-folder` differs: it was "
            f"{known.kind}, now {command.folder}. Leave it out, or start a new run under another name."
        )
    if command.own and known.kind == "here":
        raise ConfigurationError(
            "`--command-own` names entries that every trial has in its own folder. Received: "
            f"{shlex.join(command.own)} for `{directory.shown}`, whose trials all start in one folder; leave it out, "
            "or start a new run."
        )
    return known


def _listed(
    folders: ScriptFolders, run: Path, job: tuple[Path, Path | None], say: Callable[[str], None]
) -> ScriptFolders:
    """Return the folders of a new run, with the top-level names of the starting folder.

    Args:
        job: folder of the runs and the log file, to which the job writes.
    """
    start, place, log_file = Path(folders.start), job[0].resolve(), job[1]
    if start.is_relative_to(run.resolve()):
        raise ConfigurationError(
            f"Trials of a script get links to the folder in which the search starts. Received: `{start}`, in the run "
            "itself. Start in another folder, or give `--command-folder here` or `--command-folder empty`."
        )
    outputs = {*_outputs(), *([] if log_file is None else [_file(start / log_file)])}
    names, left_out = list[str](), list[str]()
    for name in sorted(os.listdir(start)):
        path = start / name
        is_ours = name == ".git" or any(_holds(path, held) for held in (run.resolve(), place)) or _file(path) in outputs
        (left_out if is_ours else names).append(name)
    folders = folders.replaced(names=names)
    if (n := len(folders.linked)) > MOST_NAMES:
        raise ConfigurationError(
            f"A folder whose entries are linked for trials must have at most {MOST_NAMES:,} names at its top. "
            f"Received: {n:,} in `{start}`. Give `--command-folder here` to start all trials there, or "
            "`--command-folder empty` for folders without links."
        )
    if left_out:
        say(f"No trial has a link to {_shown(left_out)} of `{start}`.")
    for name in folders.own:
        if name not in (*names, *left_out):
            say(f"`--command-own {shlex.quote(name)}`: there is no such name in `{start}`.{did_you_mean(name, names)}")
    return folders


def _holds(path: Path, held: Path) -> bool:
    """Return True if `held`, a resolved path, is `path` or below it."""
    with suppress(OSError, RuntimeError):  # a loop of links
        return held.is_relative_to(path.resolve())
    return False


def _file(path: Path | str) -> tuple[int, int] | None:
    """Return the device and the inode of a file; None if it is not a regular file."""
    with suppress(OSError):
        about = os.stat(path)
        return (about.st_dev, about.st_ino) if stat.S_ISREG(about.st_mode) else None
    return None


def _outputs() -> Iterator[tuple[int, int]]:
    """Yield the output files of this process and of its ancestors, such as mpirun and the job script."""
    process = os.getpid()
    with suppress(OSError, ValueError):  # another user's process
        while process > 0:
            for stream in (1, 2):
                if (found := _file(f"/proc/{process}/fd/{stream}")) is not None:
                    yield found
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])


# ---------------------------------------------------------------- in words


def _text(folders: ScriptFolders) -> str:
    if folders.kind == "here":
        return f"All scripts start in `{folders.start}`, and see there the files of other trials."
    links = f"with links to {counted(len(folders.linked), 'name')} of `{folders.start}`"
    own = f"; {_shown(folders.own)}: each trial's own" if folders.own else ""
    return f"Each trial starts in its own folder{f', {links}' * (folders.kind == 'links')}{own}."


def changed_text(changed: SharedFilesChanged) -> str:
    """Describe the shared files that a trial has changed, with the remedy."""
    return (
        f"Trial {changed.trial}: {_shown(changed.names)} of the starting folder, which all trials share, changed "
        f"meanwhile. `--command-own {shlex.join(changed.names)}` gives each trial its own."
    )


def _shown(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more


def _begun(directory: RunDirectory) -> Iterator[str]:
    """Yield a warning on trials that begin again with files written by a killed attempt."""
    trials = directory.ledger.trials
    found = [n for n, folder in killed(directory.path, directory.ledger) if folder.glob("*")]
    if again := [n for n in found if not trials[n].state.ended]:
        yield (
            f"{'Trials' if len(again) > 1 else 'Trial'} {', '.join(map(str, again))}: the next attempt finds the "
            "files that the script had written, including one that the kill has cut short."
        )
