"""Data files of builtin models; model files that were copied from an example import `find_list` from here, too."""

from pathlib import Path

from nnlo_opt.errors import ConfigurationError

#: the project's folder in a source checkout
_CHECKOUT = Path(__file__).resolve().parents[2]


def find_list(relative: str, command: str) -> Path:
    """Return the list file `relative`, searched in the working directory and then in the project's folder.

    A list of its name in the working directory itself will do: NNLO's scripts wrote theirs there.

    Raises:
        ConfigurationError: naming `command`, which makes the file, if the file is in neither folder.
    """
    folders = dict.fromkeys((Path.cwd(), _CHECKOUT))
    found = next((path for folder in folders if (path := folder / relative).is_file()), None)
    beside = Path.cwd() / Path(relative).name
    if found is None and beside.is_file():
        return beside
    if found is None:
        raise ConfigurationError(
            f"The data must exist before training. Received: no {relative} in {' or '.join(map(str, folders))}. "
            f"Run `{command}` first."
        )
    return found
