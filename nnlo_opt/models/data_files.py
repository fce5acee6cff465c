"""Data files of builtin models; model files that were copied from an example import `find_list` from here, too."""

from pathlib import Path

from nnlo_opt.errors import ConfigurationError

#: the project's folder in a source checkout
_CHECKOUT = Path(__file__).resolve().parents[2]


def find_list(relative: str, command: str, former_name: str = "") -> Path:
    """Return the list file `relative`, searched in the working directory and then in the project's folder.

    A list of its name, or of its name in NNLO, in the working directory itself will do: NNLO's scripts wrote theirs
    there.

    Raises:
        ConfigurationError: naming `command`, which makes the file, if there is none.
    """
    here = Path.cwd()
    names = dict.fromkeys((relative, Path(relative).name, former_name or relative))
    for path in (*(here / name for name in names), _CHECKOUT / relative):
        if path.is_file():
            return path
    folders = dict.fromkeys((here, _CHECKOUT))
    raise ConfigurationError(
        f"The data must exist before training. Received: no {relative} in {' or '.join(map(str, folders))}. "
        f"Run `{command}` first."
    )
