"""Working folder of a trial that runs a script: its links, and paths in the command that must point out of it.

Otherwise all trials of a script would run in the folder where the search was started, and a script that keeps its state
there would continue from the state of another trial. So each trial has a folder, `trials/0007/files`, with an absolute
link for every top-level name of the starting folder. The links exist only during an attempt; what remains are the files
written by the script.
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

#: most linked files and folders to check for changes by a script
_MOST_SEEN = 2000
#: variables with lists of folders, possibly relative to the starting folder
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
#: name of Python's bytecode folders, which any import may change
_COMPILED = "__pycache__"


class WorkingFolder:
    """Folder of one attempt of a trial; block rank 0 opens it before any script starts, and closes it after the last.

    Args:
        directory: folder of the trial.
        folders: where the scripts of the run start.
    """

    def __init__(self, directory: Path, folders: ScriptFolders) -> None:
        self.path = SafePath(directory) / FILES_NAME
        self._folders, self._linked = folders, frozenset(folders.linked)
        self._start = Path(folders.start)
        #: name in the starting folder -> path of the shared file or folder, and its state when the attempt began
        self._shared: dict[str, tuple[Path, object]] = {}

    @property
    def cwd(self) -> str | None:
        """Folder in which the scripts start; None: that of this process."""
        return None if self._folders.kind == "here" else str(self.path)

    # ------------------------------------------------------------ on block rank 0

    def open(self) -> None:
        """Create the folder with its links; files written by an earlier attempt stay."""
        make_directory(self.path)
        self._remove_links()
        for name in self._linked:
            target = self._start / name
            if os.path.lexists(target):
                self._watch(name, target)
                with suppress(FileExistsError):  # the script has created a file of this name
                    (self.path / name).symlink_to(str(target))

    def close(self) -> list[str]:
        """Remove the links; return the names of shared files and folders that have changed since `open`."""
        with suppress(OSError):  # a broken disk, which the journal will report
            self._remove_links()
        return sorted(name for name, (path, before) in self._shared.items() if self._state(path) != before)

    def _remove_links(self) -> None:
        for link in _links_in(self.path, self._folders):
            link.unlink()

    def _watch(self, name: str, path: Path) -> None:
        """Record the state of a shared file or folder, unless known."""
        if name not in self._shared:
            self._shared[name] = path, self._state(path)

    def _state(self, path: Path) -> object:
        return _state(path, _MOST_SEEN // max(1, len(self._linked)))

    # ------------------------------------------------------------ on every rank

    def placed(self, words: Sequence[str], typed: Collection[str]) -> list[str]:
        """Return the words of a command, adapted so that a script in this folder finds the files that they name.

        A word that names an existing file of the starting folder becomes its absolute path if it contains `..`, if
        there is no link to it, or if it is code: anyone who can write to the run directory could change a link.

        Args:
            words: command of a trial.
            typed: words that the user has typed literally. Others are values of parameters, such as `adam`, which name
                a file only if they look like one.
        """
        if self.cwd is None:
            return [*words]
        program, *rest = words
        placed = [self._placed(program, is_typed=True) if "/" in program else _found(program)]
        for before, word in pairwise([program, *rest]):
            # -m is followed by the name of a module.
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
        if path.resolve() not in self.path.root.parents:  # a folder that contains the run always changes
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
    """Return our links in the folder of a trial, where a script may have created others."""
    return [path for path in folder.glob("*") if _target(path) == os.path.join(folders.start, path.name)]


def killed(run: Path, ledger: Ledger) -> Iterator[tuple[int, SafePath]]:
    """Yield (trial, folder) for each trial with an attempt that died."""
    ends = (None, AssignmentEnd.LOST)
    for number in sorted({a.trial for a in ledger.assignments if a.end in ends}):
        yield number, SafePath(run) / f"trials/{number:04d}/{FILES_NAME}"


def stale_links(run: Path, ledger: Ledger) -> list[SafePath]:
    """Return the links of attempts that died before removing them; call it only while no trial runs."""
    return [link for _, folder in killed(run, ledger) for link in _links_in(folder, ledger.settings.scripts)]


def remove_stale_links(run: Path, ledger: Ledger) -> None:
    """Remove the links of attempts that died, see `stale_links`."""
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
    """Return the target of a link; None if it is not a link."""
    with suppress(OSError):
        return path.readlink()
    return None


def _exists(path: Path) -> bool:
    """Return True if a file or folder exists; the text may not be a valid path."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _found(program: str) -> str:
    """Return the absolute path of a program that PATH finds in a folder relative to the working folder."""
    found = shutil.which(program)
    return program if found is None or os.path.isabs(found) else os.path.abspath(found)


def _state(path: Path, most: int) -> object:
    """Return a value that changes if the file or the folder's listing changes; checks at most `most` entries."""
    found: list[object] = []
    folders = deque([str(path)])
    with suppress(OSError):  # removed, or not readable
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
