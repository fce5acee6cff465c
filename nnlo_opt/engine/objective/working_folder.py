"""Working folder of a trial whose program is a script: what is in it, and which words of the command lead out of it.

Without one, all trials of a script would start in the folder in which the search was started, and a script that keeps
its state there would go on from the state of another trial. So each trial has a folder, `trials/0007/files`, with an
absolute link for every name at the top of the starting folder. The links are there while an attempt lasts: what is left
is what the script wrote.
"""

import os
import shutil
import stat
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.identity import ScriptFolders
from nnlo_opt.core.trials.kept_weights import FILES_NAME
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import AssignmentEnd
from nnlo_opt.engine.objective.named_files import CODE_ENDINGS

#: files and folders that are looked at, in all that is linked, to see whether a script has changed it
_MOST_SEEN = 2000
#: variables with lists of folders, which may be relative to the starting folder
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
#: name of the folders in which Python keeps what it has compiled: whoever imports writes there
_COMPILED = "__pycache__"


class WorkingFolder:
    """Folder of one attempt of a trial; block rank 0 opens it before any script starts, and closes it after the last.

    Args:
        directory: of the trial.
        folders: of the run.
    """

    def __init__(self, directory: Path, folders: ScriptFolders) -> None:
        self.path = SafePath(directory) / FILES_NAME
        self._folders, self._linked = folders, frozenset(folders.linked)
        self._start = Path(folders.start)
        #: name in the starting folder -> path of what all trials share of it, with its state when the attempt began
        self._shared: dict[str, tuple[Path, object]] = {}

    @property
    def cwd(self) -> str | None:
        """Folder in which the scripts start; None for that of this process."""
        return None if self._folders.kind == "here" else str(self.path)

    # ------------------------------------------------------------ on block rank 0

    def open(self) -> None:
        """Make the folder, with its links; what an earlier attempt has written stays."""
        make_directory(self.path)
        self._remove_links()
        for name in self._linked:
            target = self._start / name
            if os.path.lexists(target):
                self._watch(name, target)
                with suppress(FileExistsError):  # the script has made a file of its own
                    (self.path / name).symlink_to(str(target))

    def close(self) -> list[str]:
        """Remove the links; return the names of what all trials share and what has changed since `open`."""
        with suppress(OSError):  # a broken disk, of which the journal will tell
            self._remove_links()
        return sorted(name for name, (path, before) in self._shared.items() if self._state(path) != before)

    def _remove_links(self) -> None:
        for link in _links_in(self.path, self._folders):
            link.unlink()

    def _watch(self, name: str, path: Path) -> None:
        """Remember the state of what all trials share, unless it is known."""
        if name not in self._shared:
            self._shared[name] = path, self._state(path)

    def _state(self, path: Path) -> object:
        return _state(path, _MOST_SEEN // max(1, len(self._linked)))

    # ------------------------------------------------------------ on every rank

    def placed(self, words: Sequence[str], typed: Collection[str]) -> list[str]:
        """Return the words of a command such that a script in this folder finds the files that they name.

        A word that names an existing file of the starting folder becomes its absolute path if it has `..`, if there is
        no link to it, or if it is code: a link in a run directory may be changed by whoever may write there.

        Args:
            words: of the command of a trial.
            typed: words that the user has typed as they are. Others are values of parameters, such as `adam`, which
                name a file only if they look like one.
        """
        if self.cwd is None:
            return [*words]
        program, *rest = words
        placed = [self._placed(program, is_typed=True) if "/" in program else _found(program)]
        for before, word in pairwise([program, *rest]):
            # Behind -m is the name of a module.
            placed.append(word if before == "-m" else self._placed(word, is_typed=word in typed))
        return placed

    def _placed(self, word: str, *, is_typed: bool) -> str:
        head, equals, name = word.rpartition("=")
        path, parts = self._start / name, Path(name).parts
        is_file = is_typed or "/" in name or path.suffix.lower() in CODE_ENDINGS
        if not is_file or not parts or os.path.isabs(name) or not _exists(path):
            return word
        if ".." in parts:
            return f"{head}{equals}{path.resolve()}"
        if is_code(path):
            return f"{head}{equals}{path}"
        if parts[0] in self._linked or parts[0] in self._folders.own:
            return word
        if path.resolve() not in self.path.root.parents:  # a folder with the run changes all the time
            self._watch(parts[0], path)
        return f"{head}{equals}{path}"

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a script in this folder."""
        if self.cwd is None:
            return {**environ}
        lists = {name: environ[name].split(os.pathsep) for name in _PATHS if environ.get(name)}
        absolute = {name: os.pathsep.join(str(self._start / part) for part in parts) for name, parts in lists.items()}
        return {**environ, **absolute, "PWD": self.cwd}


def _links_in(folder: SafePath, folders: ScriptFolders) -> list[SafePath]:
    """Return the links that attempts of a trial have made in its folder, where a script may have made others."""
    return [path for path in folder.glob("*") if _target(path) == os.path.join(folders.start, path.name)]


def killed(run: Path, ledger: Ledger) -> Iterator[tuple[int, SafePath]]:
    """Yield the trials of which an attempt has died, each with its folder."""
    ends = (None, AssignmentEnd.LOST)
    for number in sorted({a.trial for a in ledger.assignments if a.end in ends}):
        yield number, SafePath(run) / f"trials/{number:04d}/{FILES_NAME}"


def stale_links(run: Path, ledger: Ledger) -> list[SafePath]:
    """Return the links of attempts that died before they could remove them; nobody may be at work."""
    return [link for _, folder in killed(run, ledger) for link in _links_in(folder, ledger.settings.scripts)]


def remove_stale_links(run: Path, ledger: Ledger) -> None:
    """Remove `stale_links`."""
    for link in stale_links(run, ledger):
        with suppress(OSError):
            link.unlink()


def is_code(path: Path) -> bool:
    """Return True if a file is a program or a script, or a folder that Python executes."""
    if path.is_dir():
        return (path / "__main__.py").is_file()
    with suppress(OSError):
        if path.suffix.lower() in CODE_ENDINGS or os.access(path, os.X_OK):
            return True
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(2) == b"#!"
    return False


def _target(path: SafePath) -> str | None:
    """Return where a link leads; None if it is none."""
    with suppress(OSError):
        return path.readlink()
    return None


def _exists(path: Path) -> bool:
    """Return True if there is a file or a folder; a value of a parameter may be no path at all."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _found(program: str) -> str:
    """Return a program that PATH has in a folder relative to the working folder by its absolute path."""
    found = shutil.which(program)
    return program if found is None or os.path.isabs(found) else os.path.abspath(found)


def _state(path: Path, most: int) -> object:
    """Return what changes if the file changes, or the listing of the folder; of a folder `most` entries are seen."""
    found: list[object] = []
    folders = deque([str(path)])
    with suppress(OSError):  # removed, or closed to us
        if not path.is_dir():
            about = path.stat()
            return about.st_ino, about.st_size, about.st_mtime_ns
        while folders:
            folder = folders.popleft()
            with os.scandir(folder) as entries:
                listed = [*islice((entry for entry in entries if entry.name != _COMPILED), most + 1)]
            if len(listed) > most:
                found.append(os.stat(folder).st_mtime_ns)
                continue
            most -= len(listed)
            for entry in sorted(listed, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.path)
                    folders.append(entry.path)
                else:
                    about = entry.stat(follow_symlinks=False)
                    found.append((entry.path, about.st_size, about.st_mtime_ns))
    return found
