"""List files, which name the data files of a training or validation set, one on each line.

A file next to the list may hold checksums of the data files, in the format of `sha256sum --check`: `train.list.sha256`
has a line for each data file with the SHA-256 of its content, two spaces, and its name as in the list.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_write, regular
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.base.spelling import spelled

#: additional folders in which this process looks up relative names, set by `look_in`
_FURTHER: list[Path] = []


def look_in(words: Iterable[str]) -> None:
    """Also look up names from lists in the working folder, and in the folders of files named in a command line.

    For mpi_learn scripts, which read their lists themselves: there a name is relative to the working folder, but
    `GetData` writes the files next to the list.
    """
    files = [Path(word.rpartition("=")[2]) for word in words]
    folders = [Path.cwd(), *(file.absolute().parent for file in files if os.path.isfile(file))]
    _FURTHER[:] = dict.fromkeys([*_FURTHER, *folders])


def located(name: str, folder: Path = Path()) -> str:
    """Return the path of a data file in a list, found in `folder` or one of `look_in`; its name if not found."""
    places = [os.path.join(place, name) for place in (folder, *_FURTHER)]
    return next(filter(os.path.isfile, places), places[0] if folder.parts else name)


def looked_in(name: str, folder: Path = Path()) -> str:
    """Return the places searched for a data file, to end "Received: NAME"; "" if there was only one."""
    folders = dict.fromkeys(map(str, (folder.absolute(), *_FURTHER)))
    is_elsewhere = os.path.isabs(name) and not Path(name).is_relative_to(Path.cwd())
    return "" if is_elsewhere or len(folders) == 1 else f", looked for in {' and '.join(folders)}"


def read_list(path: Path | str) -> tuple[Path, ...]:
    """Return the data files that the list file `path` names, in its order.

    Names are relative to the folder of the list file. Blank lines and lines that begin with `#` are skipped.

    Raises:
        ConfigurationError: if the list cannot be read, is empty, or names something that is not a file.
    """
    path = Path(path)
    files = []
    text = _text_of(path, "list file", "Give a text file that names one data file on each line.")
    for number, line in enumerate(text.splitlines(), start=1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        file = Path(located(name, path.parent))
        if not os.path.isfile(file):  # `Path.is_file` raises for overlong names
            kind = "a folder" if os.path.isdir(file) else "not a regular file"
            where = looked_in(name, path.parent)
            what = f"which is {kind}" if os.path.exists(file) else "which does not exist"
            raise ConfigurationError(
                "Every line of a list file must name a data file, absolute or relative to the folder of the list. "
                f"Received: {name[:200]} in line {number} of {path}{where}, {what}. Name HDF5 files, which `GetData "
                "from-arrays` writes from arrays."
            )
        files.append(file)
    if not files:
        raise ConfigurationError(
            f"A list file must name at least one data file. Received: {path}, which names none. "
            f"Write one data file on each line."
        )
    return tuple(files)


def write_list(path: Path | str, files: Iterable[Path | str]) -> None:
    """Write a list of `files`, one per line: relative to the folder of `path` if below it, else absolute."""
    atomic_write(Path(path), "".join(f"{name}\n" for name in relative_names(Path(path), files)))


def relative_names(path: Path, files: Iterable[Path | str]) -> list[str]:
    """Return `files` as they are named in the list `path`."""
    folder = path.parent.absolute()
    absolute = [Path(file).absolute() for file in files]
    return [str(file.relative_to(folder) if file.is_relative_to(folder) else file) for file in absolute]


def _text_of(path: Path, what: str, remedy: str) -> str:
    try:
        text = regular(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigurationError(f"A {what} must exist. Received: {path}, which does not. {remedy}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"A {what} must be text. Received: {path}, which is not. {remedy}") from error
    except OSError as error:
        raise ConfigurationError(
            f"A {what} must be readable. Received: {path} ({error.strerror or error}). {remedy}"
        ) from error
    if "\0" in text:
        raise ConfigurationError(f"A {what} must be text. Received: {path}, which is not. {remedy}")
    return text


_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def sums_path(list_path: Path) -> Path:
    """Return the path of the checksums of a list."""
    return list_path.with_name(list_path.name + ".sha256")


def write_sums(list_path: Path, files: Iterable[Path | str]) -> None:
    """Write the checksums of the data files of a list next to it."""
    paths = [Path(file) for file in files]
    lines = [f"{_sha256(path)}  {name}\n" for path, name in zip(paths, relative_names(list_path, paths), strict=True)]
    atomic_write(sums_path(list_path), "".join(lines))


def verify(list_path: Path) -> int:
    """Verify the checksums of all data files of a list, and return the number of files.

    Raises:
        ConfigurationError: naming the file, if a file differs, cannot be read, or is only in the list or only in the
            checksums; or if there are no checksums.
    """
    path = sums_path(list_path)
    sums = _read_sums(path, list_path)
    files = read_list(list_path)
    if len(files) != len(sums) or {file.absolute() for file in files} != sums.keys():
        only = sorted({file.absolute() for file in files} ^ sums.keys())
        what = f"`{only[0]}` in one of them only" if only else "a file more than once"
        raise ConfigurationError(
            f"With `{spelled('verify_data', True)}` a list must name the files of its checksums, each once. "
            f"Received: `{list_path}` and `{path}` with {what}; write both again."
        )
    for file in files:
        PULSE.expect(SLOW)
        try:
            found = _sha256(file)
        except OSError as error:
            raise ConfigurationError(
                f"A data file must be readable. Received: {file} ({error.strerror or error})."
            ) from error
        PULSE.ticks += 1
        if found != sums[file.absolute()]:
            raise ConfigurationError(
                f"With `{spelled('verify_data', True)}` a data file must match its checksum. Received: {file}, whose "
                f"SHA-256 is not the one in `{path}`: it is damaged, or was written again. Write it again, or its "
                "checksum."
            )
    return len(files)


def _read_sums(path: Path, list_path: Path) -> dict[Path, str]:
    remedy = f"Write it while the files are known to be sound, by `sha256sum FILES > {path.name}` in the list's folder."
    if not os.path.exists(path):
        raise ConfigurationError(
            f"`{spelled('verify_data', True)}` needs a file of checksums next to every list. Received: {list_path} "
            f"without {path.name}. {remedy}"
        )
    sums: dict[Path, str] = {}
    for number, line in enumerate(_text_of(path, "file of checksums", remedy).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None or (file := (path.parent / match[2]).absolute()) in sums:
            raise ConfigurationError(
                f"A file of checksums must have one line for each data file, the SHA-256 and the name. Received: line "
                f"{number} of {path}. {remedy}"
            )
        sums[file] = match[1]
    return sums


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
