"""Where the data files of built-in models and examples are."""

from pathlib import Path

from nnlo_opt.errors import ConfigurationError

#: The project's folder in a source checkout.
_CHECKOUT = Path(__file__).resolve().parents[2]


def find_list(relative: str, command: str) -> Path:
    """The list file `relative`, looked for in the working directory, then in the project's folder.

    Raises `ConfigurationError` that names `command`, which makes the file, if it is in neither.
    """
    folders = dict.fromkeys((Path.cwd(), _CHECKOUT))
    found = next((path for folder in folders if (path := folder / relative).is_file()), None)
    if found is None:
        raise ConfigurationError(
            f"The data must be there before training. Received: no {relative} in {' or '.join(map(str, folders))}. "
            f"Run `{command}` first."
        )
    return found
