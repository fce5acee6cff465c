"""List files, which name the data files of a training or validation set, one on each line."""

from collections.abc import Iterable
from pathlib import Path

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.files import atomic_write

#: the project's folder in a source checkout
_CHECKOUT = Path(__file__).resolve().parents[2]


def read_list(path: Path | str) -> tuple[Path, ...]:
    """Return the data files that the list file `path` names, in its order.

    A relative name starts from the folder of the list file. Blank lines and lines that begin with `#` are skipped.

    Raises:
        ConfigurationError: if the list cannot be read, is empty, or names something that is not a file.
    """
    path = Path(path)
    files = []
    for number, line in enumerate(_text_of(path).splitlines(), start=1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        file = path.parent / name
        if not file.is_file():
            what = "which is a folder" if file.is_dir() else "which does not exist"
            raise ConfigurationError(
                f"Every line of a list file must name a data file, absolute or relative to the folder of the list. "
                f"Received: {name} in line {number} of {path}, {what}."
            )
        files.append(file)
    if not files:
        raise ConfigurationError(
            f"A list file must name at least one data file. Received: {path}, which names none. "
            f"Write one data file on each line."
        )
    return tuple(files)


def write_list(path: Path | str, files: Iterable[Path | str]) -> None:
    """Write `files` to a list, one on each line: relative to the folder of `path` if below it, else absolute."""
    atomic_write(Path(path), "".join(f"{name}\n" for name in relative_names(Path(path), files)))


def relative_names(path: Path, files: Iterable[Path | str]) -> list[str]:
    """Return the names of `files` in the list `path`."""
    folder = path.parent.absolute()
    absolute = [Path(file).absolute() for file in files]
    return [str(file.relative_to(folder) if file.is_relative_to(folder) else file) for file in absolute]


def find_list(relative: str, command: str) -> Path:
    """Return the list file `relative`, searched in the working directory and then in the project's folder.

    Raises:
        ConfigurationError: naming `command`, which makes the file, if the file is in neither folder.
    """
    folders = dict.fromkeys((Path.cwd(), _CHECKOUT))
    found = next((path for folder in folders if (path := folder / relative).is_file()), None)
    if found is None:
        raise ConfigurationError(
            f"The data must exist before training. Received: no {relative} in {' or '.join(map(str, folders))}. "
            f"Run `{command}` first."
        )
    return found


def _text_of(path: Path) -> str:
    remedy = "Give a text file that names one data file on each line."
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigurationError(f"A list file must exist. Received: {path}, which does not. {remedy}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"A list file must be text. Received: {path}, which is not. {remedy}") from error
    except OSError as error:
        raise ConfigurationError(
            f"A list file must be readable. Received: {path} ({error.strerror}). {remedy}"
        ) from error
    if "\0" in text:
        raise ConfigurationError(f"A list file must be text. Received: {path}, which is not. {remedy}")
    return text
